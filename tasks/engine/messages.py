"""Encodes the dataclasses of the interface as frames. Spec: docs/spec/engine.md, daemon and worker.

Whatever the daemon sends is typed and bounded here, so that the rest of the worker processes plain
values. The daemon checks what its worker sends in the same way.
"""

import array
from typing import Annotated, Literal

from msgspec import Meta

from ...transport.decoding import decode, typed
from ...transport.errors import Undecodable
from ...transport.message import Message, Natural, Row, pack
from ..costs.shardcosts import ShardCosts
from ..defaults import MAX_TOP
from .adapters import LoadAdapter
from .defaults import ADAPTER_DEPTH, LOAD_DEPTH, LOAD_ITEMS, PAYLOAD_BYTES, STOP_IDS
from .errors import EngineError
from .interface import (
    DroppedEvent,
    DType,
    EngineEvent,
    FailedEvent,
    HiddenEvent,
    Likely,
    Loaded,
    LoadShard,
    MinP,
    Parts,
    Sampling,
    Span,
    Temperature,
    TensorSource,
    TokenEvent,
    TopK,
    TopP,
    Want,
)
from .passes import PassDone
from .wire import Buffer, Header, WireError

_MOST_POSITIONS = 1 << 24
_TOKENS, _HIDDEN, _BOTH = 0, 1, 2


def span_frame(span: Span) -> tuple[Header, Buffer]:
    """Encode a span. Raises EngineError `bad-span` unless it has either tokens or hidden states, or
    both if it is a window.

    Raises EngineError `bad-token` if a token id is not a 32-bit integer.
    """
    header = (
        *("span", span.session, span.epoch, span.start, span.count),
        *(_source(span), span.want),
        *span.sampling,
        *(span.steps, span.stop_ids, span.kind, span.top, span.draft),
        *(() if span.behind is None else (span.behind,)),
    )
    if span.tokens is None:
        return header, span.hidden or b""
    try:
        tokens = array.array("i", span.tokens).tobytes()
    except (OverflowError, TypeError):
        raise EngineError("bad-token", "a token id is not a 32-bit integer") from None
    return header, tokens if span.hidden is None else b"".join((span.hidden, tokens))


def _source(span: Span) -> int:
    """Return what a span's payload is. Raises EngineError `bad-span` if it may not be that."""
    if span.tokens is None and span.hidden is not None:
        return _HIDDEN
    if span.tokens is not None and span.hidden is None:
        return _TOKENS
    if span.tokens is not None and span.draft:
        return _BOTH
    raise EngineError("bad-span", "a span has either tokens or hidden states")


class _Span(Row, frozen=True):
    """Frame header of a span, in the order of docs/spec/engine.md."""

    word: Literal["span"]
    session: bytes
    epoch: Annotated[int, Meta(ge=0, le=1 << 62)]
    start: Annotated[int, Meta(ge=0, le=_MOST_POSITIONS)]
    count: Annotated[int, Meta(ge=1, le=_MOST_POSITIONS)]
    source: Annotated[int, Meta(ge=0, le=_BOTH)]
    want: Want
    temperature: Temperature
    top_k: TopK
    top_p: TopP
    seed: Natural
    min_p: MinP
    steps: Annotated[int, Meta(ge=1, le=_MOST_POSITIONS)]
    stop_ids: Annotated[
        tuple[Annotated[int, Meta(ge=0, le=1 << 31)], ...], Meta(max_length=STOP_IDS)
    ]
    kind: Literal["forward", "backward"]
    top: Annotated[int, Meta(ge=0, le=MAX_TOP)]
    draft: bool
    behind: Annotated[int, Meta(ge=0, le=_MOST_POSITIONS)] | None = None


def parse_span(header: Header, payload: memoryview) -> Span:
    """Decode a span and check types and bounds.

    Raises EngineError `bad-span` if it is malformed, and `unsupported` if it needs a feature that
    this engine lacks.
    """
    try:
        said = typed(_Span, header)
    except Undecodable as error:
        raise EngineError("bad-span", f"the span is malformed: {error}") from None
    if said.kind != "forward":
        raise EngineError("unsupported", "this engine has no backward")
    hidden, ids = _halves(said, payload)
    return Span(
        session=said.session,
        epoch=said.epoch,
        start=said.start,
        count=said.count,
        tokens=_tokens(ids, said.count) if ids is not None else None,
        hidden=hidden,
        want=said.want,
        sampling=Sampling(said.temperature, said.top_k, said.top_p, said.seed, said.min_p),
        steps=said.steps,
        stop_ids=said.stop_ids,
        top=said.top,
        draft=said.draft,
        behind=said.behind,
    )


def _halves(said: _Span, payload: memoryview) -> tuple[memoryview | None, memoryview | None]:
    """Return the hidden states and the token ids of a payload, None for what it lacks."""
    if said.source == _TOKENS:
        return None, payload
    if said.source == _HIDDEN:
        return payload, None
    at = len(payload) - 4 * said.count
    if at < 0 or not said.draft:
        raise EngineError("bad-span", "only a window has both tokens and hidden states")
    return payload[:at], payload[at:]


