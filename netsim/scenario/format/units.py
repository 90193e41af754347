"""Readers that convert quantities as people write them: `10m`, `150ms`, `40Mbit/s`, `1MiB`, `2%`.

Each reader takes a TOML value, and returns it in the simulator's unit: seconds, bytes per second,
bytes, or a share from 0 to 1. It raises ValueError if the value is wrong. The message says what is
wrong and what would be right.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# Units by name, in seconds, bytes per second and bytes.
TIMES: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
RATES: Final = {
    "bit/s": 1 / 8, "kbit/s": 1e3 / 8, "Mbit/s": 1e6 / 8, "Gbit/s": 1e9 / 8,
    "B/s": 1.0, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9,
}  # fmt: skip
SIZES: Final = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9,
                "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}  # fmt: skip

SHORTEST: Final = 1e-6
LONGEST: Final = 3650 * TIMES["d"]
"""Bounds of a time, in seconds: the clock's rounding would distort times outside them."""

_QUANTITY: Final = re.compile(r"([+-]?[0-9]+(?:\.[0-9]+)?) *([A-Za-z/%]*)")


def _quantity(value: object, units: Mapping[str, float], what: str, example: str) -> float:
    """Convert a text of a number and a unit to the base unit. `units` has the factor of each unit.

    `what` and `example` are for the message of the ValueError.
    """
    if not isinstance(value, str):
        raise ValueError(f'a {what} needs a unit, as "{example}"')
    found = _QUANTITY.fullmatch(value.strip())
    if found is None:
        raise ValueError(f'`{value}` is not a {what}; write it as "{example}"')
    number, unit = found.groups()
    if unit not in units:
        known = ", ".join(units)
        raise ValueError(f'`{value}`: the units of a {what} are {known}, as in "{example}"')
    return float(number) * units[unit]


def span(value: object) -> float:
    """Read a time, positive or negative. Return it in seconds.

    Raises ValueError if it is malformed or over ten years.
    """
    seconds = _quantity(value, TIMES, "time", "10s")
    if abs(seconds) > LONGEST:
        raise ValueError(f"`{str(value)[:40]}`: a time here is at most ten years")
    return seconds


def duration(value: object) -> float:
    """Read a time that is not negative. Return it in seconds.

    Raises ValueError if it is malformed or negative.
    """
    seconds = span(value)
    if seconds < 0:
        raise ValueError(f"`{value}`: a time here cannot be negative")
    return seconds


def period(value: object) -> float:
    """Read a time greater than 0. Return it in seconds.

    Raises ValueError if it is malformed or under 1us.
    """
    seconds = duration(value)
    if seconds <= 0:
        raise ValueError(f"`{value}`: a time here has to be greater than 0")
    if seconds < SHORTEST:
        raise ValueError(f"`{value}`: a time here is at least 1us")
    return seconds


def rate(value: object) -> float:
    """Read a rate greater than 0. Return it in bytes per second.

    Raises ValueError if it is malformed or not positive.
    """
    found = _quantity(value, RATES, "rate", "40Mbit/s")
    if found <= 0:
        raise ValueError(f"`{value}`: a rate has to be greater than 0")
    return found


def size(value: object) -> int:
    """Read a size. Return it in bytes.

    Raises ValueError if it is malformed or no whole number of bytes.
    """
    found = _quantity(value, SIZES, "size", "1MiB")
    if found < 0 or not found.is_integer():
        raise ValueError(f"`{value}`: a size is a whole number of bytes")
    return int(found)


def share(value: object) -> float:
    """Read a probability or proportion, `"2%"` or `0.02`. Return a number from 0 to 1.

    Raises ValueError for anything else.
    """
    if isinstance(value, str):
        found = _quantity(value, {"%": 0.01}, "share", "2%")
    else:
        found = number(value)
    if not 0 <= found <= 1:
        raise ValueError(f"`{value}`: a share has to be from 0 to 1 (0% to 100%)")
    return found


