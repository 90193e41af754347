"""TCP through two NATs: both sides dial each other from their listen ports at the same moment.

Each side's SYN opens its own NAT for the other's; where they cross, one connection comes of both
(RFC 9293, 3.5, simultaneous open), where one is earlier and gets lost, the later one finds the way
open and meets the earlier dial. A NAT that answers a premature SYN with a reset (RFC 5382 REQ-4
forbids it, and routers whose own stack answers do it) ends the dial: it is tried again soon.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, Protocol

import trio

from ..datagrams import Place
from ..pipe import Pipe
from .defaults import PunchLimits

_AGAIN_S: Final = (0.95, 2.0, 4.0)  # before the kernel's further SYNs, each after the one before


class Dials(Protocol):
    """What is used of the host."""

    def entropy(self, size: int) -> bytes: ...

    async def connect(
        self, address: str, port: int, *, source_port: int = 0
    ) -> trio.SocketStream: ...


class TcpEnd(StrEnum):
    """How dialling one side's addresses ended."""

    WORKED = "worked"
    REFUSED = "refused"  # resets only
    NO_ANSWER = "no-answer"
    BUDGET = "budget"
    NOWHERE = "nowhere"  # no address may be dialled


class Dialling:
    """Dials some places from one port, all at once, until one answers, and a moment longer.

    `deliver(stream, place)` is called for each connection. In the own network an address may
    belong to somebody else than the peer: so the first connection need not be the right one.
    """

    def __init__(
        self,
        host: Dials,
        source_port: int,
        *,
        spend: Callable[[str], bool],
        deliver: Callable[[trio.SocketStream, Place], None],
        limits: PunchLimits,
    ) -> None:
        self._host = host
        self._port = source_port
        self._spend = spend
        self._deliver = deliver
        self._limits = limits
        self._scope = trio.CancelScope()
        self._ends: set[TcpEnd] = set()

    async def run(self, places: Sequence[Place]) -> TcpEnd:
        """Returns when all is tried, the time is over, or a moment after the first success."""
        if not places:
            return TcpEnd.NOWHERE
        self._scope.deadline = trio.current_time() + self._limits.tcp_s
        with self._scope:
            async with trio.open_nursery() as nursery:
                for place in places:
                    nursery.start_soon(self._dial, place)
        for end in (TcpEnd.WORKED, TcpEnd.NO_ANSWER, TcpEnd.REFUSED, TcpEnd.BUDGET):
            if end in self._ends:
                return end
        return TcpEnd.NO_ANSWER

    async def _dial(self, place: Place) -> None:
        for _ in range(self._limits.tcp_tries):
            end = await self._try(place)
            self._ends.add(end)
            if end is TcpEnd.WORKED or end is TcpEnd.BUDGET:
                return
            await trio.sleep(self._pause())

    def _pause(self) -> float:
        """Drawn, so that two sides whose routers both answer with resets do not miss each other
        for ever: their SYNs have to cross on the way."""
        low, high = self._limits.tcp_retry_s
        return low + (high - low) * int.from_bytes(self._host.entropy(2)) / 65536

    async def _try(self, place: Place) -> TcpEnd:
        """One dial, with the SYNs that the kernel repeats: a dial that is given up for a new one
        may have been about to succeed."""
        if not self._spend(place[0]):
            return TcpEnd.BUDGET
        end = TcpEnd.NO_ANSWER
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._count_again, place, nursery.cancel_scope)
            end = await self._connect(place)
            nursery.cancel_scope.cancel()
        return end

    async def _count_again(self, place: Place, scope: trio.CancelScope) -> None:
        for pause in _AGAIN_S:
            await trio.sleep(pause)
            if not self._spend(place[0]):
                scope.cancel()

    async def _connect(self, place: Place) -> TcpEnd:
        try:
            stream = await self._host.connect(*place, source_port=self._port)
        except ConnectionRefusedError:
            return TcpEnd.REFUSED
        except OSError:  # no route, or the peer's own dial came to the listener meanwhile
            return TcpEnd.NO_ANSWER
        now = trio.current_time()
        self._scope.deadline = min(self._scope.deadline, now + self._limits.grace_s)
        self._deliver(stream, place)
        return TcpEnd.WORKED


async def stays_silent(pipe: Pipe, limits: PunchLimits) -> bool:
    """Whether who dialled our listener waits for us to speak first.

    Of an ordinary inbound connection the dialler is the TLS client. Where both have dialled, the
    client is who has the smaller peer id, also where its own dial came to nothing and the other's
    got through to its listener. The other side cannot know that; but it stays silent, and an
    ordinary dialler does not. Raises what `Pipe.wait_readable` does.
    """
    with trio.move_on_after(limits.first_byte_s):
        await pipe.wait_readable()
        return False
    return True
