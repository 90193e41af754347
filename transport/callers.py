"""The tasks that wait for a peer's answers."""

from collections.abc import Callable
from math import inf
from typing import Any

import outcome
import trio

from .errors import LinkClosed
from .events import Answered
from .lane import Lane
from .outbox import OutCall


class Callers:
    """One link's calls in flight: an answer wakes its caller directly."""

    def __init__(
        self,
        lane: Lane,
        backlog: int,
        *,
        alarm: Callable[[float], None],
        gave_up: Callable[[], None],
        ended: Callable[[], LinkClosed | None],
    ) -> None:
        """New calls wait while more than `backlog` bytes do. `alarm` is told when `expire` should
        be called, `gave_up` called when the peer is to be told that a call needs no answer;
        `ended` is the link's end, if it has."""
        self.waiting: set[OutCall] = set()
        self._lane = lane
        self._backlog = backlog
        self._alarm = alarm
        self._tell_gave_up = gave_up
        self._ended = ended
        self._room = trio.lowlevel.ParkingLot()

    async def room(self, deadline: float) -> bool:
        """Wait until the backlog is short enough for a new call; False at the deadline. Raises
        LinkClosed."""
        with trio.move_on_at(deadline):
            while self._lane.outbox.backlog > self._backlog:
                await self._room.park()
                if (ended := self._ended()) is not None:
                    raise ended
            return True
        return False

    def make_room(self) -> None:
        """The backlog is short enough again."""
        self._room.unpark_all()

    async def answer(self, call: OutCall, deadline: float) -> Answered | None:
        """Wait for it; None at the deadline. Raises LinkClosed."""
        call.context = trio.lowlevel.current_task()
        call.deadline = deadline
        self.waiting.add(call)
        self._alarm(deadline)

        def abort(_: Any) -> trio.lowlevel.Abort:
            self.waiting.discard(call)
            self._give_up(call)
            return trio.lowlevel.Abort.SUCCEEDED

        answered: Answered | None = await trio.lowlevel.wait_task_rescheduled(abort)
        return answered

    def answered(self, event: Answered) -> None:
        """Wake who asked."""
        self._wake(event.call, outcome.Value(event))

    def expire(self, now: float) -> float:
        """End the calls whose time is over; the earliest deadline of the others."""
        for call in [call for call in self.waiting if call.deadline <= now]:
            self._wake(call, outcome.Value(None))
            self._give_up(call)
        return min((call.deadline for call in self.waiting), default=inf)

    def end(self) -> None:
        """The link is over: all raise that."""
        for call in list(self.waiting):
            if (ended := self._ended()) is not None:
                self._wake(call, outcome.Error(ended))
        self._room.unpark_all()

    def _give_up(self, call: OutCall) -> None:
        self._lane.give_up(call)
        self._tell_gave_up()

    def _wake(self, call: OutCall, result: outcome.Outcome[Any]) -> None:
        if call in self.waiting:
            self.waiting.discard(call)
            trio.lowlevel.reschedule(call.context, result)
