"""The data files that lie beside this one. Each names its sources and its units."""

import tomllib
from collections.abc import Collection
from functools import cache
from importlib import resources
from typing import Any

from ..errors import BadScenario, nearest


@cache
def text(name: str) -> str:
    """A file of this package."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def table(name: str) -> dict[str, Any]:
    """A TOML file of this package."""
    return tomllib.loads(text(name))


def unknown(what: str, name: str, known: Collection[str]) -> BadScenario:
    """The error for a name that is not there, with the nearest that is."""
    return BadScenario(f"no {what} `{name}`", hint=nearest(name, known))
