"""Messages of a session. Spec: docs/spec/session.md. No I/O.

Every message has `header()` for the sender and a classmethod `parse(header)` for the receiver.
Headers come from untrusted peers: `parse` checks the type and bounds of each value and raises
`BadMessage` on the first invalid one.
"""

import hashlib
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Annotated, Self

from msgspec import Meta
from msgspec.structs import astuple, replace

from ...transport.identity import PeerId
from ...transport.message import Message, Natural, Root
from ..defaults import (
    MAX_AHEAD,
    MAX_POSITIONS,
    MAX_SPAN_TOKENS,
    MAX_STAGES,
    MAX_STOP_IDS,
    MAX_TOP,
    MAX_WINDOW,
)
from ..engine.activations.layout import Activations
from ..engine.interface import (
    USER_BYTES,
    Bias,
    DType,
    Logprob,
    MinP,
    Parts,
    Penalty,
    Repetition,
    Rules,
    Sampling,
    Temperature,
    TopK,
    TopP,
)
from ..errors import BadMessage
from ..message import HeaderMessage

SESSION_BYTES = 16
VEIL_BYTES = 16
_MAX_CODE = 32
_MAX_MESSAGE = 300

# Codes of the stage, its engine (docs/spec/engine.md) and the lane (docs/spec/lane.md), in order.
_STAGE_CODES = """
    bad-message not-yours unknown-session session-open session-closed stale-epoch no-shard
    too-many-sessions no-memory overloaded too-many-spans unreachable stage-lost stage-failed
    shard-gone idle

    bad-span unsupported no-embedding no-head bad-token bad-hidden too-large too-long old-epoch
    gap not-finite preempted worker-crashed shard-replaced too-many session-exists
    engine-unavailable bad-adapter no-adapter bad-chunk

    timeout unknown-method busy bad-request failed
"""
STAGE_CODES = frozenset(_STAGE_CODES.split())


def stage_code(code: str) -> str:
    """Return a stage's failure code if it is in STAGE_CODES, otherwise `stage-failed`.

    The code decides how a client's command ends, so a peer must not choose it freely.
    """
    return code if code in STAGE_CODES else "stage-failed"


_Whole = Annotated[int, Meta(ge=0, le=2**32 - 1)]
_Peer = Annotated[PeerId, Meta(min_length=1, max_length=64)]
_Position = Annotated[int, Meta(ge=0, le=MAX_POSITIONS)]
_Before = Annotated[int, Meta(ge=0, le=MAX_POSITIONS - 1)]
_Rate = Annotated[float, Meta(gt=0.0, le=1e12)]
_Seconds = Annotated[float, Meta(ge=0.0, le=1e6)]


class SessionMessage(HeaderMessage, frozen=True):
    """Base of all messages of a session."""

    session: Annotated[bytes, Meta(min_length=SESSION_BYTES, max_length=SESSION_BYTES)]


class EpochMessage(SessionMessage, frozen=True):
    """Base of messages that belong to one epoch of their session."""

    epoch: Annotated[int, Meta(ge=1, le=2**32 - 1)]


class SessionSampling(Message, frozen=True):
    """How the head of a session chooses tokens (docs/spec/sampling.md)."""

    temperature: Temperature = 0.0
    top_k: TopK = 0
    top_p: TopP = 1.0
    seed: Natural = 0
    min_p: MinP = 0.0
    bias: Bias = ()
    repetition: Repetition = 1.0
    frequency: Penalty = 0.0
    presence: Penalty = 0.0

    @classmethod
    def of(cls, sampling: Sampling, rules: Rules) -> Self:
        """Return the message for these parameters."""
        return cls(*sampling, *astuple(rules))

    @property
    def sampling(self) -> Sampling:
        """The parameters that do not depend on the tokens so far."""
        return Sampling(self.temperature, self.top_k, self.top_p, self.seed, self.min_p)

    @property
    def rules(self) -> Rules:
        """The rules that change logits."""
        return Rules(self.bias, self.repetition, self.frequency, self.presence)

    def check(self) -> None:
        """Raise ValueError if the seed or the order of `bias` is wrong."""
        if self.seed >= 2**64:
            raise ValueError("`sampling` has a seed of over 64 bits")
        self.rules.check()


