"""Messages of a session. Spec: docs/spec/session.md. No I/O.

Every message is a frozen dataclass with `header()` for the sender and a classmethod
`parse(header)` for the receiver. Headers come from untrusted peers: `parse` checks the type and
bounds of each value and raises `BadMessage` on the first invalid one.
"""

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...transport.identity import PeerId
from ..defaults import MAX_LAYERS, MAX_POSITIONS, MAX_SPAN_TOKENS, MAX_STAGES, MAX_STOP_IDS
from ..engine.interface import DType, Parts, Sampling, SessionId
from ..errors import BadMessage

Header = Mapping[str, Any]

SESSION_BYTES = 16
_UINT32 = 2**32 - 1
_UINT64 = 2**64 - 1
_MAX_PEER_ID = 64  # characters
_MAX_CODE = 32
_MAX_MESSAGE = 300
_MAX_SECONDS = 1e6

# Codes of the stage, of its engine (docs/spec/engine.md), and of the lane (docs/spec/lane.md).
_STAGE_CODES = """
    bad-message not-yours unknown-session session-open session-closed stale-epoch no-shard
    too-many-sessions no-memory too-many-spans unreachable stage-lost stage-failed shard-gone idle

    bad-span unsupported no-embedding no-head bad-token bad-hidden too-large too-long old-epoch
    gap not-finite worker-crashed shard-replaced too-many session-exists engine-unavailable

    timeout unknown-method busy bad-request failed
"""
STAGE_CODES = frozenset(_STAGE_CODES.split())


def stage_code(code: str) -> str:
    """Return a stage's failure code if it is one of STAGE_CODES, otherwise `stage-failed`.

    The code decides how a client's command ends, so a peer must not choose it freely.
    """
    return code if code in STAGE_CODES else "stage-failed"


def _int(header: Header, key: str, low: int, high: int) -> int:
    return _bounded(header.get(key), key, low, high)


