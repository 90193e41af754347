"""A LoRA adapter as the subject of a run: its B is averaged, its A is drawn from the run's id.

A trainer asks its chain for the gradients of `LoraTensors.trained` only, and gives the B of its
adapter to `LoraTensors.flat` when a round ends.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ....transport.message import pack
from ...engine.adapters import AdapterTerms, module_shapes
from ...engine.families import Architecture
from ..interface import AdapterTensors, LearnedName, LearnedTensors, TensorName
from .codecs import Codec, Vector
from .layout import FlatLayout, frozen_a
from .terms import RunTerms

_KIND: Final = "lora/1"
Array = NDArray[np.float32]
CODEC: Final = Codec("int8")
"""Codec of the updates of adapters, which `bench/tuning_bytes.py` measures, too. With `int4`, small
adapters learn less, and honest updates near the end are refused."""


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
        codec: Codec = CODEC,
        inner_steps: int = 20,
    ) -> None:
        """`terms` are those of the adapter. Raises KeyError for a module that the model lacks."""
        shapes = module_shapes(arch)
        self.terms = terms
        b = {
            TensorName(layer, module, "B"): (shapes[module][0], terms.rank)
            for layer in terms.layers
            for module in terms.modules
        }
        self._layout = FlatLayout[LearnedName](b.items())
        self.trained = frozenset(b)
        """The names of the tensors that are trained: each B."""
        self.run = RunTerms(
            name=name,
            subject=pack([_KIND, terms]),
            values=self._layout.values,
            codec=codec,
            inner_steps=inner_steps,
        )
        self._frozen = {
            name._replace(side="A"): frozen_a(self.run.id, name, terms.rank, shapes[name.module][1])
            for name in b
        }
        self.frozen: LearnedTensors = dict(self._frozen.items())
        """Each A."""

    def start(self) -> Vector:
        """Return the values before training. B is 0, so the adapter changes nothing."""
        return np.zeros(self._layout.values, np.float32)

    def flat(self, tensors: LearnedTensors) -> Vector:
        """Return each B of an adapter as one vector. Raises BadUpdate `wrong-shape`."""
        return self._layout.flat(tensors)

    def tensors(self, values: Vector) -> LearnedTensors:
        """Return each B in a vector, whose memory they share. Raises BadUpdate `wrong-shape`."""
        return self._layout.tensors(values)

    def adapter(self, values: Vector) -> AdapterTensors:
        """Return the whole adapter with these values of B. Raises BadUpdate `wrong-shape`."""
        b = {n: t for n, t in self.tensors(values).items() if isinstance(n, TensorName)}
        return AdapterTensors(self.terms, {**self._frozen, **b})
