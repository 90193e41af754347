"""Queries to observers about the address at which they see this node's UDP port."""

from collections.abc import Sequence
from typing import Protocol

import trio

from ...host.datagrams import Datagrams, Place
from ...host.seam import Host
from . import defaults, stun
from .stun import StunMessage


class StunPort(Protocol):
    """Part of the interface of the UDP port (`transport/udp/port.py`) that this package uses."""

    @property
    def port(self) -> int: ...

    def send(self, data: bytes, to: Place, socket: Datagrams | None = None) -> bool: ...


class Looker:
    """Sender of Binding requests from the node's UDP port, and receiver of the replies."""

    def __init__(self, host: Host, udp: StunPort) -> None:
        self._host = host
        self._udp = udp
        self.open_looks: dict[bytes, _Look] = {}
        """The looks that wait for replies, by the transaction of their request."""

    def on_answer(self, message: StunMessage, source: Place) -> bool:
        """Process a Binding response that arrived at the port.

        Returns whether it replies to an open request, and comes from the address that was asked.
        """
        look = self.open_looks.get(message.transaction)
        if look is None or not self._is_from(look, source):
            return False
        look.seen = message.mapped
        look.answered.set()
        return True

    def _is_from(self, look: "_Look", source: Place) -> bool:
        return look.to == source

    async def look(self, observers: Sequence[Place]) -> list[Place | None]:
        """Ask each observer where it sees the port. Takes at most about 2 s.

        Returns the addresses in the order of `observers`, with None for those that did not reply.
        """
        looks = [_Look(to) for to in observers]
        async with trio.open_nursery() as nursery:
            for look in looks:
                nursery.start_soon(self._ask, look)
                await trio.sleep(defaults.PROBE_GAP_S)
        return [look.seen for look in looks]

    async def _ask(self, look: "_Look") -> None:
        transaction = self._host.entropy(stun.TRANSACTION_BYTES)
        self.open_looks[transaction] = look
        try:
            for wait in defaults.RETRY_S:
                self._udp.send(stun.request(transaction), look.to)
                with trio.move_on_after(wait):
                    await look.answered.wait()
                    return
        finally:
            del self.open_looks[transaction]


class _Look:
    """One Binding request to the observer `to`. `seen` is the address in its reply."""

    __slots__ = ("answered", "seen", "to")

    def __init__(self, to: Place) -> None:
        self.to = to
        self.seen: Place | None = None
        self.answered = trio.Event()
