"""Encodes the interface's dataclasses as frames. Spec: docs/spec/engine.md, daemon and worker.

The worker's side of each is typed and bounded here, so that the rest of the worker reads plain
values. The daemon's side trusts its worker's types no more than that.
"""

import array
from typing import Any, TypeGuard

import msgpack

from ...transport.decoding import decode
from ...transport.errors import Undecodable
from .defaults import LOAD_DEPTH, LOAD_ITEMS, PAYLOAD_BYTES, STOP_IDS
from .errors import EngineError
from .interface import (
    EngineEvent,
    FailedEvent,
    HiddenEvent,
    Loaded,
    LoadShard,
    Parts,
    Sampling,
    Span,
    TensorSource,
    TokenEvent,
)
from .wire import Buffer, Header, WireError

_MOST_POSITIONS = 1 << 24
_TOKENS, _HIDDEN = 0, 1


def span_frame(span: Span) -> tuple[Header, Buffer]:
    """Encode a span. Raises EngineError `bad-span` unless it has exactly one input."""
    if (span.tokens is None) == (span.hidden is None):
        raise EngineError("bad-span", "a span has either tokens or hidden states")
    sampling = span.sampling
    header = (
        *("span", span.session, span.epoch, span.start, span.count),
        *(_HIDDEN if span.tokens is None else _TOKENS, span.want),
        *(sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed),
        *(span.steps, span.stop_ids, span.adapter, span.kind),
    )
    if span.hidden is not None:
        return header, span.hidden
    try:
        return header, array.array("i", span.tokens or ()).tobytes()
    except (OverflowError, TypeError):
        raise EngineError("bad-token", "a token id is not a 32-bit integer") from None


def parse_span(header: Header, payload: memoryview) -> Span:
    """Decode a span and check types and bounds. Raises EngineError `bad-span`."""
    if len(header) != 15:
        raise EngineError("bad-span", "the span has not its fields")
    _, session, epoch, start, count, source, want = header[:7]
    temperature, top_k, top_p, seed, steps, stop_ids, adapter, kind = header[7:]
    if not isinstance(session, bytes) or not _integer(epoch, 0, 1 << 62):
        raise EngineError("bad-span", "the span's session or epoch is malformed")
    if not _integer(start, 0, _MOST_POSITIONS) or not _integer(count, 1, _MOST_POSITIONS):
        raise EngineError("bad-span", "the span's start or count is out of range")
    if not _integer(steps, 1, _MOST_POSITIONS) or want not in ("hidden", "logits", "token"):
        raise EngineError("bad-span", "the span's steps or want is malformed")
    if not isinstance(stop_ids, tuple) or len(stop_ids) > STOP_IDS:
        raise EngineError("bad-span", f"the span has more than {STOP_IDS} stop ids")
    if not all(_integer(item, 0, 1 << 31) for item in stop_ids):
        raise EngineError("bad-span", "a stop id is not a token id")
    if adapter is not None or kind != "forward":
        raise EngineError("unsupported", "this engine has no adapters and no backward")
    return Span(
        session=session,
        epoch=epoch,
        start=start,
        count=count,
        tokens=_tokens(payload, count) if source == _TOKENS else None,
        hidden=payload if source != _TOKENS else None,
        want=want,
        sampling=_sampling(temperature, top_k, top_p, seed),
        steps=steps,
        stop_ids=stop_ids,
    )


def _tokens(payload: memoryview, count: int) -> tuple[int, ...]:
    if len(payload) != 4 * count:
        raise EngineError("bad-span", f"{len(payload) // 4} tokens were sent for {count}")
    return tuple(payload.cast("i"))


def _sampling(temperature: object, top_k: object, top_p: object, seed: object) -> Sampling:
    if not _number(temperature, 0.0, 100.0) or not _integer(top_k, 0, 1 << 31):
        raise EngineError("bad-span", "temperature or top_k is out of range")
    if not _number(top_p, 0.0, 1.0) or top_p == 0 or not _integer(seed, 0, (1 << 64) - 1):
        raise EngineError("bad-span", "top_p or seed is out of range")
    return Sampling(float(temperature), top_k, float(top_p), seed)


def _integer(value: object, low: int, high: int) -> TypeGuard[int]:
    return type(value) is int and low <= value <= high


def _number(value: object, low: float, high: float) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high


def load_payload(shard: LoadShard) -> bytes:
    tensors = [
        [list(item.roles), item.dtype, list(item.shape), list(item.chunks), list(item.digests)]
        for item in shard.tensors
    ]
    parts = shard.parts
    packed: bytes = msgpack.packb(
        {
            "root": shard.root,
            "parts": [parts.embedding, parts.start, parts.stop, parts.head],
            "config": dict(shard.config),
            "tensors": tensors,
            "dtype": shard.dtype,
            "kv_bytes": shard.kv_bytes,
        }
    )
    return packed


def parse_load(payload: memoryview) -> LoadShard:
    """Decode a load command. Raises EngineError `bad-config`."""
    try:
        fields: Any = decode(payload, limit=PAYLOAD_BYTES // 4, depth=LOAD_DEPTH, items=LOAD_ITEMS)
        embedding, start, stop, head = fields["parts"]
        shard = LoadShard(
            root=fields["root"],
            parts=Parts(embedding, start, stop, head),
            config=fields["config"],
            tensors=tuple(_tensor(*item) for item in fields["tensors"]),
            dtype=fields["dtype"],
            kv_bytes=fields["kv_bytes"],
        )
    except (Undecodable, ValueError, TypeError, KeyError) as error:
        raise EngineError("bad-config", "the shard's description cannot be read") from error
    if shard.dtype not in ("float32", "bfloat16"):
        raise EngineError("bad-config", "the shard's dtype is neither float32 nor bfloat16")
    if not isinstance(shard.config, dict) or not _integer(shard.kv_bytes, 0, 1 << 50):
        raise EngineError("bad-config", "the shard's config or KV size is malformed")
    if not all(_integer(item, 0, 1 << 20) for item in (start, stop)):
        raise EngineError("bad-config", "the shard's layers are malformed")
    return shard


def _tensor(
    roles: list[str], dtype: str, shape: list[int], chunks: list[str], digests: list[bytes]
) -> TensorSource:
    return TensorSource(tuple(roles), dtype, tuple(shape), tuple(chunks), tuple(digests))


def parse_event(header: Header, payload: memoryview) -> EngineEvent:
    """Decode a worker's event. Raises WireError."""
    match header:
        case ("token", bytes(session), int(epoch), int(position), int(token), *rest):
            match rest:
                case [float(logprob), bool(final), float(seconds)]:
                    return TokenEvent(session, epoch, position, token, logprob, final, seconds)
        case ("hidden", bytes(session), int(epoch), int(start), int(count), float(seconds)):
            return HiddenEvent(session, epoch, start, count, payload, seconds)
        case ("failed", bytes(session), int(epoch), str(code), str(message)):
            return FailedEvent(session, epoch, code, message)
    raise WireError(f"the worker sent `{header[0]}`, which is no event of ours")


def loaded_value(loaded: Loaded) -> list[object]:
    return [
        loaded.weight_bytes,
        loaded.kv_token_bytes,
        loaded.seconds,
        sorted(loaded.features),
    ]


def parse_loaded(value: object) -> Loaded:
    match value:
        case (int(weight_bytes), int(kv_token_bytes), float(seconds), tuple() as features):
            return Loaded(weight_bytes, kv_token_bytes, seconds, frozenset(map(str, features)))
    raise WireError("the worker answered `load` with something else")