def number(value: object) -> float:
    """Read a finite number. Raises ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"`{value}` is not a number")
    if not math.isfinite(value):
        raise ValueError(f"`{value}`: a number here has to be finite")
    return float(value)


def whole(value: object) -> int:
    """Read a whole number from 0. Raises ValueError if it is negative or has over 63 bits."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"`{value}` is not a whole number")
    if value < 0:
        raise ValueError(f"`{value}`: a number here cannot be negative")
    if value >= 1 << 63:
        raise ValueError("a number here has at most 63 bits")
    return value


def positive(value: object) -> int:
    """Read a whole number from 1. Raises ValueError for anything else."""
    found = whole(value)
    if not found:
        raise ValueError("a number here is at least 1")
    return found


@dataclass(frozen=True, slots=True)
class Count:
    """Reader of a whole number from 1 to `most`."""

    most: int

    def __call__(self, value: object) -> int:
        found = positive(value)
        if found > self.most:
            raise ValueError(f"`{value}`: a number here is at most {self.most}")
        return found


def switch(value: object) -> bool:
    """Read true or false. Raises ValueError for anything else."""
    if not isinstance(value, bool):
        raise ValueError(f"`{value}` is neither true nor false")
    return value


def text(value: object) -> str:
    """Return the value as a string. Raises ValueError if it is no string, or blank."""
    if not isinstance(value, str):
        raise ValueError(f"`{value}` is not a text; write it in quotes")
    if not value.strip():
        raise ValueError("a text here cannot be empty")
    return value


def seeds(value: object) -> tuple[int, ...]:
    """Read seeds: a number, `"1..50"` (including both ends), or a list of numbers.

    Raises ValueError for anything else, and if a seed comes twice.
    """
    if isinstance(value, str):
        found = re.fullmatch(r"([0-9]{1,18})(?:\.\.([0-9]{1,18}))?", value.strip())
        if found is None:
            raise ValueError(f'`{value}` is not a seed; write a number or "1..50"')
        first = int(found[1])
        last = int(found[2]) if found[2] is not None else first
        if last < first:
            raise ValueError(f"`{value}`: the first seed cannot be after the last")
        if last - first >= 10**6:
            raise ValueError(f"`{value}`: at most a million seeds at a time")
        return tuple(range(first, last + 1))
    if isinstance(value, list):
        if not value:
            raise ValueError("a list of seeds needs at least one")
        numbers = tuple(whole(item) for item in value)
        if len(set(numbers)) < len(numbers):
            raise ValueError("the list contains a seed twice")
        return numbers
    return (whole(value),)


def names(value: object) -> tuple[str, ...]:
    """Read a name or a list of names. An empty list is refused.

    Raises ValueError for anything else.
    """
    if isinstance(value, str):
        return (text(value),)
    if not isinstance(value, list) or not value:
        raise ValueError(f"`{value}` is neither a name nor a list of names")
    return tuple(text(item) for item in value)


def names_or_none(value: object) -> tuple[str, ...]:
    """Read a name or a list of names, which can be empty."""
    return () if value == [] else names(value)


def groups(value: object) -> tuple[tuple[str, ...], ...]:
    """Read a list of at least two lists of names. Raises ValueError for anything else."""
    if not isinstance(value, list) or len(value) < 2:
        raise ValueError('groups are two or more lists of names: [["a"], ["b", "c"]]')
    return tuple(names(item) for item in value)


def table(value: object) -> dict[str, object]:
    """Read a table. Its keys are not checked. Raises ValueError for anything else."""
    if not isinstance(value, dict):
        raise ValueError(f"`{value}` is not a table; write it as {{ key = value }}")
    return value


def unread(value: object) -> None:
    """Check that a value is a table, and return None.

    The caller parses the table later, once it knows the keys that the table can have.
    """
    table(value)
