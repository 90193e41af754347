"""Interface of the engine for the rest of shoal. Spec: docs/spec/engine.md.

An engine holds *shards* of models and advances *sessions* through a shard by *spans*. Spans
are submitted without waiting, and events answer them, in the order of submission per session. The
real engine is a worker process (`process.py` in the daemon, `worker.py` in the worker). The
simulator has another implementation of the same protocol.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple, Protocol

from msgspec import Meta

from ...transport.message import Natural, Row
from ..costs.shardcosts import NO_COSTS, ShardCosts
from ..defaults import MAX_BIAS, MAX_LAYERS

if TYPE_CHECKING:
    from .adapters import LoadAdapter

SessionId = bytes  # 16 random bytes, chosen by the gateway

DType = Literal["float32", "bfloat16"]
Want = Literal["hidden", "logits", "token", "pooled"]


class Parts(Row, frozen=True):
    """The pieces of a model that a shard has: the embedding, layers start:stop, the head."""

    embedding: bool
    start: Annotated[int, Meta(ge=0, le=MAX_LAYERS)]
    stop: Annotated[int, Meta(ge=0, le=MAX_LAYERS)]  # exclusive
    head: bool

    def check(self) -> None:
        """Raise ValueError if the layers are not in order."""
        if self.start > self.stop:
            raise ValueError(f"`parts` has layers {self.start}:{self.stop}")


class TensorSource(Row, frozen=True):
    """One tensor of the shard on disk. Its chunk files, concatenated, are its little-endian values.

    `roles` are Hugging Face parameter names (a tied tensor has two). `dtype` is a safetensors name
    (BF16, F16, F32).
    """

    roles: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[str, ...]  # paths of verified chunk files, in order
    digests: tuple[bytes, ...]  # SHA-256 of each chunk, verified again while loading


@dataclass(frozen=True, slots=True)
class LoadShard:
    """Command to load a shard. `config` is the model's config.json, already checked by
    `families/`."""

    root: str  # the manifest's root, 64 hex digits
    parts: Parts
    config: Mapping[str, object]
    tensors: tuple[TensorSource, ...]
    dtype: DType
    kv_bytes: int  # the most KV of all sessions together


@dataclass(frozen=True, slots=True)
class Loaded:
    """Report on a loaded shard."""

    weight_bytes: int
    kv_token_bytes: int  # KV of one token in all layers of the shard
    seconds: float
    features: frozenset[str]  # abilities of the engine, e.g. {"forward", "logits", "export"}
    exactness: str = ""  # class of shards that compute the same bits
    costs: ShardCosts = NO_COSTS  # measured after loading


class Sampling(NamedTuple):
    """Parameters for the choice of a token. Temperature 0 is greedy. Spec:
    docs/spec/sampling.md."""

    temperature: float = 0.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    seed: int = 0  # 64 bits; the noise depends on (seed, position, token id) only
    min_p: float = 0.0  # least probability of a token, as a part of the likeliest one's


Temperature = Annotated[float, Meta(ge=0.0, le=100.0)]
TopK = Annotated[int, Meta(ge=0, le=2**32 - 1)]
TopP = Annotated[float, Meta(gt=0.0, le=1.0)]
MinP = Annotated[float, Meta(ge=0.0, le=1.0)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
Repetition = Annotated[float, Meta(ge=0.01, le=100.0)]
TokenBias = tuple[Annotated[int, Meta(ge=0, lt=2**31)], Annotated[float, Meta(ge=-100, le=100)]]
Bias = Annotated[tuple[TokenBias, ...], Meta(max_length=MAX_BIAS)]
"""Token ids, ascending, each with what is added to its logit."""
Logprob = Annotated[float, Meta(ge=-1e9, le=1e-3)]
Likely = tuple[int, float]
"""A token id, and its log-probability by the model's own distribution."""
Sampled = tuple[Temperature, TopK, TopP, Natural, MinP]
"""The values of `Sampling` in a message, with their bounds."""


