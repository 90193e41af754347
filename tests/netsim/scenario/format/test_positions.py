"""Lines of keys: as a person counts them, and for every key that tomllib finds."""

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shoal.netsim.scenario.format.positions import Path, positions

TEXT = '''# a comment
a = 1

[table]
b.c = "x"  # [no] "table"
"quoted \\u0041" = """
two
lines"""

[[item]]
list = [
  1,
  { d = 2 }, # in a line
]
[[item]]
[[item.inner]]
when = 1979-05-27 07:32:00
'literal' = \'\'\'
]]\'\'\'
last = true
'''


def test_lines_are_those_a_person_counts() -> None:
    lines = positions(TEXT)
    assert lines["a",] == 2
    assert lines["table",] == 4
    assert lines["table", "b", "c"] == 5
    assert lines["table", "quoted A"] == 6
    assert lines["item", 0] == 10
    assert lines["item", 0, "list", 1, "d"] == 13
    assert lines["item", 1] == 15
    assert lines["item", 1, "inner", 0, "when"] == 17
    assert lines["item", 1, "inner", 0, "literal"] == 18
    assert lines["item", 1, "inner", 0, "last"] == 20


def paths(value: Any, at: Path = ()) -> set[Path]:
    items = (
        value.items() if isinstance(value, dict)
        else enumerate(value) if isinstance(value, list) else ()
    )  # fmt: skip
    return {at}.union(*(paths(inner, (*at, key)) for key, inner in items))


def test_every_key_has_a_line_and_no_other() -> None:
    assert set(positions(TEXT)) == paths(tomllib.loads(TEXT))


KEYS = st.text("ab-_1", min_size=1, max_size=3) | st.sampled_from(['"q k"', "'l.k'", '"\\\\"'])
SCALARS = st.sampled_from(
    ["1", "-0.5e3", "true", '"x"', "'y'", '"#"', '"\\""', '"""a\n"b"""', "'''\n]'''", '"]}"',
     "1979-05-27", "1979-05-27T07:32:00Z", "1979-05-27 07:32:00.5", "07:32:00", '""', "0xff"]
)  # fmt: skip
GAPS = st.sampled_from(["", " ", "\n", "\n# ] } = \n", "\t"])


@st.composite
def arrays(draw: Any, inner: st.SearchStrategy[str]) -> str:
    items = draw(st.lists(inner, max_size=3))
    gaps = [draw(GAPS) for _ in range(2)]
    end = draw(st.sampled_from(["", ","])) if items else ""
    joined = f",{gaps[1]}".join(items)
    return f"[{gaps[0]}{joined}{end}{gaps[1]}]"


@st.composite
def inline(draw: Any, inner: st.SearchStrategy[str]) -> str:
    found = draw(st.dictionaries(KEYS, inner, max_size=3))
    return "{ " + ", ".join(f"{key} = {value}" for key, value in found.items()) + " }"


VALUES = st.recursive(SCALARS, lambda inner: arrays(inner) | inline(inner), max_leaves=5)
PAIRS = st.builds("{} = {}".format, KEYS | st.builds("{}.{}".format, KEYS, KEYS), VALUES)
HEADERS = st.builds("[{}]".format, KEYS) | st.builds("[[{}]]".format, KEYS)
DEEP = st.builds("[[{}.{}]]".format, KEYS, KEYS) | st.builds("[ {} . {} ]".format, KEYS, KEYS)
DOCUMENTS = st.lists(PAIRS | HEADERS | DEEP | st.just("# c"), max_size=10).map("\n".join)


@given(DOCUMENTS)
def test_any_document(text: str) -> None:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    lines = positions(text)
    assert set(lines) == paths(data)
    assert all(1 <= line <= text.count("\n") + 1 for line in lines.values())
