"""All weights of a model as what a fine-tuning trains, alone or averaged with others."""

import math
from collections.abc import Collection, Mapping
from typing import Final

from ....transport.message import pack
from ...engine.families import Architecture, tensor_shapes
from ...engine.interface import Parts
from ...engine.layouts import Shape
from ..averaging.codecs import Codec, Vector
from ..averaging.layout import FlatLayout
from ..averaging.terms import RunTerms
from ..interface import Batch, Gradients, LearnedName, LearnedTensors, WeightName
from ..trainer.optimiser import Array
from .process import NetworkProcess
from .weights import StoredWeights

CODEC: Final = Codec("sparse", 128)
"""What volunteers send of all weights: one in 32 values, and the rest with later updates."""
_KIND = "whole/1"


def weight_shapes(arch: Architecture) -> dict[LearnedName, Shape]:
    """Return the shape of each weight of a model, in the order of a checkpoint."""
    shapes = tensor_shapes(arch, Parts(True, 0, arch.layers, True))
    return {WeightName(role): shape for role, shape in shapes.items()}


class WholeSubject:
    """The weights of a model, which a process on this node computes."""

    def __init__(
        self, process: NetworkProcess, config: Mapping[str, object], stored: StoredWeights
    ) -> None:
        """`stored` has the weights from which the training begins."""
        self.process = process
        self._config = config
        self._stored = stored
        self.shapes = weight_shapes(stored.arch)

    async def first(self) -> dict[LearnedName, Array]:
        """Return the weights of the model."""
        return await self._stored.read()

    async def gradients(
        self, batch: Batch, tensors: LearnedTensors, names: Collection[LearnedName]
    ) -> Gradients:
        loss, counted = await self._computed(batch, tensors, back=True)
        found: dict[LearnedName, Array] = {}
        for name in names:
            assert isinstance(name, WeightName)  # its tensors are those of `shapes`
            found[name] = await self.process.gradient(name.role, self.shapes[name])
        return Gradients(loss, counted, found)

    async def loss(self, batch: Batch, tensors: LearnedTensors) -> tuple[float, int]:
        return await self._computed(batch, tensors, back=False)

    async def _computed(
        self, batch: Batch, tensors: LearnedTensors, *, back: bool
    ) -> tuple[float, int]:
        if not self.process.is_open:
            await self.process.open(self._config)
        for name, values in tensors.items():
            assert isinstance(name, WeightName)
            await self.process.set(name.role, values)
        return await self.process.compute(batch, back=back)


class WholeTensors:
    """The weights of a model in a run with others, and the run's terms.

    Members with the same name, model, codec and inner steps are in the same run.
    """

    def __init__(self, name: str, root: str, arch: Architecture, inner_steps: int) -> None:
        self._layout = FlatLayout[LearnedName](weight_shapes(arch).items())
        self.frozen: LearnedTensors = {}
        """Tensors that are not learned; none, because all weights are."""
        self.run = RunTerms(
            name=name,
            subject=pack([_KIND, root]),
            values=self._layout.values,
            codec=CODEC,
            inner_steps=inner_steps,
        )

    def flat(self, tensors: LearnedTensors) -> Vector:
        """Return the weights as one vector. Raises BadUpdate `wrong-shape`."""
        return self._layout.flat(tensors)

    def tensors(self, values: Vector) -> LearnedTensors:
        """Return the weights in a vector, whose memory they share. Raises BadUpdate
        `wrong-shape`."""
        return self._layout.tensors(values)


def value_count(arch: Architecture) -> int:
    """Return the number of a model's weights."""
    return sum(map(math.prod, weight_shapes(arch).values()))
