"""The requests of a trainer to a chain of stages. No I/O, no torch.

The weights of the stages stay as they are. The trainer keeps the adapter's tensors and the state of
its optimiser. For each step it sends both a batch and the tensors, and gets gradients back.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..engine.adapters import AdapterTerms, Module

NOT_COUNTED: Final = -1
"""The target of a position that adds nothing to the loss."""


class TensorName(NamedTuple):
    """Name of one tensor of an adapter: A is rank x inputs, B is outputs x rank."""

    layer: int
    module: Module
    side: Literal["A", "B"]


class WeightName(NamedTuple):
    """Name of one tensor of a model that is trained itself, as in its files."""

    role: str


Tensors = Mapping[TensorName, NDArray[np.float32]]
LearnedName: TypeAlias = TensorName | WeightName
LearnedTensors = Mapping[LearnedName, NDArray[np.float32]]
"""The tensors that a fine-tuning trains: an adapter, or all weights of a model."""


def of_adapter(tensors: LearnedTensors) -> Tensors:
    """Return the tensors of an adapter among some."""
    return {name: each for name, each in tensors.items() if isinstance(name, TensorName)}


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of token ids with the ids that should follow them.

    Both arrays are rows x length. Shorter rows are padded at their end with any id whose target is
    NOT_COUNTED.
    """

    tokens: NDArray[np.int32]
    targets: NDArray[np.int32]  # the id that should follow each position, or NOT_COUNTED


@dataclass(frozen=True, slots=True)
class AdapterTensors:
    """An adapter while it is trained. `terms.dtype` is F32."""

    terms: AdapterTerms
    tensors: Tensors


@dataclass(frozen=True, slots=True)
class Gradients:
    """Loss of a batch, and its derivatives by the tensors that are trained.

    `loss` is the sum over the counted positions in nats. `tensors` are the derivatives of this sum.
    """

    loss: float
    counted: int  # positions
    tensors: LearnedTensors


class TuningChain(Protocol):
    """A chain of stages that computes for one trainer. Stages that are lost are replaced.

    The methods raise TaskError: NoRoute if no chain can compute, SessionError if stages refuse.
    """

    async def gradients(
        self, batch: Batch, adapter: AdapterTensors, names: Collection[TensorName] | None = None
    ) -> Gradients:
        """Compute a batch forward and backward. Return the derivatives of `names` (None: all)."""
        ...

    async def loss(self, batch: Batch, adapter: AdapterTensors) -> tuple[float, int]:
        """Return the loss of a batch, as a sum in nats, and the number of counted positions."""
        ...

    async def aclose(self) -> None:
        """Let the stages forget this trainer."""
        ...
