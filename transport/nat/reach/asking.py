"""Client of dial-backs: asks a peer to dial an address of this node, pays if asked, and listens."""

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
from .dialback import Awaited, Wanted


class Peer(Protocol):
    """A link, as far as dial-backs need it."""

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


async def ask(link: Peer, wanted: Wanted) -> bool:
    """Ask for a dial-back. Return whether the peer says that it has sent. Never raises."""
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
    host: Host, link: Peer, awaited: Awaited, transport: str, place: Place
) -> bool | None:
    """Whether a dial-back to an address of this node arrived; None if the peer sent none."""
    nonce = host.entropy(defaults.NONCE_BYTES)
    arrived = trio.Event()
    awaited.expect(nonce, lambda _: arrived.set())
    try:
        sent = await ask(link, Wanted(transport, place, nonce))
        if sent:
            with trio.move_on_after(defaults.STRAGGLER_S):
                await arrived.wait()
        return arrived.is_set() or (False if sent else None)
    finally:
        awaited.forget(nonce)
