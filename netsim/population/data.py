"""Loads the data files of this package. Each data file names its sources and units."""

import tomllib
from collections.abc import Collection
from functools import cache
from importlib import resources
from typing import Any

from ..errors import BadScenario, nearest


@cache
def text(name: str) -> str:
    """Return the text of a file of this package."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def table(name: str) -> dict[str, Any]:
    """Parse a TOML file of this package."""
    return tomllib.loads(text(name))


def unknown(what: str, name: str, known: Collection[str]) -> BadScenario:
    """Return the error for an unknown name, with a hint that suggests the nearest known name.
    `what` says what the name is for, such as "population".
    """
    return BadScenario(f"there is no {what} `{name}`", hint=nearest(name, known))