def _tokens(payload: memoryview, count: int) -> tuple[int, ...]:
    """Decode `count` token ids. Raises EngineError `bad-span` if the payload has another number."""
    if len(payload) != 4 * count:
        raise EngineError("bad-span", f"{len(payload) // 4} tokens were sent for {count}")
    return tuple(payload.cast("i"))


class _Load(Message, frozen=True):
    """Load command without the model's config, which is JSON of any form."""

    root: str
    parts: Parts
    tensors: tuple[TensorSource, ...]
    dtype: DType
    kv_bytes: Annotated[int, Meta(ge=0, le=1 << 50)]

    def check(self) -> None:
        """Raise ValueError if the layers are not in order."""
        self.parts.check()


def load_payload(shard: LoadShard) -> bytes:
    """Encode a load command."""
    return pack(
        {
            "root": shard.root,
            "parts": shard.parts,
            "config": dict(shard.config),
            "tensors": shard.tensors,
            "dtype": shard.dtype,
            "kv_bytes": shard.kv_bytes,
        }
    )


def parse_load(payload: memoryview) -> LoadShard:
    """Decode a load command. Raises EngineError `bad-config` if it is malformed."""
    try:
        fields = decode(payload, limit=PAYLOAD_BYTES // 4, depth=LOAD_DEPTH, items=LOAD_ITEMS)
        said = typed(_Load, fields)
    except Undecodable as error:
        raise EngineError("bad-config", "the shard's description cannot be read") from error
    config = fields.get("config")
    if not isinstance(config, dict):
        raise EngineError("bad-config", "the shard's config is malformed")
    return LoadShard(said.root, said.parts, config, said.tensors, said.dtype, said.kv_bytes)


def adapter_payload(adapter: LoadAdapter) -> bytes:
    """Encode the command to load an adapter."""
    return pack(adapter)


def parse_adapter(payload: memoryview) -> LoadAdapter:
    """Decode the command to load an adapter. Raises EngineError `bad-adapter` if it is
    malformed."""
    try:
        fields = decode(payload, limit=PAYLOAD_BYTES // 4, depth=ADAPTER_DEPTH, items=LOAD_ITEMS)
        return typed(LoadAdapter, fields)
    except Undecodable as error:
        raise EngineError("bad-adapter", f"the adapter is malformed: {error}") from None


def parse_event(header: Header, payload: memoryview) -> EngineEvent:
    """Decode an event of the worker. Raises WireError if it is malformed."""
    match header:
        case ("token", bytes(session), int(epoch), int(position), int(token), *rest):
            match rest:
                case [float(logprob), bool(final), float(seconds), float(predicted), *more] if (
                    len(more) < 2
                ):
                    top = _parse_top(more[0]) if more else ()
                    where = session, epoch, position, token
                    return TokenEvent(*where, logprob, final, seconds, top, predicted)
        case (
            "hidden",
            bytes(session),
            int(epoch),
            int(start),
            int(count),
            float(seconds),
            float(predicted),
        ):
            return HiddenEvent(session, epoch, start, count, payload, seconds, predicted)
        case ("failed", bytes(session), int(epoch), str(code), str(message)):
            return FailedEvent(session, epoch, code, message)
        case ("dropped", bytes(session), int(epoch), int(start), int(count)):
            return DroppedEvent(session, epoch, start, count)
    raise WireError(f"the worker sent `{header[0]}`, which is no event of ours")


def _parse_top(value: object) -> tuple[Likely, ...]:
    """Decode the most likely tokens of an event. Raises WireError if they are malformed."""
    found = []
    for each in value if isinstance(value, tuple) and len(value) <= MAX_TOP else (None,):
        match each:
            case (int(token), float(logprob)):
                found.append((token, logprob))
            case _:
                raise WireError("the worker sent malformed tokens with a token")
    return tuple(found)


def parse_pass(value: object, payload: Buffer) -> PassDone:
    """Decode the answer to a pass. Raises WireError if it is malformed."""
    match value:
        case (float(loss), int(counted), float(seconds), float(predicted)):
            return PassDone(loss, counted, seconds, predicted, payload)
    raise WireError("the worker answered `tune` with something else")


def loaded_value(loaded: Loaded) -> list[object]:
    """Encode the report on a loaded shard."""
    return [
        loaded.weight_bytes,
        loaded.kv_token_bytes,
        loaded.seconds,
        sorted(loaded.features),
        loaded.exactness,
        list(loaded.costs),
    ]


def parse_loaded(value: object) -> Loaded:
    """Decode the report on a loaded shard. Raises WireError if it is malformed."""
    match value:
        case (
            int(weight_bytes),
            int(kv_token_bytes),
            float(seconds),
            tuple() as features,
            str(exactness),
            (float(step_s), float(row_s), float(pair_s)),
        ):
            able, costs = frozenset(map(str, features)), ShardCosts(step_s, row_s, pair_s)
            return Loaded(weight_bytes, kv_token_bytes, seconds, able, exactness, costs)
    raise WireError("the worker answered `load` with something else")
