"""Declared messages are bounded before they are built, by every way to decode them."""

import contextlib
import math
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, field

from shoal.transport.decoding import decode, read, read_rows, typed
from shoal.transport.errors import Undecodable
from shoal.transport.message import Digest, Message, Natural, Root, Row, check_text, pack

from ..bombs import DECODER_BOMBS
from .test_decoding import VALUES

ROOT = "ab" * 32
NETWORK = ("trio", "cryptography", "shoal.transport.host.seam")


class Item(Row, frozen=True):
    number: Annotated[int, Meta(ge=0, le=9)]
    data: Annotated[bytes, Meta(max_length=4)] = b""


class Thing(Message, frozen=True):
    count: Natural
    root: Root = ROOT
    sender: str = field(name="from", default="")
    yes: bool = False
    rate: float = 0.0
    digest: Digest = bytes(32)
    items: Annotated[tuple[Item, ...], Meta(max_length=3)] = ()

    def check(self) -> None:
        check_text(self.sender, 8)


def of_bytes(value: Any) -> Thing:
    return read(Thing, msgpack.packb(value), limit=1 << 24)


def of_value(value: Any) -> Thing:
    return typed(Thing, decode(msgpack.packb(value), limit=1 << 24))


WAYS: list[Callable[[Any], Thing]] = [of_bytes, of_value]


@pytest.mark.parametrize("way", WAYS)
def test_a_message_round_trips(way: Callable[[Any], Thing]) -> None:
    thing = Thing(2**64 - 1, sender="me", items=(Item(1, b"x"), Item(2)))
    fields = {"count": 2**64 - 1, "from": "me", "items": [[1, b"x"], [2, b""]]}
    assert pack(thing) == msgpack.packb(fields)
    assert way(fields) == thing
    assert way(fields | {"later": [[{}]], "items": [[1, b"x", "later"], [2]]}) == thing
    assert way({"count": 1, "rate": 3}).rate == 3.0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"count": -1},
        {"count": True},
        {"count": 1.0},
        {"count": "1"},
        {"count": None},
        {"root": ROOT + "\n"},
        {"root": ROOT.upper()},
        {"root": ROOT.encode()},
        {"from": "\x1b[2J"},
        {"from": "é" * 5},
        {"yes": 1},
        {"rate": True},
        {"digest": bytes(31)},
        {"digest": bytes(33)},
        {"digest": "x" * 32},
        {"items": [[0]] * 4},
        {"items": [[10]]},
        {"items": [[-1]]},
        {"items": [[]]},
        {"items": [[1, b"12345"]]},
        {"items": [[1, "1"]]},
        {"items": {"number": 1}},
        {"items": [{"number": 1}]},
        {1: 2},
        {b"count": 1},
        [],
        [1],
        None,
    ],
)
def test_other_types_and_values_out_of_bounds_are_refused(
    way: Callable[[Any], Thing], fields: Any
) -> None:
    with pytest.raises(Undecodable):
        way({"count": 1} | fields if isinstance(fields, dict) and fields else fields)


@given(st.sampled_from(["count", "root", "from", "yes", "rate", "digest", "items"]), VALUES)
def test_both_ways_refuse_the_same(name: str, value: Any) -> None:
    found = []
    for way in WAYS:
        try:
            found.append(repr(way({"count": 1, name: value})))
        except Undecodable:
            found.append("refused")
    assert found[0] == found[1]


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x81\xa5count", b"\x81\xa5count\x01\x00"])
def test_bytes_that_are_cut_or_follow_are_refused(data: bytes) -> None:
    with pytest.raises(Undecodable):
        read(Thing, data, limit=99)


def test_the_size_is_checked_first() -> None:
    with pytest.raises(Undecodable, match="at most 3 bytes, got 8"):
        read(Thing, pack(Thing(1)), limit=3)


def test_rows_are_counted() -> None:
    data = msgpack.packb([[1], [2, b"x"]])
    assert read_rows(Item, data, limit=99, most=2) == [Item(1), Item(2, b"x")]
    with pytest.raises(Undecodable, match="length <= 1"):
        read_rows(Item, data, limit=99, most=1)


def test_repeated_keys_of_what_is_signed_are_refused() -> None:
    data = b"\x82\xa5count\x01\xa5count\x02"
    assert read(Thing, data, limit=99).count == 2
    with pytest.raises(Undecodable, match="repeated"):
        typed(Thing, decode(data, limit=99, once=True))


def test_a_number_that_is_not_finite_is_left_to_check() -> None:
    assert math.isnan(of_bytes({"count": 1, "rate": math.nan}).rate)


class Strict(Message, frozen=True, forbid_unknown_fields=True):
    word: Literal["yes", "no"]


@pytest.mark.parametrize(
    "data",
    [{"word": "x" * 10_000}, {"x" * 10_000: 1}, {"\x1b[2J": 1}, {"word": "\x1b[2J"}],
)  # fmt: skip
def test_an_error_quotes_nothing_long_or_unprintable(data: dict[str, object]) -> None:
    with pytest.raises(Undecodable) as raised:
        read(Strict, msgpack.packb(data), limit=1 << 20)
    text = str(raised.value)
    assert len(text) <= 300 and text.isprintable()


@pytest.mark.parametrize("name", DECODER_BOMBS)
def test_a_bomb_in_any_field_builds_nothing(name: str) -> None:
    bomb = DECODER_BOMBS[name]
    for where in ("later", "count", "root", "items"):
        data = b"\x82\xa5count\x01" + msgpack.packb(where) + bomb
        began = time.thread_time()
        tracemalloc.start()
        with contextlib.suppress(Undecodable):
            read(Thing, data, limit=1 << 24)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**15
        assert time.thread_time() - began < 0.02


@pytest.mark.parametrize("module", ["tasks.text.child", "tasks.engine.worker"])
def test_child_processes_read_messages_without_the_network(module: str) -> None:
    """Loading trio and the keys takes 60 ms at each start of a child."""
    code = f"import sys, shoal.{module}; sys.exit(any(m in sys.modules for m in {NETWORK}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
