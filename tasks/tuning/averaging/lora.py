"""A LoRA adapter as the subject of a run: its B is averaged, its A is drawn from the run's id.

A trainer asks its chain for the gradients of `LoraTensors.trained` only, and gives the B of its
adapter to `LoraTensors.flat` when a round ends.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ....transport.message import pack
from ...engine.adapters import AdapterTerms, module_shapes
from ...engine.families import Architecture
from ..interface import AdapterTensors, Batch, TensorName, TuningChain
from .codecs import Codec, Vector
from .layout import FlatLayout, frozen_a
from .terms import RunTerms

_KIND: Final = "lora/1"
Array = NDArray[np.float32]


class LoraTensors:
    """The tensors of an adapter in one run, and the run's terms.

    Members with the same name, model, modules, layers, rank, codec and inner steps are in the same
    run.
    """

    def __init__(
        self,
        name: str,
        terms: AdapterTerms,
        arch: Architecture,
        *,
        codec: Codec = Codec("int8"),  # noqa: B008  it is frozen
        inner_steps: int = 20,
    ) -> None:
        """`terms` are those of the adapter. Raises KeyError for a module that the model lacks."""
        shapes = module_shapes(arch)
        self.terms = terms
        self._layout = FlatLayout(
            (TensorName(layer, module, "B"), (shapes[module][0], terms.rank))
            for layer in terms.layers
            for module in terms.modules
        )
        self.run = RunTerms(
            name=name,
            subject=pack([_KIND, terms]),
            values=self._layout.values,
            codec=codec,
            inner_steps=inner_steps,
        )
        self.frozen = {
            name._replace(side="A"): frozen_a(self.run.id, name, terms.rank, shapes[name.module][1])
            for name in self._layout.shapes
        }
        """Each A."""

    @property
    def trained(self) -> frozenset[TensorName]:
        """The names of the tensors that are trained: each B."""
        return frozenset(self._layout.shapes)

    def start(self) -> Vector:
        """Return the values before training. B is 0, so the adapter changes nothing."""
        return np.zeros(self._layout.values, np.float32)

    def flat(self, tensors: Mapping[TensorName, Array]) -> Vector:
        """Return each B of an adapter as one vector. Raises BadUpdate `wrong-shape`."""
        return self._layout.flat(tensors)

    def adapter(self, values: Vector) -> AdapterTensors:
        """Return the whole adapter with these values of B. Raises BadUpdate `wrong-shape`."""
        return AdapterTensors(self.terms, {**self.frozen, **self._layout.tensors(values)})


class ChainJudge:
    """The held-out loss of an adapter, computed by a chain on rows that this node chose."""

    def __init__(self, chain: TuningChain, lora: LoraTensors, held_out: Batch) -> None:
        self._chain = chain
        self._lora = lora
        self._held_out = held_out

    async def loss(self, values: Vector) -> float:
        """Return the mean loss in nats. Raises TaskError if no chain can compute it now."""
        total, counted = await self._chain.loss(self._held_out, self._lora.adapter(values))
        return total / max(counted, 1)