class Open(EpochMessage, frozen=True):
    """`session.open`: the gateway reserves KV at one stage. The specification explains each field.

    Only the head receives `steps`, `stop_ids`, `sampling`, `pooled` and `top`. A `pooled` session
    needs none of the others, because it generates no token.
    """

    root: Root
    parts: Parts
    dtype: DType
    stages: Annotated[tuple[_Peer, ...], Meta(min_length=1, max_length=MAX_STAGES)]
    index: Annotated[int, Meta(ge=0)]
    tokens: Annotated[int, Meta(ge=1, le=MAX_POSITIONS)]
    soon: Annotated[int, Meta(ge=1, le=MAX_POSITIONS)]
    steps: _Position = 0
    stop_ids: Annotated[tuple[_Whole, ...], Meta(max_length=MAX_STOP_IDS)] | None = None
    sampling: SessionSampling | None = None
    job: Root = ""  # id of the job that the session is for, or ""
    pooled: bool = False
    top: Annotated[int, Meta(ge=0, le=MAX_TOP)] = 0
    adapter: Root = ""  # root of the adapter that all stages use, or ""
    user: Annotated[bytes, Meta(max_length=USER_BYTES)] = b""
    veil: Annotated[bytes, Meta(max_length=VEIL_BYTES)] = b""  # of drafts, for both ends only
    resume: _Before = 0  # where the chain continues; positions before it are rebuilt
    exact: bool = False  # whether no KV may stem from copies in int8
    activations: Activations = "exact"  # how the stages send hidden states to each other
    standby: _Peer | None = None  # the stage whose KV this one gets, until it takes its place
    skips: bool = False  # whether the gateway leaves out positions that all stages have

    @property
    def idle(self) -> bool:
        """Whether the session is for a job, over which interactive requests have priority."""
        return bool(self.job)

    def check(self) -> None:
        """Check the values together. Raises ValueError if they contradict each other."""
        self.parts.check()
        if self.soon > self.tokens:
            raise ValueError("`soon` exceeds `tokens`")
        if self.index >= len(self.stages):
            raise ValueError(f"`index` is not below the {len(self.stages)} stages")
        told = self.steps or None, self.stop_ids, self.sampling
        if self.parts.head and not self.pooled and None in told:
            raise ValueError(f"`{_FOR_THE_HEAD[told.index(None)]}` is missing for the head")
        if self.sampling is not None:
            self.sampling.check()

    def header(self) -> dict[str, object]:
        header = self.fields() | {"parts": astuple(self.parts)}
        if self.parts.head:
            if self.sampling is not None:
                header["sampling"] = self.sampling.fields()
            return header
        hidden = _FOR_THE_HEAD if self.parts.embedding else (*_FOR_THE_HEAD, "veil")
        return {name: value for name, value in header.items() if name not in hidden}


_FOR_THE_HEAD = ("steps", "stop_ids", "sampling", "pooled", "top")


def parse_dtype(value: object) -> DType:
    """Return `value` if it is a dtype in which engines compute. Raises BadMessage otherwise."""
    match value:
        case "float32":
            return "float32"
        case "bfloat16":
            return "bfloat16"
    raise BadMessage("`dtype` is neither `float32` nor `bfloat16`")


class Change(EpochMessage, frozen=True):
    """`session.change`: the gateway gives a session other stages, under a higher epoch.

    The receiver was stage `index` and becomes stage `place`. The chain continues at position
    `resume`, whose token is the first one to be computed again. Only the head receives `steps`.
    """

    index: Annotated[int, Meta(ge=0, lt=MAX_STAGES)]
    place: Annotated[int, Meta(ge=0)]
    stages: Annotated[tuple[_Peer, ...], Meta(min_length=1, max_length=MAX_STAGES)]
    resume: _Before
    steps: _Position = 0

    def check(self) -> None:
        """Raise ValueError if `place` is not in the chain."""
        if self.place >= len(self.stages):
            raise ValueError(f"`place` is not below the {len(self.stages)} stages")


class Rebuild(EpochMessage, frozen=True):
    """`session.rebuild`: all stages of a changed chain are open, so stage `index` may ask for the
    positions that it lacks."""

    index: Annotated[int, Meta(ge=0, lt=MAX_STAGES)]


class Need(EpochMessage, frozen=True):
    """`session.need`: a stage asks the previous one, which is stage `index`, or the gateway for
    its inputs of the positions from `start` to before `stop`."""

    index: Annotated[int, Meta(ge=0, lt=MAX_STAGES)]
    start: _Before
    stop: _Position
    gateway: _Peer | None = None

    def check(self) -> None:
        """Raise ValueError if there is no position in the range."""
        if self.start >= self.stop:
            raise ValueError("`start` is not below `stop`")


