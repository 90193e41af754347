"""TCP hole punching: both sides dial each other from their listen ports at the same moment.

The SYN that a side sends opens its own NAT for the other side's SYN. If the two SYNs cross, they
make one connection (simultaneous open, RFC 9293, 3.5). If a NAT drops the earlier SYN, the later
one passes the NAT that the earlier one opened, and reaches the socket that still dials. A NAT may
answer a premature SYN with a reset, which ends the dial. The dial is then repeated soon. RFC 5382
REQ-4 forbids such resets, but some routers send them from their own TCP stack.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, Protocol

import trio

from ...bytestream import ByteStream
from ...host.datagrams import Place
from .defaults import PunchLimits

_AGAIN_S: Final = (0.95, 2.0, 4.0)  # pauses before the kernel repeats a SYN


class Dials(Protocol):
    """The part of the host that dialling uses."""

    def entropy(self, size: int) -> bytes: ...

    async def connect(
        self, address: str, port: int, *, source_port: int = 0
    ) -> trio.SocketStream: ...


class TcpEnd(StrEnum):
    """Outcome of dialling the addresses of one peer."""

    WORKED = "worked"
    REFUSED = "refused"  # resets only
    NO_ANSWER = "no-answer"
    BUDGET = "budget"
    NOWHERE = "nowhere"  # there is no address that may be dialled


class Dialling:
    """Dials several addresses from one port at once, until shortly after the first success.

    `deliver(stream, place)` is called for each connection. A private address may belong to another
    machine than the peer, so the first connection need not be the right one.
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
        """Dial until no tries or no time are left, or until shortly after the first success."""
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
        """Return a random pause.

        If the routers of both sides send resets, the SYNs have to cross on the way. With equal
        pauses they might never do so.
        """
        low, high = self._limits.tcp_retry_s
        return low + (high - low) * int.from_bytes(self._host.entropy(2)) / 65536

    async def _try(self, place: Place) -> TcpEnd:
        """Dial once, and leave the kernel time to repeat its SYNs.

        A dial that is replaced too soon may have been about to succeed.
        """
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
        except OSError:  # no route, or the peer's own dial has reached the listener meanwhile
            return TcpEnd.NO_ANSWER
        now = trio.current_time()
        self._scope.deadline = min(self._scope.deadline, now + self._limits.grace_s)
        self._deliver(stream, place)
        return TcpEnd.WORKED


async def stays_silent(pipe: ByteStream, limits: PunchLimits) -> bool:
    """Return whether the peer that dialled our listener waits for us to send first.

    The dialler of an ordinary connection is the TLS client. If both sides have dialled, the
    client is the side with the smaller peer id, even if its own dial failed and the other's
    reached its listener. The other side cannot know that, so it stays silent, which an ordinary
    dialler does not. Raises the errors of `Pipe.wait_readable`.
    """
    with trio.move_on_after(limits.first_byte_s):
        await pipe.wait_readable()
        return False
    return True
