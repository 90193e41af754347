"""The data files that lie beside this one. Each names its sources and its units."""

import tomllib
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Any

from ..errors import BadScenario


@cache
def text(name: str) -> str:
    """A file of this package."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def table(name: str) -> dict[str, Any]:
    """A TOML file of this package."""
    return tomllib.loads(text(name))


def unknown(what: str, name: str, known: Any) -> BadScenario:
    """The error for a name that is not there, with the nearest that is."""
    names = sorted(known)
    near = get_close_matches(name, names, 1)
    hint = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(names)}"
    return BadScenario(f"no {what} `{name}`", hint=hint)
