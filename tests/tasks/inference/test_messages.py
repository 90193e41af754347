"""Tests of messages: valid ones survive a round trip, malformed ones are refused."""

import math
import re
import struct
from typing import Any

import pytest
from msgspec.structs import replace

from shoal.tasks.defaults import MAX_BIAS
from shoal.tasks.engine.interface import Parts
from shoal.tasks.errors import BadMessage
from shoal.tasks.inference.messages import (
    STAGE_CODES,
    Close,
    Failed,
    FeedToken,
    Held,
    Open,
    PooledSpan,
    Probe,
    Quiet,
    SampledToken,
    SessionClosed,
    SessionSampling,
    SpanMessage,
    SpanProgress,
    pack_tokens,
    parse_opened,
    stage_code,
    unpack_states,
    unpack_tokens,
)
from shoal.tasks.inference.serving.recalling import Recall
from shoal.transport.identity import PeerId

SESSION = b"0123456789abcdef"
PEER = PeerId("12D3KooWexample")
BIAS = tuple((each, 0.1 * each - 50.0) for each in range(MAX_BIAS - 30))
OPEN = Open(
    session=SESSION,
    epoch=1,
    root="0a" * 32,
    parts=Parts(True, 0, 4, True),
    dtype="bfloat16",
    stages=(PEER,),
    index=0,
    tokens=100,
    soon=60,
    steps=10,
    stop_ids=(2, 3),
    sampling=SessionSampling(0.5, 40, 0.9, 2**64 - 1),
)
MESSAGES = [
    OPEN,
    SpanMessage(SESSION, 1, 2, 0, 4, True, 0.5, PEER),
    SpanMessage(SESSION, 1, 0, 0, 4, False, 0.0),
    FeedToken(SESSION, 1, 5, 17, PEER),
    SampledToken(SESSION, 1, 5, 17, -0.25, False, 0.001),
    SpanProgress(SESSION, 1, 256),
    Failed(SESSION, 1, "gap", "a gap"),
    Close(SESSION),
    Failed(SESSION, 1, "stage-lost", "it went", PEER),
    Quiet(SESSION, 1, PEER, True),
    replace(OPEN, job="cd" * 32),
    replace(OPEN, adapter="cd" * 32),
    replace(OPEN, pooled=True, user=b"u" * 16),
    replace(OPEN, pooled=True, steps=0, stop_ids=None, sampling=None),
    PooledSpan(SESSION, 1, 256),
    replace(OPEN, top=20),
    replace(OPEN, sampling=SessionSampling(0.5, 40, 0.9, 7, 0.1, BIAS, 1.5, -2.0, 2.0)),
    Recall(SESSION, 1, 2, 300, 250),
    SampledToken(SESSION, 1, 5, 17, -0.25, False, 0.001, ((17, -0.25), (3, -2.0))),
    SpanMessage(SESSION, 1, 0, 1280, 4, False, 0.0, behind=256),
    Held(SESSION, 1, 2, 256, 1280, True),
    replace(OPEN, skips=True),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_round_trip(message: Any) -> None:
    assert type(message).parse(message.header()) == message


def test_only_the_head_is_told_how_to_sample() -> None:
    middle = Open(SESSION, 1, "0a" * 32, Parts(False, 1, 2, False), "float32", (PEER,), 0, 9, 9)
    assert not {"sampling", "stop_ids", "steps"} & set(middle.header())


BAD = [
    (-3, "behind", -1),
    (-3, "behind", 2**24),
    (-2, "index", 64),
    (-2, "start", -1),
    (-2, "stop", 2**24 + 1),
    (-2, "more", 1),
    (-1, "skips", 1),
    (0, "session", b"short"),
    (0, "session", "0123456789abcdef"),
    (0, "epoch", 0),
    (0, "epoch", 2**32),
    (0, "epoch", True),
    (0, "epoch", 1.0),
    (0, "root", "0A" * 32),
    (0, "root", "0a" * 31),
    (0, "parts", [True, 0, 4]),
    (0, "parts", [1, 0, 4, True]),
    (0, "parts", [True, 4, 0, True]),
    (0, "parts", [True, 0, 4097, True]),
    (0, "parts", "abcd"),
    (0, "dtype", "float16"),
    (0, "dtype", ["float32"]),
    (0, "stages", []),
    (0, "stages", [str(number) for number in range(65)]),
    (0, "stages", [b"bytes"]),
    (0, "stages", ["x" * 65]),
    (0, "index", 1),
    (0, "index", -1),
    (0, "soon", 0),
    (0, "soon", 101),
    (0, "soon", True),
    (0, "adapter", "ab"),
    (0, "adapter", "Z" * 64),
    (1, "index", 64),
    (1, "index", -1),
    (0, "tokens", 0),
    (0, "tokens", 2**24 + 1),
    (0, "steps", 0),
    (0, "stop_ids", list(range(65))),
    (0, "stop_ids", [-1]),
    (0, "sampling", [0.0, 0, 1.0]),
    (0, "sampling", {"temperature": float("nan")}),
    (0, "sampling", {"temperature": -1.0}),
    (0, "sampling", {"top_p": 0.0}),
    (0, "sampling", {"seed": 2**64}),
    (0, "sampling", {"min_p": 1.1}),
    (0, "sampling", {"repetition": 0.0}),
    (0, "sampling", {"frequency": -2.1}),
    (0, "sampling", {"presence": float("nan")}),
    (0, "sampling", {"bias": [[5, 1.0], [4, 1.0]]}),
    (0, "sampling", {"bias": [[5, 1.0], [5, 1.0]]}),
    (0, "sampling", {"bias": [[-1, 1.0]]}),
    (0, "sampling", {"bias": [[2**31, 1.0]]}),
    (0, "sampling", {"bias": [[5, 100.5]]}),
    (0, "sampling", {"bias": [[5, float("inf")]]}),
    (0, "sampling", {"bias": [[each, 1.0] for each in range(MAX_BIAS + 1)]}),
    (0, "sampling", {"bias": 1}),
    (0, "job", "cd" * 31),
    (0, "job", "CD" * 32),
    (0, "job", True),
    (0, "pooled", 1),
    (0, "top", 21),
    (0, "top", -1),
    (4, "top", [[1, -1.0]] * 21),
    (4, "top", [[1]]),
    (4, "top", [[-1, -1.0]]),
    (4, "top", [[1, 0.5]]),
    (4, "top", [[1, float("nan")]]),
    (0, "user", b"u" * 17),
    (0, "user", "me"),
    (1, "gateway", 5),
    (1, "gateway", "x" * 65),
    (1, "start", -1),
    (1, "start", 2**24),
    (1, "count", 0),
    (1, "count", 4097),
    (1, "token", 1),
    (1, "seconds", float("inf")),
    (1, "seconds", -1.0),
    (1, "seconds", "1"),
    (3, "position", 2**24),
    (3, "token", 2**32),
    (4, "position", -1),
    (4, "logprob", float("nan")),
    (4, "logprob", 1.0),
    (4, "final", 0),
    (4, "seconds", True),
    (5, "position", None),
    (6, "code", "x" * 33),
    (6, "message", "x" * 301),
    (7, "session", None),
    (8, "lost", b"x"),
    (8, "lost", "x" * 65),
]


@pytest.mark.parametrize(("index", "key", "value"), BAD)
def test_a_bad_value_is_refused_by_name(index: int, key: str, value: object) -> None:
    message: Any = MESSAGES[index]
    with pytest.raises(BadMessage, match=key):
        type(message).parse({**message.header(), key: value})


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_key_is_needed(message: Any) -> None:
    optional = {"gateway", "lost", "job", "pooled", "adapter", "user", "top", "prompt"}
    optional |= {"behind", "skips"}
    if getattr(message, "pooled", False):
        optional |= {"steps", "stop_ids", "sampling"}
    for key in message.header():
        if key not in optional:
            rest = {name: value for name, value in message.header().items() if name != key}
            with pytest.raises(BadMessage, match=key):
                type(message).parse(rest)


def test_a_failure_is_shortened_and_made_printable() -> None:
    sent = Failed(SESSION, 1, "c" * 50, "\x1b[2J" + "m" * 500).header()
    assert sent["code"] == "c" * 32
    assert Failed.parse(sent).message.startswith("?[2Jmmm")


@pytest.mark.parametrize("code", ["no-route", "NO", "", "\x1b[2J", "gap\n", "prompt-too-long", "é"])
def test_an_unknown_code_is_replaced(code: str) -> None:
    header = {**Failed(SESSION, 1, "gap", "a gap").header(), "code": code}
    assert Failed.parse(header).code == "stage-failed"


def test_codes_of_stages_are_plain_words() -> None:
    plain = re.compile(r"[a-z0-9-]{1,32}")
    assert all(plain.fullmatch(code) and stage_code(code) == code for code in STAGE_CODES)


def test_tokens_are_packed_as_32_bit_numbers() -> None:
    assert pack_tokens([1, 258]) == b"\x01\0\0\0\x02\x01\0\0"
    assert unpack_tokens(memoryview(pack_tokens([1, 258])), 2) == (1, 258)
    with pytest.raises(BadMessage):
        unpack_tokens(b"\0" * 7, 2)
    with pytest.raises(BadMessage):
        unpack_tokens(b"\0" * 12, 2)


def test_a_cached_prefix_is_within_the_session() -> None:
    assert parse_opened({"cached": 3}, 3).cached == 3
    for value in (4, -1, None):
        with pytest.raises(BadMessage):
            parse_opened({"cached": value}, 3)


def test_a_stage_agrees_to_how_hidden_states_travel() -> None:
    assert parse_opened({"cached": 0, "activations": "int8"}, 3, "int8").cached == 0
    for said, asked in (("int8", "exact"), (None, "int8"), ("int4", "int8")):
        with pytest.raises(BadMessage):
            parse_opened({"cached": 0} | ({"activations": said} if said else {}), 3, asked)  # type: ignore[arg-type]


def test_a_close_tells_the_rates_of_slow_links() -> None:
    assert SessionClosed.parse({}).slow == ()
    assert SessionClosed.parse({"slow": [["peer", 5.0]]}).slow == (("peer", 5.0),)
    for slow in ([["peer", 0.0]], [["peer", math.inf]], [["peer", math.nan]], [["", 1.0]],
                 [["peer"]], [["peer", 1.0]] * 65, 5):  # fmt: skip
        with pytest.raises(BadMessage):
            SessionClosed.parse({"slow": slow})


@pytest.mark.parametrize("values", [(), (1.0,), (1.0, 2.0, 3.0), (1.0, math.nan), (math.inf, 0.0)])
def test_states_are_of_the_expected_number_and_finite(values: tuple[float, ...]) -> None:
    with pytest.raises(BadMessage):
        unpack_states(struct.pack(f"<{len(values)}f", *values), 2)
    assert unpack_states(struct.pack("<2f", 0.5, -1.0), 2) == (0.5, -1.0)


@pytest.mark.parametrize(
    "change",
    [{"root": "xy"}, {"parts": [True, 2, 1, False]}, {"parts": 7}, {"dtype": "int8"}],
)
def test_a_malformed_probe_is_refused(change: dict[str, Any]) -> None:
    question = Probe("0a" * 32, Parts(True, 0, 2, False), "float32").fields()
    question["parts"] = [True, 0, 2, False]
    assert Probe.parse(question).parts == Parts(True, 0, 2, False)
    with pytest.raises(BadMessage):
        Probe.parse(question | change)
