"""Quantities: values that are read, and values that are refused."""

from typing import Any

import pytest

from shoal.netsim.scenario.format import units


@pytest.mark.parametrize(
    ("read", "value", "found"),
    [
        (units.duration, "10m", 600.0),
        (units.duration, "150ms", 0.15),
        (units.duration, "1.5 h", 5400.0),
        (units.span, "-3s", -3.0),
        (units.rate, "40Mbit/s", 5e6),
        (units.rate, "1kB/s", 1000.0),
        (units.size, "1MiB", 1 << 20),
        (units.size, "1.5kB", 1500),
        (units.share, "2%", 0.02),
        (units.share, 0.5, 0.5),
        (units.seeds, 7, (7,)),
        (units.seeds, "2..4", (2, 3, 4)),
        (units.seeds, [5, 3], (5, 3)),
        (units.names, "a", ("a",)),
        (units.names_or_none, [], ()),
        (units.groups, [["a"], "b"], (("a",), ("b",))),
    ],
)
def test_read(read: Any, value: Any, found: Any) -> None:
    assert read(value) == pytest.approx(found) if isinstance(found, float) else found == read(value)


@pytest.mark.parametrize(
    ("read", "values"),
    [
        (
            units.duration,
            [10, "10", "10 parsecs", "-1s", "1e3s", "", "s", True, None, ["1s"], "nan"],
        ),
        (units.period, ["0s"]),
        (units.rate, ["0Mbit/s", "40Mbps", "40 mbit/s", 5]),
        (units.size, ["-1B", "0.5B", "1 kb", 100]),
        (units.share, ["120%", -0.1, 1.5, float("nan"), float("inf"), "half", True]),
        (units.number, [float("nan"), float("inf"), "1", True]),
        (units.whole, [-1, 1.0, True, "1"]),
        (units.positive, [0]),
        (units.switch, [1, "true"]),
        (units.text, ["", "  ", 3]),
        (units.seeds, ["4..2", "a", [], [1, 1], -1, 1.5, "0..9999999", [True]]),
        (units.names, [[], 3, [""], [3]]),
        (units.groups, [[["a"]], "a", [[], ["b"]], {}]),
    ],
)
def test_refused(read: Any, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=r"\w"):
            read(value)
