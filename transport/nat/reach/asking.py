"""Client of dial-backs: asks a peer to dial an address of this node, and waits for the dial-back.

If the peer demands a payment, the client pays by sending it that many bytes.
"""

from collections.abc import Mapping
from typing import Protocol

import trio

from ...errors import CallRefused, LinkClosed
from ...host.datagrams import Place
from ...host.seam import Host
from ...identity import PeerId
from ...lane.frame import Bytes, Priority
from ...link.calls import Reply
from . import defaults
from .dialback import Awaited, WantedDialBack


class DialBackPeer(Protocol):
    """Part of a link's interface that this module uses."""

    @property
    def peer(self) -> PeerId: ...

    async def call(
        self,
        method: str,
        header: Mapping[str, object] = ...,
        payload: Bytes = ...,
        *,
        priority: Priority = ...,
        timeout: float,
    ) -> Reply: ...


async def ask(link: DialBackPeer, wanted: WantedDialBack) -> bool:
    """Ask a peer for a dial-back, and pay if it demands a payment within the usual bounds.

    Returns whether the peer reports that it has sent the dial-back. Returns False after a refusal
    or a timeout, or if the link ends.
    """
    try:
        reply = await link.call("reach.dialback", wanted.header, timeout=defaults.DIALBACK_S)
        size = reply.header.get("pay")
        if type(size) is int and 0 < size <= defaults.PAYMENT_BYTES[1]:
            reply = await link.call(
                "reach.dialback",
                wanted.header,
                bytes(size),
                priority=Priority.BULK,
                timeout=defaults.PAYMENT_S,
            )
        return reply.header.get("sent") is True
    except (CallRefused, LinkClosed):
        return False


async def dialled_back(
    host: Host, link: DialBackPeer, awaited: Awaited, transport: str, place: Place
) -> bool | None:
    """Ask a peer to dial an address of this node. Return whether the dial-back arrived.

    Returns None if none arrived and the peer does not report that it has sent one. `transport` is
    "tcp" or "udp".
    """
    nonce = host.entropy(defaults.NONCE_BYTES)
    arrived = trio.Event()
    awaited.expect(nonce, lambda _: arrived.set())
    try:
        sent = await ask(link, WantedDialBack(transport, place, nonce))
        if sent:
            with trio.move_on_after(defaults.STRAGGLER_S):
                await arrived.wait()
        return arrived.is_set() or (False if sent else None)
    finally:
        awaited.forget(nonce)
