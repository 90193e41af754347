"""Tables read into dataclasses: values, defaults, and the messages for unknown words."""

from dataclasses import dataclass

import pytest

from shoal.netsim.errors import BadScenario, nearest
from shoal.netsim.scenario.format import units
from shoal.netsim.scenario.format.source import SourceDocument, knob, knobs


@dataclass(frozen=True)
class Table:
    name: str = knob(units.text, says="its name")
    kind: str = knob(units.text, "round", says="its kind", known=lambda: ("round", "square"))
    origins: tuple[str, ...] = knob(units.names, (), key="from", says="its source")
    line: int = 0


def read(text: str) -> Table:
    source = SourceDocument.parse(text)
    return source.read(Table, ("t",), source.table(("t",), source.data["t"]), "[t]")


def test_a_table() -> None:
    assert read('[t]\nname = "x"\nfrom = ["a"]') == Table("x", "round", ("a",))
    assert list(knobs(Table)) == ["name", "kind", "from"]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("[t]\nname = 3", 2, "name: `3` is not a text"),
        ('[t]\nname = "x"\nkind = "rund"', 3, "no kind `rund`"),
        ('[t]\nname = "x"\nline = 3', 3, "[t] has no key `line`"),
        ('[t]\nname = "x"\norigins = "a"', 3, "[t] has no key `origins`"),
        ('\n\n[t]\nkind = "round"', 3, "[t] needs `name`"),
        ("t = 3", 1, "`t` has to be a table"),
        ('[t]\nname = "x\n', 2, "not valid TOML"),
        ("[t]\nname = ", 2, "not valid TOML"),
    ],
)
def test_refused_tables(text: str, line: int, says: str) -> None:
    with pytest.raises(BadScenario) as caught:
        read(text)
    assert says in caught.value.message and caught.value.line == line


def test_the_nearest_word() -> None:
    assert nearest("crahs", ["crash", "heal"]) == "did you mean `crash`?"
    assert nearest("zzz", ["crash", "heal"]) == "known are `crash`, `heal`"
    assert nearest("=>", [">=", ">"]) == "did you mean `>=`?"
    assert nearest("zzz", []) == "none is known here"
