"""What each precision of a model's weights costs in memory and in loss. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..defaults import PRECISION_LOSS
from ..engine.families import Architecture, tensor_shapes
from ..engine.interface import DType, Parts
from ..engine.layouts import INT4, INT8, Layout, Precision, fitting
from .coverage import LayerSizes

LAYOUTS: Final[dict[Precision, Layout]] = {"int8": INT8, "int4": INT4}


@dataclass(frozen=True, slots=True)
class PrecisionCost:
    """A precision: the memory of the whole model and of its smallest shard in bytes, with KV for a
    short session, and the most relative increase of the loss."""

    precision: Precision
    everything: int
    smallest: int
    loss: float


def smaller(arch: Architecture, dtype: DType) -> Sequence[PrecisionCost]:
    """Return the precisions to which a model can be quantised, none if it is quantised already.

    They are in the order of their loss. `dtype` is that of the activations.
    """
    if arch.layouts.precision or any(each.experts and each.experts.mxfp4 for each in arch.kinds):
        return ()
    shapes = tensor_shapes(arch, Parts(True, 0, arch.layers, True))
    found = []
    for precision, layout in LAYOUTS.items():
        sizes = LayerSizes.of(replace(arch, layouts=fitting(shapes, layout)), dtype)
        loss = PRECISION_LOSS[precision]
        found.append(PrecisionCost(precision, sizes.everything, sizes.smallest, loss))
    return found


def way_out(arch: Architecture, dtype: DType, memory: int) -> str:
    """Return how to make a model fit whose smallest shard has no room in `memory` bytes.

    The text is empty if no precision helps."""
    for cost in smaller(arch, dtype):
        if cost.smallest <= memory:
            loss = f"{100 * cost.loss:g} %"
            return (
                f"or make it smaller where the model is: `shoal model quantize NAME --to "
                f"{cost.precision}` (at most {loss} more loss)"
            )
    return ""
