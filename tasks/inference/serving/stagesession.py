"""One session at a stage, and the shard that it uses. No I/O."""

import math
from collections import deque
from dataclasses import dataclass, field

import trio

from ....transport.identity import PeerId
from ...defaults import ANSWER_SOON, COPY_PART_BYTES, SESSION_RESTS, SESSION_SILENT
from ...drafting.inputs import Inputs
from ...engine.activations.layout import packed_bytes
from ...engine.interface import SessionId
from ...engine.kv.blocks import BLOCK, GROWTH, blocks_for
from ...placement.shard import ShardProperties
from ...routing.affinity import CachedNames
from ...routing.waiting import AnswerLength, StepTimes
from ...usage.metering import Use
from ..memoryqueue import MemoryQueue
from ..messages import Open
from ..speed import ServedSpeed
from ..surviving.rebuilding import Rebuilding
from ..surviving.sentlog import SentLog

Name = tuple[PeerId, SessionId, int]
"""(gateway, the session id that the gateway chose, index of the stage in the chain)."""


@dataclass(slots=True, eq=False)
class ServedShard:
    """A shard that the engine has loaded under `number`, and what was measured of it.

    `names` are the prefixes that it has probably cached. `answer` is the mean length of answers.
    """

    number: int
    shard: ShardProperties
    used: float  # when a session was last open
    speed: ServedSpeed = field(default_factory=ServedSpeed)
    queue: MemoryQueue = field(default_factory=MemoryQueue)
    times: StepTimes = field(init=False)
    answer: AnswerLength = field(default_factory=AnswerLength)
    tunings: int = 0  # that are open
    names: CachedNames = field(init=False)

    def __post_init__(self) -> None:
        costs = self.speed.costs
        self.times = StepTimes(costs.row_s, costs.step_s + costs.row_s)
        self.names = CachedNames(self.shard.kv_tokens)


@dataclass(slots=True, eq=False)
class WaitingSpan:
    """A span that the engine has not answered yet.

    `size` is that of its input in bytes. `veiled` are the token ids of a window, as the next stage
    gets them. `behind` is where the positions begin that it leaves out, or None.
    """

    size: int
    seconds: float  # that earlier stages computed; 0 once it was passed on
    token: bool = False  # whether a token is requested
    draft: bool = False
    veiled: bytes = b""
    behind: int | None = None


