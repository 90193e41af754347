"""canonical: a unique form of JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.dht.content import canonical


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
