"""Interface of the engine for the rest of shoal. Spec: docs/spec/engine.md.

An engine holds one *shard* of one model and advances *sessions* through it by *spans*.
Submits are asynchronous and answered by events, in submission order per session. The real
engine is a worker process (`process.py` on the daemon's side, `worker.py` on the other);
the simulator brings its own behind the same protocol.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, Protocol

from msgspec import Meta

from ...transport.message import Natural, Row
from ..defaults import MAX_LAYERS

SessionId = bytes  # 16 random bytes, made by the gateway

DType = Literal["float32", "bfloat16"]
Want = Literal["hidden", "logits", "token"]


class Parts(Row, frozen=True):
    """Which pieces of a model a shard holds: the embedding, layers start:stop, the head."""

    embedding: bool
    start: Annotated[int, Meta(ge=0, le=MAX_LAYERS)]
    stop: Annotated[int, Meta(ge=0, le=MAX_LAYERS)]  # exclusive
    head: bool

    def check(self) -> None:
        if self.start > self.stop:
            raise ValueError(f"`parts` has layers {self.start}:{self.stop}")


class TensorSource(Row, frozen=True):
    """One tensor of the shard on disk: chunk files concatenated are its raw little-endian bytes.

    `roles` are Hugging Face parameter names (a tied tensor has two); `dtype` is a safetensors
    name (BF16, F16, F32).
    """

    roles: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[str, ...]  # paths of verified chunk files, in order
    digests: tuple[bytes, ...]  # SHA-256 of each, checked again while loading


@dataclass(frozen=True, slots=True)
class LoadShard:
    """A shard to load. `config` is the model's config.json, already checked by `families.py`."""

    root: str  # the manifest's root, 64 hex digits
    parts: Parts
    config: Mapping[str, object]
    tensors: tuple[TensorSource, ...]
    dtype: DType
    kv_bytes: int  # all sessions' KV together stay under this


@dataclass(frozen=True, slots=True)
class Loaded:
    """Report of a loaded shard, in bytes and seconds."""

    weight_bytes: int
    kv_token_bytes: int  # KV of one token over the shard's layers
    seconds: float
    features: frozenset[str]  # e.g. {"forward", "logits", "export"}


class Sampling(NamedTuple):
    """Parameters for choosing a token. Temperature 0 is greedy. Spec: docs/spec/sampling.md."""

    temperature: float = 0.0
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    seed: int = 0  # 64 bits; the noise depends on (seed, position, token id) only


Temperature = Annotated[float, Meta(ge=0.0, le=100.0)]
TopK = Annotated[int, Meta(ge=0, le=2**32 - 1)]
TopP = Annotated[float, Meta(gt=0.0, le=1.0)]
Sampled = tuple[Temperature, TopK, TopP, Natural]
"""`Sampling` in a message: all four values, within their bounds."""


@dataclass(frozen=True, slots=True)
class Span:
    """Advance one session by `count` tokens from position `start`.

    `start` below the cached length truncates first; the same (epoch, start, count) again is
    answered with the same result and computes nothing; a lower epoch than one seen is refused.
    Input is `tokens` (the shard has the embedding) or `hidden` (count x hidden values in the
    shard's dtype, C order). `steps` > 1 asks a shard with embedding and head to feed its own
    tokens back: one TokenEvent per token, until `stop_ids`, `steps`, or cancel.
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
    adapter: str | None = None  # hash; refused unless "adapter" is a feature
    kind: Literal["forward", "backward"] = "forward"  # backward needs the feature


@dataclass(frozen=True, slots=True)
class HiddenEvent:
    """A span's output for the next stage (or, for want="logits", count x vocabulary float32)."""

    session: SessionId
    epoch: int
    start: int
    count: int
    data: memoryview
    seconds: float  # computing, without queueing


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A sampled token at `position`, which is the last input position + 1."""

    session: SessionId
    epoch: int
    position: int
    token: int
    logprob: float  # of the model's own distribution (temperature 1, unfiltered)
    final: bool  # the loop ends here: stop id, or `steps` reached
    seconds: float


@dataclass(frozen=True, slots=True)
class FailedEvent:
    """A span was refused or failed. Codes: docs/spec/engine.md."""

    session: SessionId
    epoch: int
    code: str
    message: str


EngineEvent = HiddenEvent | TokenEvent | FailedEvent


class Engine(Protocol):
    """An engine with one shard and many sessions. Methods raise EngineError when refused."""

    async def load(self, shard: LoadShard) -> Loaded:
        """Load a shard in place of the current one, whose sessions end."""
        ...

    async def open(
        self, session: SessionId, tokens: int, on_event: Callable[[EngineEvent], None]
    ) -> int:
        """Reserve KV for `tokens` positions; returns the cached prefix length (tokens).

        `on_event` is called on the event loop and must not block.
        """
        ...

    def submit(self, span: Span) -> None:
        """Queue a span; never blocks. Answers come to the session's `on_event`."""
        ...

    def cancel(self, session: SessionId) -> None:
        """Stop a running token loop after its current step and drop queued spans."""
        ...

    async def close(self, session: SessionId) -> None:
        """Free the session's KV. Unknown sessions are ignored."""
        ...

    async def export_kv(self, session: SessionId) -> bytes:
        """Return an exact copy of the session's layer state, for `import_kv` on the same shard."""
        ...

    async def import_kv(self, session: SessionId, state: bytes) -> int:
        """Install an exact copy into an open session. Return its length in tokens."""
        ...

    async def fork(self, session: SessionId, into: SessionId) -> None:
        """Copy a session's state into another open session."""
        ...

    async def usage(self) -> Mapping[str, int]:
        """Return `sessions`, `kv_bytes_reserved`, `kv_bytes_limit`, `weight_bytes`, `rss_bytes`."""
        ...
