"""Decoding counts depth and elements before it builds anything."""

import math
import time
import tracemalloc
from typing import Annotated, Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from shoal.transport import decoding
from shoal.transport.decoding import DEPTH, ITEMS, JSON_MARKS, Reader, decode, read_json
from shoal.transport.errors import Undecodable
from shoal.transport.message import Message

from ..bombs import DECODER_BOMBS
from ..cost import cost

MOST = 1 << 24


class Listed(Message, frozen=True, forbid_unknown_fields=True):
    """A message in JSON."""

    texts: Annotated[tuple[str, ...], Meta(max_length=4)] = ()
    text: str = ""

    def check(self) -> None:
        if self.text == "bad":
            raise ValueError("`text`: expected another one")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
    | st.text(max_size=300) | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=40,
)  # fmt: skip


def read(data: bytes, **bounds: Any) -> Any:
    return decode(data, limit=MOST, **bounds)


def built(data: bytes) -> Any:
    """Decode with msgpack alone, which has no bounds except the input's length."""
    return msgpack.unpackb(data, max_ext_len=0)


def nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


@given(VALUES)
def test_values_round_trip(value: Any) -> None:
    data = msgpack.packb(value)
    assert read(data) == value
    decoding.walk(data, DEPTH, ITEMS)  # which finds nothing wrong with it


@given(st.binary(max_size=60), st.integers(0, 59))
def test_the_walk_accepts_what_the_decoder_accepts(data: bytes, at: int) -> None:
    """For any input, the decoder builds exactly the value that was walked."""
    for some in (data, msgpack.packb([1, {"a": data}])[:at], msgpack.packb({b"": [data]}) + b"\0"):
        try:
            expected = repr(built(some))
        except (ValueError, TypeError):
            with pytest.raises(Undecodable):
                read(some)
        else:
            decoding.walk(some, 60, 60)
            assert repr(read(some)) == expected


