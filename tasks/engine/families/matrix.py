"""The combinations of families, precisions and devices that the tests cover.

tests/tasks/engine/test_matrix.py and test_card.py take their cases from here, so that nothing is
listed that is not tested.
"""

from dataclasses import dataclass
from typing import Final

from .family import families

CPU: Final = ("float32", "bfloat16", "int8", "int4")
"""Precisions in which each family is compared with transformers."""
CUDA: Final = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Families that are compared with transformers in float32 by the kernels of a graphics card."""


@dataclass(frozen=True, slots=True)
class Supported:
    """A family on a kind of device, and in which precisions it is tested there."""

    family: str
    architecture: str  # in `architectures` of its config.json
    device: str
    precisions: tuple[str, ...]  # dtypes, or the precision of quantised weights; empty: not tested


def supported() -> tuple[Supported, ...]:
    """Return all families on all devices, in the order of their names."""
    return tuple(
        Supported(family.name, family.kind, device, precisions)
        for family in families().values()
        for device, precisions in (
            ("cpu", CPU),
            ("cuda", ("float32",) if family.kind in CUDA else ()),
        )
    )
