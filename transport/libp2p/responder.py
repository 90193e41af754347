"""Server for libp2p programs on this node's TCP port: identify, ping, published calls, circuits.

Only Noise and yamux are supported. These peers are always strangers. The libp2p package is imported
when the first one connects (package.py).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import trio

from ... import __version__
from ..address import Address
from ..bytestream import ByteStream, TcpByteStream
from ..dial.accepting import Acceptor
from ..dial.endpoint import Endpoint
from ..host.seam import Host
from ..identity import Identity
from ..limits import Crowd
from ..link.calls import Handler
from ..rates import MemoryBudget, Rate, RateLimiter
from ..relay.book import RelayBook
from . import defaults
from .calls import CALL, CallService
from .circuit import HOP
from .connection import Libp2pConnection, ReadingCharges, Serve
from .hop import HopService
from .limits import Libp2pLimits
from .muxstream import MuxStream
from .package import encode_address, encode_key, package
from .session import Libp2pSession
from .varint import prefixed

IDENTIFY: Final = "/ipfs/id/1.0.0"
IDENTIFY_PUSH: Final = "/ipfs/id/push/1.0.0"
_FAMILY: Final = "ipfs/0.1.0"  # the version that go-libp2p, rust-libp2p and py-libp2p announce


def identify_answer(
    public_key: bytes,
    listening: Sequence[Address],
    observed: Address | None,
    protocols: Sequence[str],
) -> bytes:
    """Encode this node's identity, addresses and protocols, with a length prefix.

    `observed` is the address at which this node sees the peer; None on a circuit.
    """
    message = package().Identify(
        public_key=encode_key(public_key),
        listen_addrs=[encode_address(address) for address in listening],
        protocols=protocols,
        protocol_version=_FAMILY,
        agent_version=f"shoal/{__version__}",
    )
    if observed is not None:
        message.observed_addr = encode_address(observed)
    return prefixed(message.SerializeToString())


PING: Final = "/ipfs/ping/1.0.0"
_PING_BYTES: Final = 32
_LISTED: Final = 16  # largest number of addresses in an identify message


class Libp2pResponder:
    """Server for libp2p programs. `serve` is called with each connection that begins with 0x13.

    `published` returns the methods that strangers may call. `relay` is the book of a node that may
    relay (its limits decide whether it does); None if it must not.
    """

    def __init__(
        self,
        host: Host,
        identity: Identity,
        *,
        addresses: Callable[[], Sequence[Address]],
        published: Callable[[], Mapping[str, Handler]] = dict,
        relay: RelayBook | None = None,
        limits: Libp2pLimits | None = None,
    ) -> None:
        self._host = host
        self._identity = identity
        self._addresses = addresses
        self._published = published
        self._limits = limits or Libp2pLimits()
        self._crowd = Crowd(
            self._limits.connections,
            self._limits.connections_per_subnet,
            self._limits.connections_loopback,
        )
        self._budget = MemoryBudget(self._limits.total_bytes)
        self._pace = RateLimiter(Rate(self._limits.burst_bytes, self._limits.rate), host.now())
        self._calls = CallService(published, self._limits)
        self._hop: HopService | None = None
        if relay is not None:
            self._hop = HopService(host, identity, relay, addresses=addresses, limits=self._limits)

    async def serve(self, stream: trio.SocketStream, first: bytes) -> None:
        """Serve one peer until it ends or exceeds a limit, and close the connection.

        `first` are bytes that were already read. Nothing that the peer does raises an exception.
        """
        await self.serve_byte_stream(TcpByteStream(stream), first)

    async def serve_byte_stream(
        self, byte_stream: ByteStream, first: bytes, *, relayed: bool = False
    ) -> str:
        """Serve a peer over any byte stream. Return the code with which the connection has ended.

        `relayed` says that the byte stream is a circuit.
        """
        entry = self._crowd.enter(byte_stream.remote[0], self._host.now())
        if entry is None:
            byte_stream.close()
            return "full"
        try:
            await self._host.offload(package)
            await self._pace.pay(defaults.HANDSHAKE_COST)
            return await self._run(self._connection(byte_stream, relayed), first)
        finally:
            self._crowd.leave(entry)
            byte_stream.close()

    async def _run(self, connection: Libp2pConnection, first: bytes) -> str:
        """Run a connection to its end, and release its reservations."""
        try:
            await connection.run(first)
        finally:
            if self._hop is not None:
                self._hop.gone(connection)
        return connection.code or "closed"

    def protocols(self) -> dict[str, Serve]:
        """Return the protocols that are served now, by protocol id."""
        found: dict[str, Serve] = {
            IDENTIFY: self._serve_identify,
            IDENTIFY_PUSH: _hear_push,
            PING: _answer_pings,
        }
        if self._published():
            found[CALL] = self._calls.serve
        if self._hop is not None and self._hop.offered:
            found[HOP] = self._hop.serve
        return found

    def _connection(self, byte_stream: ByteStream, relayed: bool) -> Libp2pConnection:
        """Create the connection for a byte stream."""
        limits = self._limits
        session = Libp2pSession(
            self._identity, dialled=False, entropy=self._host.entropy, limits=limits
        )
        pace = RateLimiter(Rate(limits.peer_burst_bytes, limits.peer_rate), self._host.now())
        return Libp2pConnection(
            byte_stream,
            session,
            host=self._host,
            protocols=self.protocols,
            charges=ReadingCharges(self._budget, (pace, self._pace)),
            relayed=relayed,
        )

    async def _serve_identify(self, connection: Libp2pConnection, stream: MuxStream) -> None:
        """Send this node's identity and addresses."""
        ip, port = connection.remote
        listening = [replace(address, peer=None) for address in self._addresses()[:_LISTED]]
        answer = identify_answer(
            self._identity.public_key,
            listening,
            Address(ip, port) if ip else None,
            list(self.protocols()),
        )
        await stream.send(answer)
        connection.progress()


async def _hear_push(connection: Libp2pConnection, stream: MuxStream) -> None:
    """Read an identify push and ignore it. Without this, the stream would be reset."""
    await stream.receive_message(defaults.IDENTIFY_BYTES)
    connection.progress()


async def _answer_pings(connection: Libp2pConnection, stream: MuxStream) -> None:
    """Send each received payload back."""
    while payload := await stream.receive(_PING_BYTES):
        rest = await stream.receive_exactly(_PING_BYTES - len(payload))
        await connection.pay(defaults.PING_COST)
        await stream.send(payload + rest)
        connection.progress()


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