@dataclass(slots=True, eq=False)
class StageSession:
    """State of an open session at this stage."""

    open: Open
    served: ServedShard
    gateway: PeerId
    use: Use  # the counter to which the session's usage is added
    engine_id: SessionId
    log: SentLog
    heard: float  # when the last message arrived
    opened: float = 0.0  # when it was admitted
    awaits: tuple[trio.Event, ...] = ()  # set when the engine has the memory for it
    failed: str = ""  # code of the failure that has ended it
    source: PeerId | None = None  # the node from which KV was fetched for it
    made: int = 0  # tokens sampled at this stage
    begun: bool = False  # whether an input has come
    asked: bool = False  # whether a token was requested; later inputs are not part of the prompt
    counted: int | None = None  # inputs whose tokens are counted, from the end of the prompt on
    reached: int = 0  # positions that have been computed or are waiting
    passed: int = 0  # positions of which the state is complete: their output has left
    rebuilding: Rebuilding | None = None  # after its chain was changed
    changes: int = 0  # of its chain
    copied: dict[PeerId, int] = field(default_factory=dict)  # positions that standbys have
    copy_size: int = COPY_PART_BYTES  # of the next part
    copying: bool = False  # whether a part is being copied, or written at a standby
    told_lost: bool = False  # whether the gateway knows that the link to a neighbour has ended
    computed: int = 0  # positions that are cached or have been computed
    queued: deque[WaitingSpan] = field(default_factory=deque)  # in the order of their answers
    inputs: Inputs | None = None  # at the first stage, from the end of the prompt on
    ended: bool = False  # whether the last token was sent
    beside: bool = False  # whether KV of others may arrive while it computes its prompt
    fetch: trio.CancelScope = field(default_factory=trio.CancelScope)  # of that KV
    skips: bool = False  # whether its spans may leave out positions that all stages have
    fetching: bool = False  # whether the gateway will hear of more of them

    def right(self, end: int) -> int:
        """Note that the inputs below `end` were right. Return how many tokens of the answer follow
        from those that were not counted before."""
        if self.counted is None:
            return 0
        more = max(0, min(end, self.passed) - self.counted)
        self.counted += more
        return more

    def begin_epoch(self, rebuilding: Rebuilding) -> None:
        """Forget the spans of the previous epoch. The engine's later answers to them are
        ignored."""
        self.rebuilding = rebuilding
        self.changes += 1
        self.made = 0
        self.told_lost = False
        self.queued.clear()
        self.inputs, self.ended = None, False

    @property
    def name(self) -> Name:
        return self.gateway, self.open.session, self.open.index

    @property
    def blocks(self) -> int:
        """Blocks of KV that the engine has promised to the session, approximately."""
        order = self.open
        growing = self.reached + GROWTH * BLOCK if self.reached > order.soon else order.soon
        return blocks_for(min(order.tokens, growing))

    @property
    def prompt(self) -> int:
        """Estimated length of the prompt in positions, at most ANSWER_SOON too short. The session
        only says how many positions it needs soon, which include the beginning of the answer."""
        return self.open.soon - min(ANSWER_SOON, self.open.soon - 1)

    @property
    def pending(self) -> int:
        """Positions of the prompt that have not been computed yet."""
        return max(0, self.prompt - self.computed) if not self.made else 0

    def expected(self, answer: AnswerLength) -> float:
        """Return how many tokens the answer will probably still have."""
        end = self.open.tokens - max(self.reached, self.prompt)
        return min(float(max(end, 0)), answer.tokens)

    def use_provider(self, peer: PeerId) -> None:
        """Record the provider of KV that arrives while the session computes."""
        self.source, self.beside = peer, True

    def note_computed(self, end: int, rows: int, seconds: float, texts: int) -> None:
        """Record that the engine has computed `rows` positions up to `end`, beside `texts`
        texts."""
        self.computed = max(self.computed, end)
        if self.beside and rows > 1:
            return  # some rows may have come from elsewhere
        if rows > 1:
            self.served.times.note_prompt(rows, seconds)
        else:
            self.served.times.note_token(texts, seconds)

    @property
    def exact(self) -> bool:
        """Whether the session must not use KV that was copied in int8.

        This holds for all sessions in float32, because their text is promised to be the same each
        time.
        """
        return self.open.exact or self.served.shard.dtype == "float32"

    @property
    def waiting(self) -> int:
        """Number of spans that the engine has not answered yet."""
        return len(self.queued)

    @property
    def rests_at(self) -> float:
        """Time from which the session rests, unless a message arrives before. Others may then have
        its place and its memory.

        Later stages are silent while earlier ones compute, and a stage may take long to open if it
        fetches an adapter.
        """
        if self.waiting:
            return math.inf
        begins = not (self.reached or self.open.index or self.open.adapter)
        return self.heard + (SESSION_SILENT if begins else SESSION_RESTS)

    @property
    def waiting_bytes(self) -> int:
        """Size of their inputs in bytes."""
        return sum(span.size for span in self.queued)

    @property
    def single(self) -> bool:
        """Whether this stage is the only one of the chain."""
        return len(self.open.stages) == 1

    @property
    def packed(self) -> bool:
        """Whether hidden states come and go packed (engine/activations/layout.py)."""
        return self.open.activations == "int8"

    @property
    def row_bytes(self) -> int:
        """Size in bytes of a hidden state from or for another stage."""
        held = self.served.shard
        return packed_bytes(held.hidden) if self.packed else held.token_bytes

    @property
    def before(self) -> tuple[str, ...]:
        """Dependencies of this stage's inputs beside the tokens: the stages before this one,
        and whether they have packed them."""
        before = self.open.stages[: self.open.index]
        return (*before, self.open.activations) if before and self.packed else before

    @property
    def previous(self) -> PeerId:
        """The previous stage, or the gateway before the first stage."""
        return self.open.stages[self.open.index - 1] if self.open.index else self.gateway

    @property
    def next(self) -> PeerId:
        """The next stage. After the head, this is the first stage."""
        return self.open.stages[(self.open.index + 1) % len(self.open.stages)]
