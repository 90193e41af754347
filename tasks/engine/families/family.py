"""A family of models, and all families that this engine computes.

Each module of the folder `supported` has one family, `FAMILY`. A new family is a new module there.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from . import supported
from .architecture import Architecture
from .reader import JsonReader


@dataclass(frozen=True, slots=True)
class Family:
    """A family of models.

    `name` is the `model_type` of its config.json, and `kind` the name in its `architectures`.
    `read` checks a config and returns the architecture; it raises EngineError. `quantised` are the
    values of `quant_method` with which it reads weights.
    """

    name: str
    kind: str
    read: Callable[[JsonReader], Architecture]
    quantised: frozenset[str] = frozenset()


@cache
def families() -> Mapping[str, Family]:
    """Return all supported families by `kind`, in the order of their names."""
    modules = [
        importlib.import_module(f"{supported.__name__}.{each.name}")
        for each in pkgutil.iter_modules(supported.__path__)
    ]
    found: list[Family] = [module.FAMILY for module in modules]
    return {each.kind: each for each in sorted(found, key=lambda each: each.name)}
