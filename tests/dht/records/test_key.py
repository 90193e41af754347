"""key: the key space, its metric, and its encodings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.dht.errors import BadRecord
from shoal.dht.records.key import (
    Key,
    KeyBytes,
    distance,
    key_at,
    key_text,
    node_key,
    parse_key,
    point,
    record_key,
)
from shoal.transport.decoding import typed
from shoal.transport.errors import Undecodable
from shoal.transport.message import Row
from tests.dht.nodes import peer


class Keyed(Row, frozen=True):
    """Message with a key."""

    key: KeyBytes


keys = st.binary(min_size=32, max_size=32).map(Key)


@given(keys, keys, keys)
def test_the_distance_is_a_metric(a: Key, b: Key, c: Key) -> None:
    assert distance(a, b) == distance(b, a)
    assert (distance(a, b) == 0) == (a == b)
    assert distance(a, c) <= distance(a, b) + distance(b, c)


@given(keys)
def test_encodings_round_trip(key: Key) -> None:
    assert parse_key(key_text(key)) == key
    assert key_at(point(key)) == key
    assert typed(Keyed, [bytes(key)]) == Keyed(key)


@pytest.mark.parametrize("text", ["", "ab", "A" * 64, "0" * 63, "0" * 65, "0" * 64 + "\n"])
def test_an_invalid_key_text_is_refused(text: str) -> None:
    with pytest.raises(BadRecord):
        parse_key(text)


@pytest.mark.parametrize("value", [None, b"", b"x" * 31, b"x" * 33, "x" * 32, 7, [b"x"] * 32])
def test_an_invalid_key_in_a_message_is_refused(value: object) -> None:
    with pytest.raises(Undecodable):
        typed(Keyed, [value])


def test_adjacent_parts_are_kept_apart() -> None:
    found = {
        record_key("blob", "ab", "c"),
        record_key("blob", "a", "bc"),
        record_key("blob", "abc"),
        record_key("bloba", "b", "c"),
        record_key("blob", "ab", "c", ""),
    }
    assert len(found) == 5


def test_node_keys_differ_from_record_keys() -> None:
    assert node_key(peer(1)) not in (record_key("peer", peer(1)), record_key("", peer(1)))
    assert node_key(peer(1)) != node_key(peer(2))
