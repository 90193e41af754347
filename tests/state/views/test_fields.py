"""Facts from peers are checked for types and bounds before they are used."""

import math
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from shoal.state.errors import BadFact
from shoal.state.views.fields import (
    read_bytes,
    read_each,
    read_fields,
    read_peer,
    read_rate,
    read_root,
    read_text,
    read_whole,
)
from shoal.transport.identity import Identity

PEER = Identity.from_seed(b"a" * 32).peer


def test_a_fact_is_a_map() -> None:
    assert read_fields(msgpack.packb({"a": 1, "later": [b"x"]})) == {"a": 1, "later": [b"x"]}


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xc1",
        msgpack.packb([1]),
        msgpack.packb({1: 2}),
        msgpack.packb({"a": 1})[:-1],
        msgpack.packb({"a": 1}) + b"\0",
        msgpack.packb({"a": msgpack.ExtType(5, b"x")}),
        msgpack.packb({"a": msgpack.Timestamp(1)}),
        b"\x82\xa1a\x01\xa1a\x02",  # one key twice
        b"\x81\xa1a" + b"\x91" * 16_000 + b"\x01",  # nested 16,000 times
        b"\x81\xa1a\xdd\xff\xff\xff\xff",  # a list of four thousand million
        b"\x81\xa2\xff\xfe\x01",  # no UTF-8
    ],
)
def test_values_that_are_no_map_are_refused(value: bytes) -> None:
    with pytest.raises(BadFact):
        read_fields(value)


def test_numbers_are_clamped() -> None:
    assert [read_whole(value, 9) for value in (-3, 0, 5, 10, 2**63)] == [0, 0, 5, 9, 9]
    assert read_whole(0, 9, 1) == 1
    assert [read_rate(value, 9.5, 1.0) for value in (-3, 0.5, 5, 2**63, 1e300)] == [
        1,
        1,
        5,
        9.5,
        9.5,
    ]


WRONG: list[tuple[Callable[[Any], object], tuple[object, ...]]] = [
    (lambda value: read_whole(value, 9), (None, True, 1.0, "1", b"1")),
    (lambda value: read_rate(value, 9.0), (None, True, math.inf, math.nan, "1")),
    (lambda value: read_text(value, 4), (None, b"abc", "abcde", "ääx", "a\x1b", "a\nb")),
    (lambda value: read_bytes(value, 4), (None, "abc", b"abcde")),
    (read_root, (None, b"0" * 64, "0" * 63, "0" * 65, "A" * 64, "0" * 64 + "\n")),
    (read_peer, (None, PEER + "x", PEER[:-1], PEER[:-1] + "0", PEER.encode())),
    (lambda value: read_each(value, 2, read_root), (None, "00", ["0" * 64] * 3, ["x"], {"a": 1})),
]


@pytest.mark.parametrize(
    ("read", "value"), [(read, value) for read, values in WRONG for value in values]
)
def test_values_of_a_wrong_type_or_size_are_refused(
    read: Callable[[Any], object], value: object
) -> None:
    with pytest.raises(BadFact):
        read(value)


def test_valid_values_are_read() -> None:
    assert read_text("äb c", 5) == "äb c" and read_bytes(b"abcd", 4) == b"abcd"
    assert read_root("0f" * 32) == "0f" * 32 and read_peer(PEER) == PEER
    assert read_each(["00" * 32, "11" * 32], 2, read_root) == ("00" * 32, "11" * 32)