class Rebuilt(EpochMessage, frozen=True):
    """`session.rebuilt`: stage `index` has the state of all positions below `position` again."""

    index: Annotated[int, Meta(ge=0, lt=MAX_STAGES)]
    position: _Position


class SpanMessage(EpochMessage, frozen=True):
    """`session.span`: input for the stage at place `index` of the chain. The input itself is the
    payload.

    `token` requests a token for the last position. `seconds` is the computing time of earlier
    stages. `gateway` is None if the sender is the gateway.

    A window has `draft`: its tokens are guesses, at most MAX_WINDOW. From the gateway it has a
    `branch`, the position of the last token that was another than guessed. Between stages, the
    payload ends with its token ids, veiled.

    With `behind`, all stages have the KV of the positions from there to `start`, so that spans for
    these need not be computed.
    """

    index: Annotated[int, Meta(ge=0, lt=MAX_STAGES)]
    start: _Before
    count: Annotated[int, Meta(ge=1, le=MAX_SPAN_TOKENS)]
    token: bool
    seconds: _Seconds
    gateway: _Peer | None = None
    draft: bool = False
    branch: _Before = 0
    behind: _Before | None = None

    def check(self) -> None:
        """Raise ValueError if a window is too long."""
        if self.draft and self.count > MAX_WINDOW:
            raise ValueError(f"a window has at most {MAX_WINDOW} positions")


class FeedToken(EpochMessage, frozen=True):
    """`session.feed`: the head sends the sampled token to the first stage."""

    position: _Before
    token: _Whole
    gateway: _Peer | None = None


class SampledToken(EpochMessage, frozen=True):
    """`session.token`: the head sends the sampled token to the gateway.

    `top` are the most likely tokens in descending order, at most as many as `session.open` asks.
    """

    position: _Position
    token: _Whole
    logprob: Logprob
    final: bool
    seconds: _Seconds
    top: Annotated[tuple[tuple[_Whole, Logprob], ...], Meta(max_length=MAX_TOP)] = ()


class SpanProgress(EpochMessage, frozen=True):
    """`session.progress`: all stages have computed all positions below `position`."""

    position: _Position


class PooledSpan(SpanProgress, frozen=True):
    """`session.pooled`: progress of a pooled session. The payload is the sum of the final states of
    the positions since the last such message."""


class Held(EpochMessage, frozen=True):
    """`session.held`: stage `index` has the KV of the positions from `start` to before `stop`
    without computing them. `more` says whether more may arrive."""

    index: Annotated[int, Meta(ge=0, lt=MAX_STAGES)]
    start: _Position
    stop: _Position
    more: bool


class Failed(EpochMessage, frozen=True):
    """`session.failed`: a stage cannot continue. `lost` is the neighbour that it has lost, if
    any."""

    code: Annotated[str, Meta(max_length=_MAX_CODE)]
    message: Annotated[str, Meta(max_length=_MAX_MESSAGE)]
    lost: _Peer | None = None

    def header(self) -> dict[str, object]:
        cut = {"code": self.code[:_MAX_CODE], "message": self.message[:_MAX_MESSAGE]}
        return self.fields() | cut

    @classmethod
    def parse(cls, header: Mapping[str, object]) -> Self:
        said = super().parse(header)
        return replace(said, code=stage_code(said.code), message=printable(said.message))


class Quiet(EpochMessage, frozen=True):
    """`session.quiet`: a stage no longer hears its neighbour `peer`. If `quiet` is False, it hears
    the neighbour again."""

    peer: _Peer
    quiet: bool
    lost: bool = False  # whether the link to it has ended


class AskState(EpochMessage, frozen=True):
    """`session.state`: the gateway asks stage `index` why nothing arrives."""

    index: Annotated[int, Meta(ge=0, lt=MAX_STAGES)]


class Close(SessionMessage, frozen=True):
    """`session.close`: a stage must free everything that belongs to a session, or only its stages
    in one epoch. `length` is the number of its positions whose inputs were right."""

    epoch: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0  # 0: all
    length: _Position = 0  # 0: unknown


class Probe(HeaderMessage, frozen=True):
    """`stage.probe`: a question for the load of one shard, and for one prompt.

    The payload has names of the beginnings of the prompt, `every` positions apart.
    """

    root: Root
    parts: Parts
    dtype: DType
    prompt: _Position = 0  # positions of the prompt
    soon: _Position = 0  # that the session would reserve at once, or 0
    every: Annotated[int, Meta(ge=1, le=MAX_POSITIONS)] = 1  # positions from name to name
    ahead: Annotated[int, Meta(ge=0, le=MAX_AHEAD)] = 0  # the gateway's requests that wait for room

    def header(self) -> dict[str, object]:
        """Return the fields as the header of a call."""
        return self.fields() | {"parts": astuple(self.parts)}

    def check(self) -> None:
        """Raise ValueError if the layers are not in order."""
        self.parts.check()