def _bounded(value: object, key: str, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise BadMessage(f"`{key}` is not a number from {low} to {high}")
    return value


def _bool(header: Header, key: str) -> bool:
    value = header.get(key)
    if type(value) is not bool:
        raise BadMessage(f"`{key}` is not true or false")
    return value


def _float(value: object, key: str, low: float, high: float) -> float:
    if type(value) not in (int, float) or not isinstance(value, int | float):
        raise BadMessage(f"`{key}` is not a number")
    if not math.isfinite(value) or not low <= value <= high:
        raise BadMessage(f"`{key}` is not a number from {low:g} to {high:g}")
    return float(value)


def _text(header: Header, key: str, limit: int) -> str:
    value = header.get(key)
    if type(value) is not str or not len(value) <= limit:
        raise BadMessage(f"`{key}` is not a text of at most {limit} characters")
    return value


def _list(header: Header, key: str, low: int, high: int) -> list[Any]:
    value = header.get(key)
    if not isinstance(value, list | tuple) or not low <= len(value) <= high:
        raise BadMessage(f"`{key}` is not a list of {low} to {high}")
    return list(value)


def _session(header: Header) -> SessionId:
    value = header.get("session")
    if type(value) is not bytes or len(value) != SESSION_BYTES:
        raise BadMessage(f"`session` is not {SESSION_BYTES} bytes")
    return value


def _epoch(header: Header) -> int:
    return _int(header, "epoch", 1, _UINT32)


def _gateway(header: Header) -> PeerId | None:
    return PeerId(_text(header, "gateway", _MAX_PEER_ID)) if "gateway" in header else None


@dataclass(frozen=True, slots=True)
class Open:
    """`session.open`: the gateway reserves one stage. See the specification for each field."""

    session: SessionId
    epoch: int
    root: str
    parts: Parts
    dtype: DType
    stages: tuple[PeerId, ...]
    index: int
    tokens: int
    steps: int = 0
    stop_ids: tuple[int, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    job: str = ""  # id of the job that the session is for, if any

    @property
    def idle(self) -> bool:
        """Whether the session is for a job, so that interactive requests have priority."""
        return bool(self.job)

    def header(self) -> dict[str, Any]:
        parts, sampling = self.parts, self.sampling
        header: dict[str, Any] = {
            "session": self.session,
            "epoch": self.epoch,
            "root": self.root,
            "parts": [parts.embedding, parts.start, parts.stop, parts.head],
            "dtype": self.dtype,
            "stages": list(self.stages),
            "index": self.index,
            "tokens": self.tokens,
        }
        if parts.head:
            header["steps"] = self.steps
            header["stop_ids"] = list(self.stop_ids)
            header["sampling"] = [
                sampling.temperature,
                sampling.top_k,
                sampling.top_p,
                sampling.seed,
            ]
        if self.job:
            header["job"] = self.job
        return header

    @classmethod
    def parse(cls, header: Header) -> "Open":
        stages = _stages(header)
        parts = _parts(header)
        return cls(
            session=_session(header),
            epoch=_epoch(header),
            root=_digits(header, "root"),
            parts=parts,
            dtype=parse_dtype(header.get("dtype")),
            stages=stages,
            index=_int(header, "index", 0, len(stages) - 1),
            tokens=_int(header, "tokens", 1, MAX_POSITIONS),
            steps=_int(header, "steps", 1, MAX_POSITIONS) if parts.head else 0,
            stop_ids=_stop_ids(header) if parts.head else (),
            sampling=_sampling(header) if parts.head else Sampling(),
            job=_digits(header, "job") if "job" in header else "",
        )


def _digits(header: Header, key: str) -> str:
    """Return a hash of 64 hex digits. Raises BadMessage."""
    value = _text(header, key, 64)
    if len(value) != 64 or not all(digit in "0123456789abcdef" for digit in value):
        raise BadMessage(f"`{key}` is not 64 hex digits")
    return value


def _parts(header: Header) -> Parts:
    embedding, start, stop, head = _list(header, "parts", 4, 4)
    if type(embedding) is not bool or type(head) is not bool:
        raise BadMessage("`parts` has no true or false for embedding and head")
    start = _bounded(start, "parts", 0, MAX_LAYERS)
    return Parts(embedding, start, _bounded(stop, "parts", start, MAX_LAYERS), head)


def parse_dtype(value: object) -> DType:
    """Return a dtype that engines compute in. Raises BadMessage."""
    match value:
        case "float32":
            return "float32"
        case "bfloat16":
            return "bfloat16"
    raise BadMessage("`dtype` is neither `float32` nor `bfloat16`")


def _stages(header: Header) -> tuple[PeerId, ...]:
    stages = _list(header, "stages", 1, MAX_STAGES)
    if not all(type(peer) is str and 0 < len(peer) <= _MAX_PEER_ID for peer in stages):
        raise BadMessage("`stages` are not peer ids")
    if len(set(stages)) != len(stages):
        raise BadMessage("`stages` names a peer twice")
    return tuple(PeerId(peer) for peer in stages)


def _stop_ids(header: Header) -> tuple[int, ...]:
    ids = _list(header, "stop_ids", 0, MAX_STOP_IDS)
    return tuple(_bounded(item, "stop_ids", 0, _UINT32) for item in ids)


def _sampling(header: Header) -> Sampling:
    temperature, top_k, top_p, seed = _list(header, "sampling", 4, 4)
    top_p = _float(top_p, "sampling", 0.0, 1.0)
    if top_p == 0.0:
        raise BadMessage("`sampling` has a top_p of 0")
    return Sampling(
        temperature=_float(temperature, "sampling", 0.0, 100.0),
        top_k=_bounded(top_k, "sampling", 0, _UINT32),
        top_p=top_p,
        seed=_bounded(seed, "sampling", 0, _UINT64),
    )


@dataclass(frozen=True, slots=True)
class SpanMessage:
    """`session.span`: input for one stage. The payload is sent beside the header.

    `gateway` is None if the sender is the gateway. `seconds`: computing time so far.
    """

    session: SessionId
    gateway: PeerId | None
    epoch: int
    start: int
    count: int
    token: bool
    seconds: float = 0.0

    def header(self) -> dict[str, Any]:
        header: dict[str, Any] = {
            "session": self.session,
            "epoch": self.epoch,
            "start": self.start,
            "count": self.count,
            "token": self.token,
            "seconds": self.seconds,
        }
        if self.gateway is not None:
            header["gateway"] = self.gateway
        return header

    @classmethod
    def parse(cls, header: Header) -> "SpanMessage":
        return cls(
            session=_session(header),
            gateway=_gateway(header),
            epoch=_epoch(header),
            start=_int(header, "start", 0, MAX_POSITIONS - 1),
            count=_int(header, "count", 1, MAX_SPAN_TOKENS),
            token=_bool(header, "token"),
            seconds=_float(header.get("seconds"), "seconds", 0.0, _MAX_SECONDS),
        )


@dataclass(frozen=True, slots=True)
class Feed:
    """`session.feed`: the head sends the sampled token to the first stage."""

    session: SessionId
    gateway: PeerId | None
    epoch: int
    position: int
    token: int

    def header(self) -> dict[str, Any]:
        return {
            "session": self.session,
            "gateway": self.gateway,
            "epoch": self.epoch,
            "position": self.position,
            "token": self.token,
        }

    @classmethod
    def parse(cls, header: Header) -> "Feed":
        return cls(
            session=_session(header),
            gateway=_gateway(header),
            epoch=_epoch(header),
            position=_int(header, "position", 0, MAX_POSITIONS - 1),
            token=_int(header, "token", 0, _UINT32),
        )


@dataclass(frozen=True, slots=True)
class Token:
    """`session.token`: the head sends the sampled token to the gateway."""

    session: SessionId
    epoch: int
    position: int
    token: int
    logprob: float
    final: bool
    seconds: float

    def header(self) -> dict[str, Any]:
        return {
            "session": self.session,
            "epoch": self.epoch,
            "position": self.position,
            "token": self.token,
            "logprob": self.logprob,
            "final": self.final,
            "seconds": self.seconds,
        }

    @classmethod
    def parse(cls, header: Header) -> "Token":
        return cls(
            session=_session(header),
            epoch=_epoch(header),
            position=_int(header, "position", 0, MAX_POSITIONS),
            token=_int(header, "token", 0, _UINT32),
            logprob=_float(header.get("logprob"), "logprob", -1e9, 1e-3),
            final=_bool(header, "final"),
            seconds=_float(header.get("seconds"), "seconds", 0.0, _MAX_SECONDS),
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """`session.progress`: every stage has computed all positions below `position`."""

    session: SessionId
    epoch: int
    position: int

    def header(self) -> dict[str, Any]:
        return {"session": self.session, "epoch": self.epoch, "position": self.position}

    @classmethod
    def parse(cls, header: Header) -> "Progress":
        position = _int(header, "position", 0, MAX_POSITIONS)
        return cls(_session(header), _epoch(header), position)


@dataclass(frozen=True, slots=True)
class Failed:
    """`session.failed`: a stage cannot continue, perhaps because it `lost` a neighbour."""

    session: SessionId
    epoch: int
    code: str
    message: str
    lost: PeerId | None = None

    def header(self) -> dict[str, Any]:
        header: dict[str, Any] = {
            "session": self.session,
            "epoch": self.epoch,
            "code": self.code[:_MAX_CODE],
            "message": self.message[:_MAX_MESSAGE],
        }
        if self.lost is not None:
            header["lost"] = self.lost
        return header

    @classmethod
    def parse(cls, header: Header) -> "Failed":
        code = _text(header, "code", _MAX_CODE)
        message = _text(header, "message", _MAX_MESSAGE)
        lost = PeerId(_text(header, "lost", _MAX_PEER_ID)) if "lost" in header else None
        return cls(_session(header), _epoch(header), stage_code(code), printable(message), lost)


@dataclass(frozen=True, slots=True)
class Quiet:
    """`session.quiet`: a stage no longer hears its neighbour `peer`, or hears it again (`quiet`
    False)."""

    session: SessionId
    epoch: int
    peer: PeerId
    quiet: bool

    def header(self) -> dict[str, Any]:
        return {
            "session": self.session,
            "epoch": self.epoch,
            "peer": self.peer,
            "quiet": self.quiet,
        }

    @classmethod
    def parse(cls, header: Header) -> "Quiet":
        peer = PeerId(_text(header, "peer", _MAX_PEER_ID))
        return cls(_session(header), _epoch(header), peer, _bool(header, "quiet"))


@dataclass(frozen=True, slots=True)
class Close:
    """`session.close`: free everything of a session."""

    session: SessionId

    def header(self) -> dict[str, Any]:
        return {"session": self.session}

    @classmethod
    def parse(cls, header: Header) -> "Close":
        return cls(_session(header))


def parse_cached(header: Header, tokens: int) -> int:
    """Return the cached prefix, at most `tokens`, from a reply to `session.open`."""
    return _int(header, "cached", 0, tokens)


def printable(text: str) -> str:
    """Return a peer's text with control characters replaced, so that it is safe on a terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Encode token ids as little-endian uint32."""
    return struct.pack(f"<{len(tokens)}I", *tokens)


def unpack_tokens(payload: bytes | memoryview, count: int) -> tuple[int, ...]:
    """Decode `count` token ids. Raises BadMessage unless the payload has exactly that length."""
    if len(payload) != 4 * count:
        raise BadMessage(f"{len(payload)} bytes are not {count} token ids")
    return struct.unpack(f"<{count}I", payload)
