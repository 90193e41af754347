"""The combinations of families, precisions and devices that the tests cover.

tests/tasks/engine/test_matrix.py takes its cases from here, so that nothing is listed that is not
tested.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from .family import families

PRECISIONS: Final[Mapping[str, tuple[str, ...]]] = {"cpu": ("float32", "bfloat16", "int8", "int4")}
"""By kind of device, the precisions in which each family is compared with transformers."""


@dataclass(frozen=True, slots=True)
class Supported:
    """A family that is tested on a kind of device in some precisions."""

    family: str
    architecture: str  # in `architectures` of its config.json
    device: str
    precisions: tuple[str, ...]  # dtypes, or the precision of quantised weights


def supported() -> tuple[Supported, ...]:
    """Return all families on all devices, in the order of their names."""
    return tuple(
        Supported(family.name, family.kind, device, precisions)
        for family in families().values()
        for device, precisions in PRECISIONS.items()
    )