class SessionOpened(HeaderMessage, frozen=True):
    """Reply to `session.open`. `cached` is the number of positions that the stage has cached.
    `activations` repeats how it sends and expects hidden states. `drafts`: whether it computes
    windows of drafts for this session. `skips`: whether it keeps what it has cached if the session
    begins earlier, and takes a span behind it. `fetches`: whether KV of others may arrive."""

    cached: Natural
    activations: Activations = "exact"
    drafts: bool = False
    skips: bool = False
    fetches: bool = False


class SessionClosed(HeaderMessage, frozen=True):
    """Reply to `session.close`. `slow` are the links to next stages that have lately been too slow
    for exact hidden states: the peer and the rate in byte/s of each."""

    slow: Annotated[tuple[tuple[_Peer, _Rate], ...], Meta(max_length=MAX_STAGES)] = ()


class StageLoad(HeaderMessage, frozen=True):
    """Reply to `stage.probe`: how busy a shard is now.

    `room` is the number of positions that one more session of the asking gateway may have.
    `sessions` are open, and `running` of them compute or wait. `waiting` is the number of their
    spans. For the prompt that was asked about: `wait` is the seconds by which others delay it,
    `cached` the number of its positions that are probably cached, `row` the seconds that a row of
    a prompt took here lately (0: unknown), and `back` the seconds until there is room for its
    session (0: now).
    """

    room: Natural
    sessions: Natural
    running: Natural
    waiting: Natural
    wait: _Seconds = 0.0
    cached: _Position = 0
    back: _Seconds = 0.0
    row: _Seconds = 0.0


class SessionChanged(HeaderMessage, frozen=True):
    """Reply to `session.change`. `have` is the number of positions of which the stage has the
    state."""

    have: Natural


class StageState(HeaderMessage, frozen=True):
    """Reply to `session.state`. `waiting` is the number of the session's spans that the engine has
    not answered yet, `others` that of the other sessions for which it has work."""

    waiting: Natural
    others: Natural


def parse_opened(
    header: Mapping[str, object], tokens: int, activations: Activations = "exact"
) -> SessionOpened:
    """Return a reply to `session.open`.

    Raises BadMessage if the reply is invalid, if the prefix is longer than `tokens`, or if the
    stage has not agreed to `activations`.
    """
    opened = SessionOpened.parse(header)
    if opened.cached > tokens:
        raise BadMessage(f"`cached` is more than the session's {tokens} tokens")
    if opened.activations != activations:
        raise BadMessage(f"the stage sends `{opened.activations}` hidden states")
    return opened


def printable(text: str) -> str:
    """Return a peer's text with non-printable characters replaced, so that it is safe on a
    terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def unpack_states(payload: bytes | memoryview, count: int) -> tuple[float, ...]:
    """Decode `count` little-endian float32 values. Raises BadMessage unless the payload has exactly
    that many, all of them finite."""
    if len(payload) != 4 * count:
        raise BadMessage(f"{len(payload)} bytes are not {count} values")
    states: tuple[float, ...] = struct.unpack(f"<{count}f", payload)
    if not all(map(math.isfinite, states)):
        raise BadMessage("a value is not finite")
    return states


def veiled(veil: bytes, start: int, ids: Sequence[int]) -> tuple[int, ...]:
    """Return the token ids from position `start` on, veiled by a secret of both ends of a chain, or
    unveiled: it is its own inverse. The stages in between pass them on without knowing them."""
    stream = bytearray()
    for number in range(-(-len(ids) // 16)):
        place = struct.pack("<QQ", start, number)
        stream += hashlib.blake2b(place, key=veil, person=b"veil").digest()
    mask = struct.unpack_from(f"<{len(ids)}I", stream)
    return tuple(each ^ other for each, other in zip(ids, mask, strict=True))


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Encode token ids as little-endian uint32."""
    return struct.pack(f"<{len(tokens)}I", *tokens)


def unpack_tokens(payload: bytes | memoryview, count: int) -> tuple[int, ...]:
    """Decode `count` token ids. Raises BadMessage unless the payload has exactly that many."""
    if len(payload) != 4 * count:
        raise BadMessage(f"{len(payload)} bytes are not {count} token ids")
    return struct.unpack(f"<{count}I", payload)