@pytest.mark.parametrize("name", DECODER_BOMBS)
def test_a_bomb_costs_less_than_an_honest_value_of_its_size(name: str) -> None:
    data = DECODER_BOMBS[name]
    honest = msgpack.packb(list(range(200, 200 + min(len(data) // 3, ITEMS - 1))))

    def refuse() -> None:
        with pytest.raises(Undecodable):
            read(data)

    most = 0.0003 + 4e-9 * len(data)  # seconds: of pytest's own part, and of passing over it
    assert cpu(refuse) < 4 * cpu(lambda: read(honest)) + most
    tracemalloc.start()
    refuse()
    assert tracemalloc.get_traced_memory()[1] < 4 * len(data) + 2**16
    tracemalloc.stop()


def test_without_the_count_a_bomb_costs_a_hundred_times_as_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twin."""
    data = DECODER_BOMBS["arrays that end too early"]
    defended = cpu_of_refusing(data)
    monkeypatch.setattr(decoding, "walk", lambda *_: None)
    assert cpu_of_refusing(data) > 100 * defended


def cpu_of_refusing(data: bytes) -> float:
    def refuse() -> None:
        try:
            read(data)
        except Undecodable:
            return

    return cpu(refuse)


def cpu(work: Any) -> float:
    """Return the shortest of five runs, in seconds."""

    def once() -> float:
        began = time.process_time()
        work()
        return time.process_time() - began

    return min(once() for _ in range(5))


def test_depth_is_bounded_at_any_length() -> None:
    assert read(nested(DEPTH)) and read(nested(3), depth=3)
    for data, depth in ((nested(DEPTH + 1), DEPTH), (nested(4), 3), (b"\x90", 0)):
        with pytest.raises(Undecodable, match="too deeply"):
            read(data, depth=depth)
    wide = msgpack.packb([[[1]]] * 900)  # as many containers, but not in each other
    assert read(wide) == [[[1]]] * 900


def test_the_total_of_elements_is_bounded() -> None:
    pairs = msgpack.packb({str(i): [i] for i in range(100)})
    assert len(read(pairs, items=300)) == 100
    with pytest.raises(Undecodable, match="too many"):
        read(pairs, items=299)
    with pytest.raises(Undecodable, match="too many"):
        read(msgpack.packb([[0] * 64] * 64))
    assert len(read(msgpack.packb([0] * ITEMS))) == ITEMS


def test_the_size_is_checked_first() -> None:
    for data in (b"\xc0" * 9, memoryview(b"\xc0" * 9)):
        with pytest.raises(Undecodable, match="at most 8 bytes, got 9"):
            decode(data, limit=8)
        with pytest.raises(Undecodable, match="at most 8 bytes, got 9"):
            Reader(data, limit=8)


@pytest.mark.parametrize(
    "text",
    ["c70005", "d40500", "d6ff00000000", "91c70005", "c1", "", "a1", "c401", "dd000000"],
)
@pytest.mark.parametrize("walked", [False, True])
def test_foreign_values_are_refused(text: str, walked: bool) -> None:
    """Extension types including timestamps, an undefined byte, and no bytes at all."""
    data = bytes.fromhex(text)
    if walked:
        data = b"\xdc\x10\x00" + bytes(ITEMS - 1) + data
    with pytest.raises(Undecodable):
        read(data, items=2 * ITEMS)


def test_map_keys_are_text_or_bytes_and_may_have_to_be_unique() -> None:
    twice = b"\x82\xa1a\x01\xa1a\x02"
    assert read(twice) == {"a": 2}
    with pytest.raises(Undecodable, match="repeated key"):
        read(twice, once=True)
    for data in (b"\x81\x01\x02", b"\x81\x90\x02", b"\x81\x80\x02"):
        with pytest.raises(Undecodable):
            read(data)


def test_arrays_may_come_as_tuples() -> None:
    assert read(msgpack.packb(["a", [1, [2]]]), tuples=True) == ("a", (1, (2,)))


def test_a_reader_reads_step_by_step() -> None:
    reader = Reader(msgpack.packb({"a": 1, "b": [2]}), limit=100)
    assert reader.map() == 2
    assert (reader.flat(), reader.flat(), reader.flat()) == ("a", 1, "b")
    assert bytes(reader.skip()) == b"\x91\x02"
    with pytest.raises(Undecodable, match="too early"):
        reader.flat()


def test_a_reader_builds_no_container_and_no_long_text() -> None:
    for data in (b"\x91\x01", b"\x81\x01\x01", b"\xdd\xff\xff\xff\xff", b"\xa9123456789"):
        with pytest.raises(Undecodable):
            Reader(data, limit=100, text=8).flat()
    assert math.isnan(Reader(msgpack.packb(math.nan), limit=9).flat())


# JSON.


def from_json(data: bytes | bytearray) -> Listed:
    return read_json(Listed, data, limit=MOST)


def test_json_becomes_a_message() -> None:
    assert from_json(b'{"texts": ["a"], "text": "b, [c]"}') == Listed(("a",), "b, [c]")
    assert from_json(bytearray(b"{}")) == Listed()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b'{"new": 1}', "unknown field `new`"),
        (b'{"text": 1}', "expected `str`"),
        (b'{"text": "bad"}', "`text`: expected another one"),
        (b'{"texts": ["a", "b", "c", "d", "e"]}', "length <= 4"),
        (b'{"text": "\xff"}', "utf-8"),
        (b'{"text": "\\ud800"}', "truncated"),
        (b"{", "truncated"),
        (b'{"text": ' + b"[" * 9000, "expected `str`"),
    ],
)
def test_json_that_is_refused(data: bytes, text: str) -> None:
    with pytest.raises(Undecodable, match=text):
        from_json(data)


def test_json_is_bounded_before_it_is_built() -> None:
    with pytest.raises(Undecodable, match="at most 10 bytes"):
        read_json(Listed, b" " * 11, limit=10)
    bombs = (
        b'{"texts": [' + b'"ab",' * 1_000_000 + b'"ab"]}',
        b'""' * 2_500_000,
        b'"' + b"x" * 5_000_000,
        b'{"text":' + b'"a\\",' * 1_000_000,
    )
    tracemalloc.start()
    for data in bombs:
        with cost() as spent, pytest.raises(Undecodable):
            from_json(data)
        assert spent.reference_ms < 1000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def test_commas_in_texts_are_no_elements() -> None:
    text = '\\",[{' * JSON_MARKS
    assert from_json(b'{"text": "' + text.encode() + b'"}').text == text.replace("\\", "")
