"""Hidden states on a link: exact, or as int8 in blocks. Spec: docs/spec/engine.md, packed states.

A packed row has one int8 for each hidden value, followed by one float16 scale for each block of
BLOCK_VALUES values. The last block may be shorter. A value is its int8 times the block's scale.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

Activations = Literal["exact", "int8"]
"""How the stages of a session send hidden states to each other."""

BLOCK_VALUES: Final = 64
"""Hidden values that share a scale."""


def packed_bytes(hidden: int) -> int:
    """Return the size in bytes of a packed row of `hidden` values."""
    return hidden + 2 * -(-hidden // BLOCK_VALUES)


class PackingLoss(NamedTuple):
    """What packing at every boundary of layers has changed in a check of a family.

    `agreement` is the share of positions whose most likely token stayed the same, and `divergence`
    the mean Kullback-Leibler divergence of the distributions, in nats. `routing` is the share of
    rows whose experts stayed the same in a layer, 1 for models without experts.
    """

    agreement: float
    divergence: float
    routing: float = 1.0

    @property
    def passed(self) -> bool:
        """Whether a family with this loss may use packed states."""
        return (
            self.agreement >= LEAST_AGREEMENT
            and self.divergence <= MOST_DIVERGENCE
            and self.routing >= LEAST_ROUTING
        )


LEAST_AGREEMENT: Final = 0.98
MOST_DIVERGENCE: Final = 2e-3
LEAST_ROUTING: Final = 0.98

PACKED_FAMILIES: Final[Mapping[str, PackingLoss]] = MappingProxyType({})
"""The families that have passed the check, by the architecture in their config.json, with what it
measured (`bench/activations_int8.py`)."""