class Rules(Row, frozen=True):
    """Rules that change the logits of a session, in the order in which they apply. Spec:
    docs/spec/sampling.md.

    `bias` is added. If the prompt or the answer has a token, its logit is divided by `repetition`
    when positive, else multiplied by it. If the answer has it, its logit is lowered by `presence`,
    and by `frequency` for each time.
    """

    bias: Bias = ()
    repetition: Repetition = 1.0
    frequency: Penalty = 0.0
    presence: Penalty = 0.0

    @property
    def penalise(self) -> bool:
        """Whether the rules depend on the tokens so far."""
        return self.repetition != 1.0 or self.frequency != 0.0 or self.presence != 0.0

    def check(self) -> None:
        """Raise ValueError if the ids of `bias` are not in ascending order."""
        if any(one >= other for (one, _), (other, _) in pairwise(self.bias)):
            raise ValueError("`sampling` has a `bias` whose ids are not in ascending order")


NO_RULES: Final = Rules()


@dataclass(frozen=True, slots=True)
class Span:
    """Command to advance one session by `count` positions from position `start`.

    If `start` is below the number of cached positions, the positions from `start` on are dropped
    first. If the same (epoch, start, count) is submitted again, the stored result is returned
    without computing. If the epoch is lower than one already seen, the span is refused.

    The input is either `tokens` (if the shard has the embedding) or `hidden` (count x hidden values
    in the shard's dtype, C order). With `steps` > 1, a shard with embedding and head feeds its
    sampled tokens back as input. It emits one TokenEvent per token, until it samples one of
    `stop_ids`, has done `steps` steps, or is cancelled.

    A *window* has `draft`: its input is a guess. Its positions are computed as those of running
    texts, one by one, and it may be dropped. At a head without the embedding, it has both `tokens`
    and `hidden`, and is answered by a TokenEvent for each position whose input was right. At a
    shard with embedding and head, it has no answer: the loop (`steps`) takes its tokens as guesses.

    A span of a chain's session may begin behind positions that are not computed, if their KV is
    here (`bring_kv`, or cached when it was opened with `expect_kv`). With `behind`, spans that wait
    are dropped if they are for positions from there to `start`.
    """

    session: SessionId
    epoch: int
    start: int
    count: int
    tokens: tuple[int, ...] | None = None
    hidden: bytes | memoryview | None = None
    want: Want = "hidden"
    sampling: Sampling = field(default_factory=Sampling)
    steps: int = 1
    stop_ids: tuple[int, ...] = ()
    top: int = 0  # most likely tokens to report with each token, at most MAX_TOP
    kind: Literal["forward", "backward"] = "forward"  # needs the feature of this name
    draft: bool = False
    behind: int | None = None  # all stages have the positions from here on that it leaves out


@dataclass(frozen=True, slots=True)
class HiddenEvent:
    """Output of a span for the next stage. If the span wants logits: count x vocabulary float32
    values. If it wants pooled states: the sum over its positions, hidden float32 values."""

    session: SessionId
    epoch: int
    start: int
    count: int
    data: memoryview
    seconds: float  # computing time without the time in queues
    predicted: float = 0.0  # the computing time that the scheduler had predicted


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A sampled token. `position` is the last input position plus 1."""

    session: SessionId
    epoch: int
    position: int
    token: int
    logprob: float  # of the model's own distribution (temperature 1, unfiltered)
    final: bool  # whether generation ends here: a stop id, or the last of `steps`
    seconds: float
    top: tuple[Likely, ...] = ()  # the most likely tokens in descending order, as the span asks
    predicted: float = 0.0  # seconds, as in HiddenEvent


@dataclass(frozen=True, slots=True)
class FailedEvent:
    """Refusal or failure of a span. Codes: docs/spec/engine.md."""

    session: SessionId
    epoch: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class DroppedEvent:
    """A window that was not computed, because its input turned out to be wrong."""

    session: SessionId
    epoch: int
    start: int
    count: int


EngineEvent = HiddenEvent | TokenEvent | FailedEvent | DroppedEvent


NAME_BYTES = 16
"""Size of a block's name in bytes."""


