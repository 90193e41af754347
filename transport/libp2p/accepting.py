"""Registration of the responder for libp2p programs at the endpoint."""

from collections.abc import Collection
from functools import partial
from typing import Final

from ..address import Address
from ..dial.accepting import Acceptor
from ..dial.endpoint import Endpoint
from ..host.seam import Host
from ..link.calls import Handler
from ..relay.book import RelayBook
from .responder import Libp2pResponder

MULTISTREAM_BYTE: Final = 0x13
"""First byte of a libp2p connection: the length of multistream's first line."""


def answer_libp2p(
    host: Host, endpoint: Endpoint, relay: RelayBook | None, published: Collection[str] = ()
) -> Libp2pResponder:
    """Register a responder for libp2p programs at `endpoint`, and return it.

    The responder relays between libp2p programs within the limits of `relay`; None means that it
    does not relay. The programs may call the methods in `published`. The handlers of these methods
    must be cheap, because every libp2p program is a stranger.
    """

    def addresses() -> list[Address]:
        found = host.interfaces()
        return [Address(item.address, endpoint.port, endpoint.peer) for item in found]

    def open_to_strangers() -> dict[str, Handler]:
        found = {method: endpoint.handler(method) for method in published}
        return {method: handler for method, handler in found.items() if handler is not None}

    responder = Libp2pResponder(
        host, endpoint.identity, addresses=addresses, published=open_to_strangers, relay=relay
    )
    over_circuit = partial(responder.serve_byte_stream, relayed=True)
    acceptor = Acceptor("libp2p", responder.serve, over_circuit, lasting=True)
    endpoint.accept(MULTISTREAM_BYTE, acceptor)
    return responder
