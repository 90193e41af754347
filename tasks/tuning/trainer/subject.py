"""Interface of the tensors that a trainer trains. The adapter of a model implements it."""

from collections.abc import Collection, Mapping
from typing import Protocol

from ...engine.layouts import Shape
from ..interface import (
    AdapterTensors,
    Batch,
    Gradients,
    LearnedName,
    LearnedTensors,
    TensorName,
    TuningChain,
    of_adapter,
)
from . import optimiser
from .optimiser import Array, Shapes
from .settings import TuningSettings


class Subject(Protocol):
    """Tensors that are trained, and what computes their gradients.

    The methods raise TaskError, as those of a TuningChain do.
    """

    @property
    def shapes(self) -> Mapping[LearnedName, Shape]:
        """The shape of each tensor, in the order of a checkpoint."""
        ...

    async def first(self) -> dict[LearnedName, Array]:
        """Return the tensors before the first step."""
        ...

    async def gradients(
        self, batch: Batch, tensors: LearnedTensors, names: Collection[LearnedName]
    ) -> Gradients:
        """Compute a batch forward and backward. Return the derivatives of `names`."""
        ...

    async def loss(self, batch: Batch, tensors: LearnedTensors) -> tuple[float, int]:
        """Return the loss of a batch, as a sum in nats, and the number of counted positions."""
        ...


class AdapterSubject:
    """The adapter of a model whose layers a chain computes."""

    def __init__(self, settings: TuningSettings, shapes: Shapes, chain: TuningChain) -> None:
        """`shapes` are those of the model's modules."""
        self._settings = settings
        self._modules = shapes
        self._chain = chain
        self.shapes = optimiser.tensor_shapes(settings, shapes)

    async def first(self) -> dict[LearnedName, Array]:
        """Return A uniform as in `peft`, and B zero."""
        return optimiser.adapter_tensors(self._settings, self._modules)

    async def gradients(
        self, batch: Batch, tensors: LearnedTensors, names: Collection[LearnedName]
    ) -> Gradients:
        wanted = [name for name in names if isinstance(name, TensorName)]
        return await self._chain.gradients(batch, self._adapter(tensors), wanted)

    async def loss(self, batch: Batch, tensors: LearnedTensors) -> tuple[float, int]:
        return await self._chain.loss(batch, self._adapter(tensors))

    def _adapter(self, tensors: LearnedTensors) -> AdapterTensors:
        return AdapterTensors(self._settings.terms, of_adapter(tensors))
