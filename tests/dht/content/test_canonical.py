"""canonical: a unique byte form, and hostile bytes that cost little to refuse."""

import json
import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.dht.content import canonical
from shoal.dht.errors import ModelError


def reader(data: bytes) -> canonical.Reader:
    return canonical.Reader(data, "thing", text_limit=16)


@pytest.mark.parametrize(
    "text",
    ['{"a":1,"a":2}', '{"a":NaN}', "[Infinity]", "{", "\xff", "[" * 100_000, "[[[[1]]]]"],
)
def test_invalid_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        canonical.parse_json(text.encode("latin-1"), depth=3)


def test_json_depth_counts_containers() -> None:
    assert canonical.parse_json(b'[{"a":[1]}]', depth=3) == [{"a": [1]}]
    assert canonical.parse_json(b"7", depth=0) == 7
    with pytest.raises(ValueError, match="nested"):
        canonical.parse_json(b'[{"a":[1]}]', depth=2)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_json_has_one_form(value: dict[str, object]) -> None:
    data = canonical.dump_json(value)
    again = canonical.parse_json(json.dumps(value, indent=1).encode(), depth=40)
    assert canonical.dump_json(again) == data
    assert canonical.parse_json(data, depth=40) == value


@pytest.mark.parametrize(
    "data",
    [
        b"\xdd\xff\xff\xff\xff",  # an array of 4 billion
        b"\xdf\xff\xff\xff\xff",  # a map of 4 billion
        b"\xdb\xff\xff\xff\xff",  # a text of 4 GiB
        b"\xc6\xff\xff\xff\xff",  # bytes
        b"\xc9\xff\xff\xff\xff\x00",  # an extension
        b"\xdd\x00\xff\xff\xff" * 400,  # arrays of 16 million, nested
    ],
)
def test_bombs_allocate_nothing(data: bytes) -> None:
    tracemalloc.start()
    try:
        for read in (
            lambda: reader(data).value(),
            lambda: reader(data).map(8),
            lambda: reader(data).array(8),
        ):
            with pytest.raises(ModelError) as error:
                read()
            assert error.value.code == "bad-manifest"
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_the_bomb_takes_memory_without_the_limits() -> None:
    """Twin: the same bytes take real memory if items are not limited."""
    data = b"\xdd\x00\x10\x00\x00" + b"\xc0" * 2**20
    tracemalloc.start()
    try:
        msgpack.unpackb(data)
        assert tracemalloc.get_traced_memory()[1] > 4 * 2**20
    finally:
        tracemalloc.stop()
    with pytest.raises(ModelError):
        reader(data).value()


def test_trailing_bytes_are_seen() -> None:
    found = reader(b"\x01\x02")
    found.value()
    with pytest.raises(ModelError, match="follow"):
        found.end()
