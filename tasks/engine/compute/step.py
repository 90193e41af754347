"""A step, and the weights of a layer: all parts of layers are made from and called with these."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..families import Architecture
from ..families.shapes import layer_prefix
from .attention import Attention
from .kv import KvMemory
from .lora import StepAdapters
from .norms import Norm, norm_of
from .products import Linear
from .quantised import Matrix, joined, product_of, rows_of
from .rotary import Turn
from .weights import Weights

if TYPE_CHECKING:
    from .recurrent import StateMemory


@dataclass(frozen=True, slots=True)
class StepContext:
    """What all layers share in one step.

    `turns` has the cosines and sines of each rotary embedding of the shard. Only the first `rows`
    rows count; products of fewer than `least_rows` are padded. `runs` has the first row, the end
    and the slot of `states` of each session, if the shard has recurrent layers.
    """

    batch: Attention
    memory: KvMemory
    adapters: StepAdapters
    turns: tuple[Turn, ...]
    rows: int
    least_rows: int
    states: "StateMemory"
    runs: Sequence[tuple[int, int, int]]


class LayerWeights:
    """The tensors of one layer, by their names without the layer's prefix."""

    def __init__(self, arch: Architecture, weights: Weights, layer: int) -> None:
        self.arch = arch
        self.kind = arch.kinds[layer]
        self._weights = weights
        self._prefix = layer_prefix(layer)

    def linear(self, *names: str) -> Linear:
        """Return the product with one or several projections with the same input."""
        return product_of(self._matrices(*names), self._optional("bias", *names))

    def gated(self, queries: str, *others: str) -> Linear:
        """Return the product with queries, keys, values and gates, in this order.

        The tensor of the queries has each head's gate after its query.
        """
        heads, width = self.arch.heads, self.arch.head_dim
        rows = torch.arange(2 * heads * width).view(heads, 2, width)
        asked, gates = rows[:, 0].flatten(), rows[:, 1].flatten()
        (first,) = self._matrices(queries)
        matrices = [rows_of(first, asked), *self._matrices(*others), rows_of(first, gates)]
        bias = self._optional("bias", queries, *others)
        if bias is not None:
            bias = torch.cat((bias[asked], bias[2 * heads * width :], bias[gates]))
        return product_of(joined(matrices), bias)

    def _matrices(self, *names: str) -> list[Matrix]:
        """Return the weights of projections, which may be quantised."""
        return self._weights.matrices(*(f"{self._prefix}{name}.weight" for name in names))

    def read(self, *names: str) -> torch.Tensor:
        """Return the weights of projections, stacked by rows."""
        return self._weights.read(*(f"{self._prefix}{name}.weight" for name in names))

    def read_plain(self, name: str) -> torch.Tensor:
        """Return a tensor whose name has no ending."""
        return self._weights.read(f"{self._prefix}{name}")

    def has(self, name: str) -> bool:
        """Return whether the layer has a tensor of this name."""
        return self._weights.has(f"{self._prefix}{name}")

    def read_bytes(self, name: str) -> torch.Tensor:
        """Return a tensor of bytes, on the CPU."""
        return self._weights.read_bytes(f"{self._prefix}{name}")

    def norm(self, name: str) -> Norm:
        """Return a norm."""
        return norm_of(self.arch, self.read(name))

    def norm_if(self, name: str | None) -> Norm | None:
        """Return a norm, or None if the family has none with this role."""
        return None if name is None else self.norm(name)

    def _optional(self, what: str, *names: str) -> torch.Tensor | None:
        return self._weights.read_optional(*(f"{self._prefix}{name}.{what}" for name in names))
