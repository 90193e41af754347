"""TCP hole punching: both sides dial each other from their listen ports at the same moment.

The SYN that a side sends opens its own NAT for the SYN of the other side. If the two SYNs cross,
they make one connection (simultaneous open, RFC 9293, section 3.5). If a NAT drops the earlier SYN,
the later SYN passes through the NAT that the earlier one has opened, and reaches a socket that is
still dialling. A NAT may also answer an early SYN with a reset, which ends the dial. RFC 5382,
REQ-4, forbids this, but some routers send such resets from their own TCP stack. The dial is
therefore repeated soon.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, Protocol

import trio

from ...bytestream import ByteStream
from ...host.datagrams import Place
from .defaults import PunchLimits

_AGAIN_S: Final = (0.95, 2.0, 4.0)  # seconds after which the kernel repeats a SYN


class Dials(Protocol):
    """Part of the host's interface that dialling uses."""

    def entropy(self, size: int) -> bytes: ...

    async def connect(
        self, address: str, port: int, *, source_port: int = 0
    ) -> trio.SocketStream: ...


class PunchDialResult(StrEnum):
    """Outcome of dialling the addresses of one peer."""

    WORKED = "worked"
    REFUSED = "refused"  # each dial was answered by a reset
    NO_ANSWER = "no-answer"
    BUDGET = "budget"  # the budget allowed no dial
    NOWHERE = "nowhere"  # there is no address that may be dialled


class Dialling:
    """Concurrent dials to several addresses of a peer, all from the port `source_port`.

    `spend(ip)` counts one SYN, and returns False if it must not be sent. `deliver(stream, place)`
    is called for each connection. After the first connection the other dials continue for a moment,
    because the first one need not lead to the peer: a private address may belong to another
    machine.
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
        self._ends: set[PunchDialResult] = set()

    async def run(self, places: Sequence[Place]) -> PunchDialResult:
        """Dial all addresses until the tries or the time are used up, or one dial has succeeded.

        After the first success, dialling continues for `grace_s` seconds. Returns the best outcome.
        """
        if not places:
            return PunchDialResult.NOWHERE
        self._scope.deadline = trio.current_time() + self._limits.tcp_s
        with self._scope:
            async with trio.open_nursery() as nursery:
                for place in places:
                    nursery.start_soon(self._dial, place)
        for end in (
            PunchDialResult.WORKED,
            PunchDialResult.NO_ANSWER,
            PunchDialResult.REFUSED,
            PunchDialResult.BUDGET,
        ):
            if end in self._ends:
                return end
        return PunchDialResult.NO_ANSWER

    async def _dial(self, place: Place) -> None:
        """Dial one address up to `tcp_tries` times, and record the outcome of each try."""
        for _ in range(self._limits.tcp_tries):
            end = await self._try(place)
            self._ends.add(end)
            if end is PunchDialResult.WORKED or end is PunchDialResult.BUDGET:
                return
            await trio.sleep(self._pause())

    def _pause(self) -> float:
        """Return a random pause before the next try, in seconds.

        If the routers of both sides send resets, a connection needs two SYNs that cross on their
        way. If both sides always paused equally long, this might never happen.
        """
        low, high = self._limits.tcp_retry_s
        return low + (high - low) * int.from_bytes(self._host.entropy(2)) / 65536

    async def _try(self, place: Place) -> PunchDialResult:
        """Dial an address once, and count each SYN that the kernel sends.

        There is no timeout for a single dial, because the kernel's next SYN may succeed.
        """
        if not self._spend(place[0]):
            return PunchDialResult.BUDGET
        end = PunchDialResult.NO_ANSWER
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._count_again, place, nursery.cancel_scope)
            end = await self._connect(place)
            nursery.cancel_scope.cancel()
        return end

    async def _count_again(self, place: Place, scope: trio.CancelScope) -> None:
        """Count each SYN that the kernel repeats. Cancel the dial if the budget is used up."""
        for pause in _AGAIN_S:
            await trio.sleep(pause)
            if not self._spend(place[0]):
                scope.cancel()

    async def _connect(self, place: Place) -> PunchDialResult:
        """Dial an address, deliver the connection, and shorten the deadline of the other dials."""
        try:
            stream = await self._host.connect(*place, source_port=self._port)
        except ConnectionRefusedError:
            return PunchDialResult.REFUSED
        except OSError:  # no route, or the peer's own dial has reached our listener in the meantime
            return PunchDialResult.NO_ANSWER
        now = trio.current_time()
        self._scope.deadline = min(self._scope.deadline, now + self._limits.grace_s)
        self._deliver(stream, place)
        return PunchDialResult.WORKED


async def stays_silent(byte_stream: ByteStream, limits: PunchLimits) -> bool:
    """Return whether a peer that has dialled our listener sends nothing for `first_byte_s` seconds.

    The dialler of an ordinary connection is the TLS client, and sends first. In hole punching both
    sides dial, and the side with the smaller peer id is the client, whichever dial succeeds. If
    only the dial of the other side succeeds, that side waits for the client to send first. Its
    silence therefore shows that the connection belongs to hole punching. Raises the errors of
    `ByteStream.wait_readable`.
    """
    with trio.move_on_after(limits.first_byte_s):
        await byte_stream.wait_readable()
        return False
    return True
