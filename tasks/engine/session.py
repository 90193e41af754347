"""What the worker keeps of one session: its KV, the spans waiting, and answers for repeats."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

from .defaults import KEPT_ANSWERS, KEPT_BYTES
from .interface import SessionId, Span
from .wire import Buffer, Header

SpanKey = tuple[int, int, int]  # epoch, start, count


class State(Protocol):
    """A session's keys and values over a shard's layers: positions 0 … length-1 are valid."""

    tokens: int  # positions reserved
    length: int

    def free(self) -> None:
        """Give the memory back; the object is of no use afterwards."""
        ...

    def truncate(self, length: int) -> None: ...

    def export(self) -> bytes:
        """An exact copy: docs/spec/engine.md, session."""
        ...

    def install(self, state: bytes | memoryview) -> int:
        """Take over an exported state; returns its length. Raises EngineError `bad-state`."""
        ...

    def copy_from(self, other: Any) -> None:
        """Raises EngineError `bad-state` when the other has more positions than fit."""
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
    """A span under way. `done` counts input positions computed, `emitted` tokens sent."""

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
        self.scheduled = False  # has a turn coming
        self._kept: deque[Answer] = deque()

    @property
    def busy(self) -> bool:
        return self.job is not None or bool(self.waiting)

    def raise_epoch(self, epoch: int) -> bool:
        """Adopt a higher epoch; True when it was one. Kept answers are forgotten."""
        if epoch <= self.epoch:
            return False
        self.epoch = epoch
        self._kept.clear()
        return True

    def kept(self, key: SpanKey) -> Answer | None:
        return next((answer for answer in self._kept if answer.key == key), None)

    def keep(self, answer: Answer) -> None:
        """Keep the newest, and older ones while they are few and small."""
        self._kept.append(answer)
        while len(self._kept) > KEPT_ANSWERS or (
            len(self._kept) > 1 and sum(item.bytes for item in self._kept) > KEPT_BYTES
        ):
            self._kept.popleft()

    def forget(self) -> None:
        """The state changed by other means than spans: nothing can be repeated."""
        self._kept.clear()
