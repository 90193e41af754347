"""Dataclasses to frames and back."""

import math
from dataclasses import replace
from typing import Any

import pytest

from shoal.dht.defaults import CONFIG_DEPTH
from shoal.tasks.costs.shardcosts import ShardCosts
from shoal.tasks.engine.defaults import STOP_IDS
from shoal.tasks.engine.errors import EngineError
from shoal.tasks.engine.interface import (
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
from shoal.tasks.engine.messages import (
    load_payload,
    loaded_value,
    parse_event,
    parse_load,
    parse_loaded,
    parse_span,
    span_frame,
)
from shoal.tasks.engine.wire import WireError

NAME = b"n" * 16
JUNK: tuple[object, ...] = (None, "junk", -1, math.nan, b"", ("x",), {})
SHARD = LoadShard(
    root="ab",
    parts=Parts(True, 0, 2, False),
    config={"hidden_size": 3, "rope": {"factor": 1.5}, "list": [1, None]},
    tensors=(TensorSource(("a", "b"), "F32", (3, 4), ("/x", "/y"), (b"1" * 32, b"2" * 32)),),
    dtype="bfloat16",
    kv_bytes=1 << 40,
)


def test_a_span_survives_a_round_trip() -> None:
    span = Span(NAME, 4, 5, 3, tokens=(1, 2, 3), want="token", steps=9, stop_ids=(2, 3), top=20)
    span = replace(span, sampling=Sampling(0.7, 4, 0.9, (1 << 64) - 1))
    header, payload = span_frame(span)
    assert parse_span(tuple(header), memoryview(payload)) == span
    hidden = Span(NAME, 0, 0, 1, hidden=memoryview(b"abcd"))
    header, payload = span_frame(hidden)
    assert parse_span(tuple(header), memoryview(payload)) == hidden


def test_spans_that_cannot_be_sent() -> None:
    span = Span(NAME, 0, 0, 1)
    for change in ({}, {"tokens": (1,), "hidden": b""}, {"tokens": (1 << 40,)}):
        with pytest.raises(EngineError):
            span_frame(replace(span, **change))


def test_every_field_of_a_span_is_typed() -> None:
    header, payload = span_frame(Span(NAME, 0, 0, 1, tokens=(1,), stop_ids=(5,)))
    for index in range(1, len(header)):
        if index == 5:  # the input's kind
            continue
        for junk in JUNK:
            if junk == header[index]:
                continue
            broken = (*header[:index], junk, *header[index + 1 :])
            if index == 1 and isinstance(junk, bytes):
                continue  # looked up, and not found
            with pytest.raises(EngineError):
                parse_span(broken, memoryview(payload))
    with pytest.raises(EngineError):
        parse_span(tuple(header[:-1]), memoryview(payload))
    many = (*header[:12], (5,) * (STOP_IDS + 1), *header[13:])
    with pytest.raises(EngineError):
        parse_span(many, memoryview(payload))


def test_a_shard_survives_a_round_trip() -> None:
    assert parse_load(memoryview(load_payload(SHARD))) == SHARD


def test_a_config_of_maximum_depth_survives_a_round_trip() -> None:
    config: dict[str, Any] = {}
    for _ in range(CONFIG_DEPTH - 1):
        config = {"a": config}
    shard = replace(SHARD, config=config)
    assert parse_load(memoryview(load_payload(shard))) == shard


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "int8"},
        {"config": {}, "kv_bytes": -1},
        {"kv_bytes": 1 << 60},
        {"parts": Parts(True, -1, 2, False)},
        {"parts": Parts(True, "a", 2, False)},  # type: ignore[arg-type]
    ],
)
def test_malformed_shards_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(EngineError):
        parse_load(memoryview(load_payload(replace(SHARD, **change))))


def test_shards_that_are_no_shards_are_refused() -> None:
    for junk in (b"", b"\xc1", b"\x80", b"\x01", load_payload(SHARD)[:-1]):
        with pytest.raises(EngineError):
            parse_load(memoryview(junk))


def test_events_arrive_typed() -> None:
    data = memoryview(b"abc")
    assert parse_event(("hidden", NAME, 1, 2, 3, 0.5, 0.4), data) == HiddenEvent(
        NAME, 1, 2, 3, data, 0.5, 0.4
    )
    token = parse_event(("token", NAME, 1, 2, 3, -0.5, True, 0.1, 0.2), data)
    assert token == TokenEvent(NAME, 1, 2, 3, -0.5, True, 0.1, (), 0.2)
    assert parse_event(("failed", NAME, 1, "c", "m"), data) == FailedEvent(NAME, 1, "c", "m")
    for junk in (("hidden",), ("token", NAME, 1, 2, 3, "x", True, 0.1), ("other", 1), ("failed",)):
        with pytest.raises(WireError):
            parse_event(junk, data)


def test_what_load_reports() -> None:
    costs = ShardCosts(0.01, 0.002, 1e-7)
    loaded = Loaded(5, 6, 0.5, frozenset({"forward", "logits"}), "AVX512 onednn", costs)
    value = loaded_value(loaded)
    sent = (*value[:3], tuple(value[3]), value[4], tuple(value[5]))  # type: ignore[arg-type]
    assert parse_loaded(sent) == loaded
    for junk in (7, sent[:5], (*sent[:5], (0.1, 0.1)), (*sent[:5], ("x", 0.1, 0.1))):
        with pytest.raises(WireError):
            parse_loaded(junk)


@pytest.mark.parametrize(
    "top", [7, "x", ((1,),), ((1, 2),), ((1.0, -1.0),), (("a", -1.0),), ((1, -1.0),) * 21]
)
def test_malformed_tokens_beside_a_token_are_refused(top: object) -> None:
    header = ("token", NAME, 0, 5, 7, -0.5, True, 0.25, 0.2)
    event = parse_event((*header, ((1, -1.0), (2, -2.0))), memoryview(b""))
    assert isinstance(event, TokenEvent) and event.top == ((1, -1.0), (2, -2.0))
    with pytest.raises(WireError):
        parse_event((*header, top), memoryview(b""))
    with pytest.raises(WireError):
        parse_event((*header, (), ()), memoryview(b""))