@dataclass(frozen=True, slots=True)
class SessionTerms:
    """How a session shares the engine with others.

    `owner` is its gateway, which shares its time fairly with other gateways. Only sessions of the
    same owner share cached blocks. `own` says that it is this machine's gateway, whose sessions
    lose their memory last. `network` is where the gateway is, or ""; gateways of one network share
    the time of one. `user` is a tag of at most 16 bytes, by which the owner's users
    share its time. `background` sessions are computed after all others. `names` are
    the concatenated names of the full blocks of the prompt (docs/spec/session.md). `shard` is the
    number under which the session's shard was loaded. `soon` is the number of positions to reserve
    at once (None: all). The session gets more as it grows, and fails with `preempted` if the memory
    is needed by others. `adapter` is the root of an adapter that the shard has loaded, or "". If
    `packed`, its hidden states come and go packed (activations/layout.py). Unless
    `exact`, cached blocks may stem from copies in int8. `rules` change the logits at the head.
    """

    owner: str = ""
    background: bool = False
    names: bytes = b""
    user: bytes = b""
    shard: int = 0
    soon: int | None = None
    adapter: str = ""
    own: bool = False
    packed: bool = False
    exact: bool = True
    rules: Rules = NO_RULES
    network: str = ""


NETWORK_BYTES = 64
"""Size of the longest name of a network in bytes."""

KvForm = Literal["exact", "int8"]
"""How a part of KV is encoded: in the shard's dtype, or as int8 with a scale in float16 for each
position and head. The values of an `int8` part are not those that were computed, so sessions that
need the exact ones never use it."""


class KvRange(Row, frozen=True):
    """Positions `start` to `stop` - 1 of the layers `first` to `last` - 1 of a model."""

    start: Annotated[int, Meta(ge=0, le=1 << 24)]
    stop: Annotated[int, Meta(ge=1, le=1 << 24)]
    first: Annotated[int, Meta(ge=0, le=MAX_LAYERS)]
    last: Annotated[int, Meta(ge=1, le=MAX_LAYERS)]

    def check(self) -> None:
        """Raise ValueError if there are no positions or no layers."""
        if self.start >= self.stop or self.first >= self.last:
            raise ValueError("a range of KV has positions and layers")


@dataclass(frozen=True, slots=True)
class NamedBlocks:
    """Cached blocks of the shard that was loaded under a number, one name each (NAME_BYTES).

    `owner` is the gateway that named them, and `adapter` the root of the adapter that they were
    computed with, or "".
    """

    shard: int
    owner: str
    names: bytes
    adapter: str = ""


KvSource = NamedBlocks | SessionId
"""Where KV is read: cached blocks, or an open session, even while it is computed."""

EXACTNESS_BYTES = 64
"""Size of the longest name of a class of exactness in bytes."""

USER_BYTES = 16
"""Size of the largest tag of a user in bytes."""


DEFAULT_TERMS: Final = SessionTerms()


