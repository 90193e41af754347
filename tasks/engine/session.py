"""State of one session in the worker: KV, waiting spans, and stored answers for repeated spans."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .activations.layout import packed_bytes
from .adapters import LoadedAdapter
from .defaults import KEPT_ANSWERS, KEPT_BYTES, WAITING_DRAFTS
from .errors import EngineError
from .families import DTYPE_BYTES
from .interface import SessionId, Span
from .kv.blocks import BlockTable
from .kv.hostcopies import HostCopy
from .kv.states import SessionStates
from .scheduling.shares import Share
from .shard import ChosenToken, LoadedShard
from .spans.rules import SessionRules
from .wire import Buffer, Header

if TYPE_CHECKING:
    from .kv.ahead import RunsAhead
    from .kv.arrival import Arrival, Doubt

SpanKey = tuple[int, int, int]  # (epoch, start, count)


@dataclass(slots=True)
class AnsweredSpan:
    """The events that answered a span, as frames, stored in case the span is repeated."""

    key: SpanKey
    frames: list[tuple[Header, Buffer]] = field(default_factory=list)
    bytes: int = 0

    def add(self, header: Header, payload: Buffer = b"") -> None:
        """Append a frame."""
        self.frames.append((header, payload))
        self.bytes += len(payload) + 512  # a header's approximate size in memory


@dataclass(slots=True)
class SpanInProgress:
    """A span in progress. `done` counts computed input positions, `emitted` counts sent tokens.

    `drafts` are the tokens of all positions but the first one, if they are guesses that the chosen
    tokens must equal. `rows` are the outputs of the positions from which tokens are chosen.
    """

    span: Span
    answer: AnsweredSpan
    source: Any  # token ids, or hidden states, as `Compute.source` returns them
    start: int
    count: int
    done: int = 0
    emitted: int = 0
    outputs: list[Any] = field(default_factory=list)
    seconds: float = 0.0
    predicted: float = 0.0  # seconds
    drafts: tuple[int, ...] = ()
    rows: list[Any] = field(default_factory=list)
    chosen: Sequence[
        ChosenToken | EngineError
    ] = ()  # from when tokens are chosen until they are sent
    reference: bool = False  # computed again without the native kernels

    def rewind(self) -> None:
        """Begin again with the present input, without the native kernels."""
        self.done, self.reference = 0, True
        self.outputs, self.rows, self.chosen = [], [], ()

    @property
    def position(self) -> int:
        """The next position to compute."""
        return self.start + self.done

    @property
    def decode(self) -> bool:
        """Whether the positions continue a text, which are computed one by one."""
        return self.count == 1 or self.span.draft or bool(self.drafts)


class Session:
    """An open session in the worker."""

    def __init__(
        self,
        name: SessionId,
        owner: str,
        shard: LoadedShard,
        table: BlockTable,
        share: Share,
        age: int,
    ) -> None:
        self.name = name
        self.owner = owner  # the gateway, whose sessions share named blocks
        self.shard = shard
        self.table = table
        self.share = share
        self.adapter: LoadedAdapter | None = None
        self.states: SessionStates | None = None  # of recurrent layers
        self.rules: SessionRules | None = None  # that change its logits
        self.own = False  # whether it is of the machine's own gateway
        self.arrival: Arrival | None = None  # parts of KV from elsewhere, until the next span
        self.ahead: RunsAhead | None = None  # parts of KV for positions that it has not reached
        self.doubt: Doubt | None = None  # what its next positions must have, or it ends
        self.copy: HostCopy | None = None  # its KV, while it has left the device
        self.packed = False  # whether hidden states come and go packed
        self.age = age  # grows from session to session: the youngest has the highest
        self.epoch = 0
        self.waiting: deque[Span] = deque()
        self.current: SpanInProgress | None = None
        self.sampled: tuple[int, int] | None = None  # position of the last token, and the token
        # Guesses for the text of the loop, by windows: the first position, and the tokens.
        self.guesses: deque[tuple[int, tuple[int, ...]]] = deque(maxlen=WAITING_DRAFTS)
        self._kept: deque[AnsweredSpan] = deque()

    @property
    def adapter_root(self) -> str:
        """The root of the session's adapter, or ""."""
        return self.adapter.root if self.adapter is not None else ""

    @property
    def row_bytes(self) -> int:
        """Size in bytes of a hidden state, as input or as output."""
        compute = self.shard.compute
        hidden = compute.arch.hidden
        return packed_bytes(hidden) if self.packed else hidden * DTYPE_BYTES[compute.dtype]

    def reaches(self, start: int) -> bool:
        """Return whether the states of recurrent layers after `start` positions are there."""
        return self.states is None or self.states.reaches(start)

    @property
    def busy(self) -> bool:
        """Whether a span is in progress or waits."""
        return self.current is not None or bool(self.waiting)

    def guess(self, start: int, tokens: tuple[int, ...]) -> None:
        """Remember guesses for the positions from `start` on."""
        self.guesses.append((start, tokens))

    def guessed(self, position: int, token: int) -> tuple[int, ...]:
        """Return the guesses for the positions after `position`, where the text has `token`.

        If a guess for `position` itself was another token, all that follow it are forgotten.
        """
        while self.guesses:
            start, tokens = self.guesses[0]
            if position < start:
                return ()
            if position < start + len(tokens):
                if tokens[position - start] == token:
                    return tokens[position - start + 1 :]
                self.guesses.clear()
                return ()
            self.guesses.popleft()
        return ()

    def is_overtaken(self, span: Span) -> bool:
        """Return whether a later span replaces the positions of a window."""
        return any(later.start <= span.start for later in self.waiting)

    def is_left_out(self, span: Span) -> bool:
        """Return whether a waiting span leaves out all positions of this one, which every stage of
        the chain has."""
        end = span.start + span.count
        return any(
            later.behind is not None and later.behind <= span.start and end <= later.start
            for later in self.waiting
        )

    def raise_epoch(self, epoch: int) -> bool:
        """Adopt a higher epoch and drop the stored answers. Return whether `epoch` was higher."""
        if epoch <= self.epoch:
            return False
        self.epoch = epoch
        self._kept.clear()
        return True

    def kept(self, key: SpanKey) -> AnsweredSpan | None:
        """Return the stored answer to a span, or None if there is none."""
        return next((answer for answer in self._kept if answer.key == key), None)

    def keep(self, answer: AnsweredSpan) -> None:
        """Store an answer, and drop the oldest answers beyond the limits."""
        self._kept.append(answer)
        while len(self._kept) > KEPT_ANSWERS or (
            len(self._kept) > 1 and sum(item.bytes for item in self._kept) > KEPT_BYTES
        ):
            self._kept.popleft()

    def forget(self) -> None:
        """Drop all stored answers, because something other than a span has changed the KV."""
        self._kept.clear()
