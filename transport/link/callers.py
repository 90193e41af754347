"""Tasks that wait for a peer's replies on one link, and the alarm for the deadlines of all calls.

One alarm serves all links, because a cancel scope for each call would cost 10 µs.
"""

from collections.abc import Callable
from math import inf

import outcome
import trio

from ..defaults import ALARM_S
from ..errors import LinkClosed
from ..host.seam import Host
from ..lane.events import Answered
from ..lane.lane import Lane
from ..lane.outbox import OutCall


class Callers:
    """Calls of one link that wait for a reply.

    A reply wakes the task that made the call directly.
    """

    def __init__(
        self,
        lane: Lane,
        backlog: int,
        *,
        alarm: Callable[[float], None],
        gave_up: Callable[[OutCall], None],
        ended: Callable[[], LinkClosed | None],
    ) -> None:
        """`backlog` is the number of queued bytes above which new calls wait.

        `alarm(at)` schedules a call of `expire`. `gave_up` is called with a call whose caller waits
        no longer, once a message that tells this to the peer is queued. `ended` returns the error
        with which the link has ended, or None.
        """
        self.waiting: dict[OutCall, trio.lowlevel.Task] = {}
        self._lane = lane
        self._backlog = backlog
        self._alarm = alarm
        self._tell_gave_up = gave_up
        self._ended = ended
        self._room = trio.lowlevel.ParkingLot()

    async def room(self, deadline: float) -> bool:
        """Wait until few enough bytes are queued for a new call. Return False at the deadline.

        Raises LinkClosed if the link ends.
        """
        with trio.move_on_at(deadline):
            while self._lane.outbox.backlog > self._backlog:
                await self._room.park()
                if (ended := self._ended()) is not None:
                    raise ended
            return True
        return False

    def make_room(self) -> None:
        """Wake the tasks that wait in `room`, because few enough bytes are queued again."""
        self._room.unpark_all()

    async def answer(self, call: OutCall, deadline: float) -> Answered | None:
        """Wait for the reply to `call`, and return it. Return None at the deadline.

        Raises LinkClosed if the link ends. If cancelled, the peer is told that no reply is needed.
        """
        call.deadline = deadline
        self.waiting[call] = trio.lowlevel.current_task()
        self._alarm(deadline)

        def abort(_: object) -> trio.lowlevel.Abort:
            self.waiting.pop(call, None)
            self._give_up(call)
            return trio.lowlevel.Abort.SUCCEEDED

        answered: Answered | None = await trio.lowlevel.wait_task_rescheduled(abort)
        return answered

    def answered(self, event: Answered) -> None:
        """Wake the task that waits for this reply."""
        self._wake(event.call, outcome.Value(event))

    def expire(self, now: float) -> float:
        """End the calls whose deadline has passed. Return the time of the next deadline, infinity
        if there is none."""
        for call in [call for call in self.waiting if call.deadline <= now]:
            self._wake(call, outcome.Value(None))
            self._give_up(call)
        return min((call.deadline for call in self.waiting), default=inf)

    def end(self) -> None:
        """Fail all waiting tasks with the error that has ended the link."""
        for call in list(self.waiting):
            if (ended := self._ended()) is not None:
                self._wake(call, outcome.Error(ended))
        self._room.unpark_all()

    def _give_up(self, call: OutCall) -> None:
        """Tell the peer that a call needs no reply any more."""
        self._lane.give_up(call)
        self._tell_gave_up(call)

    def _wake(self, call: OutCall, result: outcome.Outcome[object]) -> None:
        """Wake the task that waits for a call with a result or an error."""
        if (task := self.waiting.pop(call, None)) is not None:
            trio.lowlevel.reschedule(task, result)


class Alarm:
    """Alarm that calls `expire(now)` at the earliest time that was passed to `set`.

    `expire` returns the time of the next alarm, infinity for none. Times are seconds on the host's
    clock. The first alarm is on time. Later ones may be up to `ALARM_S` late, so that one call of
    `expire` handles many deadlines.
    """

    def __init__(self, host: Host, expire: Callable[[float], float]) -> None:
        self._host = host
        self._expire = expire
        self._at = inf
        self._scope: trio.CancelScope | None = None

    def set(self, at: float) -> None:
        """Schedule an alarm at the time `at` or earlier."""
        if at < self._at:
            self._at = at
            if self._scope is not None:
                self._scope.deadline = at

    def move(self, at: float) -> None:
        """Schedule the next alarm at the time `at`, which may be later than before."""
        if at != self._at:
            self._at = at
            if self._scope is not None:
                self._scope.deadline = at

    async def run(self) -> None:
        """Wait for alarms and call `expire`, until cancelled."""
        while True:
            with trio.CancelScope(deadline=self._at) as self._scope:
                await trio.sleep_forever()
            self._scope, self._at = None, inf
            now = self._host.now()
            self.set(max(self._expire(now), now + ALARM_S))
