"""Answers that go on and are kept for a while when their client's connection drops.

Specified in docs/spec/control.md and docs/spec/api.md, *Resuming*.
"""

import hmac
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import trio

from ..transport.errors import ShoalError
from ..transport.guard import Guard
from ..transport.host.seam import Host
from . import defaults
from .errors import ControlError

Event = TypeVar("Event")
Result = TypeVar("Result")
Note = Callable[[Event, int], Awaitable[None]]
"""Takes an event and its size in bytes. Waits while the client that follows is far behind."""


@dataclass(slots=True, eq=False)
class ResumableAnswer(Generic[Event, Result]):
    """One answer: its latest events, and its result when it is complete."""

    token: str
    owner: str
    left_at: float  # when the last client left
    events: deque[tuple[Event, int]] = field(default_factory=deque)
    first: int = 0  # number of the first event that is kept
    size: int = 0  # bytes of the events that are kept
    result_size: int = 0
    clients: int = 0
    reached: int = 0  # number of the next event for the client that is furthest
    result: Result | None = None
    error: ShoalError | None = None
    done: bool = False
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    changed: trio.Event = field(default_factory=trio.Event)

    def tell(self) -> None:
        """Wake the clients that follow."""
        self.changed.set()
        self.changed = trio.Event()


class ResumableAnswers(Generic[Event, Result]):
    """Answers by their tokens. `run` must be running.

    An answer that no client follows is stopped after KEPT_ALONE seconds, and forgotten after
    KEPT_TIME seconds. Their number and their bytes are limited.
    """

    def __init__(
        self,
        host: Host,
        guard: Guard,
        *,
        alone: float = defaults.KEPT_ALONE,
        weigh: Callable[[Result], int] = lambda result: 0,
    ) -> None:
        """Create a store. `alone` is in seconds, `weigh` returns the bytes of a result."""
        self._host = host
        self._alone = alone
        self._weigh = weigh
        self._guard = guard
        self._answers: dict[str, ResumableAnswer[Event, Result]] = {}
        self._nursery: trio.Nursery | None = None
        self._begun = trio.Event()  # set by `begin`, so that no timer runs while there is no answer

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def bytes(self) -> int:
        """Bytes of the events of all answers."""
        return sum(each.size + each.result_size for each in self._answers.values())

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Generate answers, and forget those that no client follows, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            while True:
                if not self._answers:
                    self._begun = trio.Event()
                    await self._begun.wait()
                await trio.sleep(defaults.KEPT_LOOK)
                self._tidy()

    def begin(
        self, owner: str, work: Callable[[Note[Event]], Awaitable[Result]]
    ) -> ResumableAnswer[Event, Result] | None:
        """Start to generate an answer of `owner`. Return it, or None if too many are kept; then it
        must be generated without."""
        if self._nursery is None or not self._has_room(owner):
            return None
        token = self._host.entropy(defaults.KEPT_TOKEN_BYTES).hex()
        answer = self._answers[token] = ResumableAnswer[Event, Result](
            token, owner, self._host.now()
        )
        self._begun.set()
        self._nursery.start_soon(self._generate, answer, work)
        return answer

    def find(self, token: str, owner: str) -> ResumableAnswer[Event, Result]:
        """Return an answer of `owner`. Raises ControlError `unknown-answer`, also if it is that of
        another owner."""
        answer = self._answers.get(token)
        if answer is None or not hmac.compare_digest(answer.owner.encode(), owner.encode()):
            raise ControlError(
                "unknown-answer",
                "this daemon has no such answer (any more)",
                hint="send the request again; with the same `seed`, the text is the same",
            )
        return answer

    async def follow(
        self,
        answer: ResumableAnswer[Event, Result],
        since: int,
        emit: Callable[[Event], Awaitable[None]],
    ) -> Result:
        """Emit the events of an answer from number `since` on, and return its result.

        Raises the ShoalError with which it ended, and ControlError `events-gone` if an event is not
        kept any more.
        """
        if since > answer.first + len(answer.events):
            raise ControlError("bad-request", f"the answer has no {since} events yet")
        answer.clients += 1
        try:
            while True:
                if since < answer.first:
                    raise ControlError(
                        "events-gone",
                        "the beginning of the answer is not kept any more",
                        hint="send the request again; with the same `seed`, the text is the same",
                    )
                while since < answer.first + len(answer.events):
                    event, _ = answer.events[since - answer.first]
                    since += 1
                    await emit(event)
                    if since > answer.reached:
                        answer.reached = since
                        answer.tell()
                    if since < answer.first:
                        break
                if since == answer.first + len(answer.events) and answer.done:
                    return self._outcome(answer)
                if since == answer.first + len(answer.events):
                    await answer.changed.wait()
        finally:
            answer.clients -= 1
            answer.tell()
            answer.left_at = self._host.now()

    def forget(self, answer: ResumableAnswer[Event, Result]) -> None:
        """Stop an answer and drop it."""
        answer.scope.cancel()
        self._answers.pop(answer.token, None)

    @staticmethod
    def _outcome(answer: ResumableAnswer[Event, Result]) -> Result:
        if answer.error is not None:
            raise answer.error
        assert answer.result is not None
        return answer.result

    async def _generate(
        self,
        answer: ResumableAnswer[Event, Result],
        work: Callable[[Note[Event]], Awaitable[Result]],
    ) -> None:
        async def note(event: Event, size: int) -> None:
            await trio.lowlevel.checkpoint()
            while (
                answer.clients
                and answer.size > defaults.KEPT_BYTES
                and answer.reached <= answer.first
            ):
                await answer.changed.wait()
            answer.events.append((event, size))
            answer.size += size
            self._bound(answer)
            answer.tell()

        with answer.scope:
            try:
                with self._guard.around("an answer", instead=_mishap):
                    answer.result = await work(note)
                    answer.result_size = self._weigh(answer.result)
            except ShoalError as error:
                answer.error = error
        if answer.result is None and answer.error is None:
            answer.error = ControlError("cancelled", "the answer was stopped: no client was left")
        answer.done = True
        answer.tell()

    def _bound(self, answer: ResumableAnswer[Event, Result]) -> None:
        """Drop the oldest events of an answer that has too many, and answers without a client if
        all together have too many."""
        while answer.size > defaults.KEPT_BYTES and len(answer.events) > 1:
            if answer.clients and answer.first >= answer.reached:
                break
            answer.size -= answer.events.popleft()[1]
            answer.first += 1
        while self.bytes > defaults.KEPT_BYTES_IN_ALL and self._drop_one():
            pass

    def _has_room(self, owner: str) -> bool:
        """Return whether one more answer may be stored, after dropping one without a client."""
        own = sum(each.owner == owner for each in self._answers.values())
        if own >= defaults.KEPT_OF_ONE and not self._drop_one(owner):
            return False
        return len(self._answers) < defaults.KEPT_ANSWERS or self._drop_one()

    def _drop_one(self, owner: str | None = None) -> bool:
        """Drop the answer that was left first. Return whether there was one without a client."""
        alone = [
            each
            for each in self._answers.values()
            if not each.clients and owner in (None, each.owner)
        ]
        if alone:
            self.forget(min(alone, key=lambda each: each.left_at))
        return bool(alone)

    def _tidy(self) -> None:
        now = self._host.now()
        for answer in [each for each in self._answers.values() if not each.clients]:
            alone = now - answer.left_at
            if not answer.done and alone > self._alone:
                answer.scope.cancel()
            if alone > defaults.KEPT_TIME:
                self.forget(answer)


def _mishap() -> ControlError:
    return ControlError("mishap", "the daemon ran into a bug", hint="`shoal status` shows it")