class Engine(Protocol):
    """Engine of one device, with shards that have many sessions each. Any method raises EngineError
    if the engine refuses."""

    async def load(self, shard: LoadShard, number: int = 0) -> Loaded:
        """Load a shard under a number, in place of the one with this number, whose sessions end."""
        ...

    async def unload(self, number: int) -> None:
        """Free a shard. Its sessions end. Does nothing if there is none with this number."""
        ...

    async def adapt(self, adapter: "LoadAdapter", shard: int = 0) -> None:
        """Load an adapter for a shard of its model, unless it is loaded. Others may be evicted.

        Raises EngineError `bad-adapter` if it does not fit the shard, and `no-memory`.
        """
        ...

    async def open(
        self,
        session: SessionId,
        tokens: int,
        on_event: Callable[[EngineEvent], None],
        terms: SessionTerms = DEFAULT_TERMS,
    ) -> int:
        """Open a session of at most `tokens` positions. Return the length in tokens of its cached
        prefix.

        Raises EngineError `no-adapter` if the session's adapter is not loaded, or was evicted.
        The session's events are passed to `on_event`, which is called on the event loop and must
        not block.
        """
        ...

    async def recall(
        self, session: SessionId, position: int, prompt: Sequence[int], answer: Sequence[int]
    ) -> None:
        """Tell a session with rules which tokens are before `position`: the different ones of the
        prompt, in any order, and all those of the answer.

        The tokens that it chooses from then on are added. Raises EngineError `bad-token` if an id
        is not in the vocabulary, and `bad-span`.
        """
        ...

    def submit(self, span: Span) -> None:
        """Queue a span without blocking. Its answers are passed to the session's `on_event`."""
        ...

    def hold(self) -> None:
        """Compute no background sessions for HOLD_S at most, because an interactive request has
        begun, whose session will open soon."""
        ...

    def cancel(self, session: SessionId) -> None:
        """Stop the session's running span after its current step, and drop its queued spans."""
        ...

    async def close(self, session: SessionId, names: bytes = b"") -> None:
        """Close a session. Unknown sessions are ignored.

        `names` are the names of all its full blocks. Named blocks stay cached, the others are
        freed.
        """
        ...

    async def export_kv(self, session: SessionId) -> bytes:
        """Return an exact copy of the session's KV, which `import_kv` accepts for the same
        shard."""
        ...

    async def import_kv(self, session: SessionId, state: bytes) -> int:
        """Replace an open session's KV by an exported copy. Return its length in tokens."""
        ...

    async def read_kv(self, source: KvSource, part: KvRange, form: KvForm = "exact") -> bytes:
        """Return a part of the KV of named blocks, or of an open session.

        A part has at most KV_PART_BYTES. The positions of named blocks begin and end with a block.
        Raises EngineError `bad-state` if the source does not have the part, and `unknown-session`.
        """
        ...

    async def write_kv(self, session: SessionId, part: bytes, *, doubted: bool = False) -> int:
        """Write a part, as `read_kv` returned it, into a session that computes nothing.

        The parts of each layer are written in the order of positions, beginning at the session's
        length; layers may arrive in any order. Returns the session's new length: the number of
        positions that have arrived in all layers. If `doubted`, the last block is computed again
        before anything is believed: the length ends before it, and a span that finds another
        content fails with `bad-chunk`. Raises EngineError `bad-state` if the part does not fit.
        """
        ...

    def expect_kv(self, session: SessionId, expected: bool) -> None:
        """Prepare a session for parts ahead of its length, which `bring_kv` writes while it
        computes. With False, no more arrive, and what is not complete is forgotten.

        If its shard is a whole model, its steps are short until then. Else it keeps what it has,
        although its first span may compute that again, and a later span may leave it out.
        """
        ...

    async def bring_kv(
        self, session: SessionId, part: bytes, start: int, stop: int, *, doubted: bool = False
    ) -> int:
        """Write a part of the run of positions `start` to `stop` - 1, and return the session's
        length. Parts and runs may come in any order. When the length reaches a run that has arrived
        in all layers, a session with the whole model goes on behind it; a run that it has passed is
        ignored.

        `doubted` means the same as in `write_kv`. Raises EngineError `gap` if the session expects
        no parts, and `bad-state` if it does not fit.
        """
        ...

    async def fork(self, session: SessionId, into: SessionId) -> None:
        """Copy a session's KV into another open session."""
        ...

    async def usage(self) -> Mapping[str, int]:
        """Return the usage of the engine.

        Keys: `sessions`, `kv_bytes_reserved`, `kv_bytes_limit`, `kv_bytes_cached`, `weight_bytes`,
        `rss_bytes`.
        """
        ...
