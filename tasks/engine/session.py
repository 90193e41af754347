"""State of one session in the worker: its KV, waiting spans, and answers for repeated spans."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from .defaults import KEPT_ANSWERS, KEPT_BYTES
from .interface import SessionId, Span
from .wire import Buffer, Header

SpanKey = tuple[int, int, int]  # epoch, start, count


class State(Protocol):
    """A session's keys and values over a shard's layers: positions 0 … length-1 are valid."""

    tokens: int  # positions reserved
    length: int

    def free(self) -> None:
        """Free the memory. The object must not be used afterwards."""
        ...

    def truncate(self, length: int) -> None: ...

    def export(self) -> bytes:
        """Return an exact copy of the state. Format: docs/spec/engine.md, session."""
        ...

    def install(self, state: bytes | memoryview) -> int:
        """Install an exported state. Return its length. Raises EngineError `bad-state`."""
        ...

    def copy_from(self, other: Self) -> None:
        """Copy another state. Raises EngineError `bad-state` if it has more positions than fit."""
        ...


@dataclass(slots=True)
class Answer:
    """The events that answered a span, as frames, kept for a repeat."""

    key: SpanKey
    frames: list[tuple[Header, Buffer]] = field(default_factory=list)
    bytes: int = 0

    def add(self, header: Header, payload: Buffer = b"") -> None:
        self.frames.append((header, payload))
        self.bytes += len(payload) + 512  # a header's rough size in memory


@dataclass(slots=True)
class Job:
    """A span in progress. `done` counts input positions computed, `emitted` tokens sent."""

    span: Span
    answer: Answer
    source: Any  # a tensor: token ids (T), or hidden states (T x hidden)
    start: int
    count: int
    done: int = 0
    emitted: int = 0
    outputs: list[Any] = field(default_factory=list)
    seconds: float = 0.0


class Session:
    """One open session."""

    def __init__(self, name: SessionId, kv: State) -> None:
        self.name = name
        self.kv = kv
        self.epoch = 0
        self.waiting: deque[Span] = deque()
        self.job: Job | None = None
        self.scheduled = False  # whether it is queued for a step
        self._kept: deque[Answer] = deque()

    @property
    def busy(self) -> bool:
        return self.job is not None or bool(self.waiting)

    def raise_epoch(self, epoch: int) -> bool:
        """Adopt a higher epoch and forget the stored answers. Return whether it was higher."""
        if epoch <= self.epoch:
            return False
        self.epoch = epoch
        self._kept.clear()
        return True

    def kept(self, key: SpanKey) -> Answer | None:
        return next((answer for answer in self._kept if answer.key == key), None)

    def keep(self, answer: Answer) -> None:
        """Store an answer, and drop the oldest ones beyond the limits."""
        self._kept.append(answer)
        while len(self._kept) > KEPT_ANSWERS or (
            len(self._kept) > 1 and sum(item.bytes for item in self._kept) > KEPT_BYTES
        ):
            self._kept.popleft()

    def forget(self) -> None:
        """Forget all answers, because the state was changed by something other than a span."""
        self._kept.clear()
