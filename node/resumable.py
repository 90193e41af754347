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
        kept = self._answers[token] = ResumableAnswer[Event, Result](token, owner, self._host.now())
        self._begun.set()
        self._nursery.start_soon(self._generate, kept, work)
        return kept

    def find(self, token: str, owner: str) -> ResumableAnswer[Event, Result]:
        """Return an answer of `owner`. Raises ControlError `unknown-answer`, also if it is that of
        another owner."""
        kept = self._answers.get(token)
        if kept is None or not hmac.compare_digest(kept.owner.encode(), owner.encode()):
            raise ControlError(
                "unknown-answer",
                "this daemon has no such answer (any more)",
                hint="send the request again; with the same `seed`, the text is the same",
            )
        return kept

    async def follow(
        self,
        kept: ResumableAnswer[Event, Result],
        since: int,
        emit: Callable[[Event], Awaitable[None]],
    ) -> Result:
        """Emit the events of an answer from number `since` on, and return its result.

        Raises the ShoalError with which it ended, and ControlError `events-gone` if an event is not
        kept any more.
        """
        if since > kept.first + len(kept.events):
            raise ControlError("bad-request", f"the answer has no {since} events yet")
        kept.clients += 1
        try:
            while True:
                if since < kept.first:
                    raise ControlError(
                        "events-gone",
                        "the beginning of the answer is not kept any more",
                        hint="send the request again; with the same `seed`, the text is the same",
                    )
                while since < kept.first + len(kept.events):
                    event, _ = kept.events[since - kept.first]
                    since += 1
                    await emit(event)
                    if since > kept.reached:
                        kept.reached = since
                        kept.tell()
                    if since < kept.first:
                        break
                if since == kept.first + len(kept.events) and kept.done:
                    return self._outcome(kept)
                if since == kept.first + len(kept.events):
                    await kept.changed.wait()
        finally:
            kept.clients -= 1
            kept.tell()
            kept.left_at = self._host.now()

    def forget(self, kept: ResumableAnswer[Event, Result]) -> None:
        """Stop an answer and drop it."""
        kept.scope.cancel()
        self._answers.pop(kept.token, None)

    @staticmethod
    def _outcome(kept: ResumableAnswer[Event, Result]) -> Result:
        if kept.error is not None:
            raise kept.error
        assert kept.result is not None
        return kept.result

    async def _generate(
        self,
        kept: ResumableAnswer[Event, Result],
        work: Callable[[Note[Event]], Awaitable[Result]],
    ) -> None:
        async def note(event: Event, size: int) -> None:
            await trio.lowlevel.checkpoint()
            while kept.clients and kept.size > defaults.KEPT_BYTES and kept.reached <= kept.first:
                await kept.changed.wait()
            kept.events.append((event, size))
            kept.size += size
            self._bound(kept)
            kept.tell()

        with kept.scope:
            try:
                with self._guard.around("an answer", instead=_mishap):
                    kept.result = await work(note)
                    kept.result_size = self._weigh(kept.result)
            except ShoalError as error:
                kept.error = error
        if kept.result is None and kept.error is None:
            kept.error = ControlError("cancelled", "the answer was stopped: no client was left")
        kept.done = True
        kept.tell()

    def _bound(self, kept: ResumableAnswer[Event, Result]) -> None:
        """Drop the oldest events of an answer that has too many, and answers without a client if
        all together have too many."""
        while kept.size > defaults.KEPT_BYTES and len(kept.events) > 1:
            if kept.clients and kept.first >= kept.reached:
                break
            kept.size -= kept.events.popleft()[1]
            kept.first += 1
        while self.bytes > defaults.KEPT_BYTES_IN_ALL and self._drop_one():
            pass

    def _has_room(self, owner: str) -> bool:
        """Return whether one more answer may be kept, after dropping one without a client."""
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
        for kept in [each for each in self._answers.values() if not each.clients]:
            alone = now - kept.left_at
            if not kept.done and alone > self._alone:
                kept.scope.cancel()
            if alone > defaults.KEPT_TIME:
                self.forget(kept)


def _mishap() -> ControlError:
    return ControlError("mishap", "the daemon ran into a bug", hint="`shoal status` shows it")
