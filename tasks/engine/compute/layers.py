"""Decoder layers in torch: attention and a feed-forward part, each with its norms.

The operations and their order are those of transformers' modelling code. Results in float32
therefore agree up to rounding, and bfloat16 is rounded at the same places. Projections with the
same input are one matrix.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch.nn import functional as F

from ..families import Activation, Architecture
from ..families.shapes import layer_prefix
from .attention import Attention
from .kv import KvMemory
from .lora import StepAdapters
from .norms import Norm, norm_of
from .products import Linear
from .quantised import product_of
from .rotary import Turn
from .scores import Scoring
from .weights import Weights


@dataclass(frozen=True, slots=True)
class Step:
    """What all layers share in one step.

    `turns` has the cosines and sines of each rotary embedding of the shard. Only the first `rows`
    rows count; products of fewer than `least_rows` are padded.
    """

    batch: Attention
    memory: KvMemory
    adapters: StepAdapters
    turns: tuple[Turn, ...]
    rows: int
    least_rows: int


class LayerWeights:
    """The tensors of one layer, by their names without the layer's prefix."""

    def __init__(self, arch: Architecture, weights: Weights, layer: int) -> None:
        self.arch = arch
        self.kind = arch.kinds[layer]
        self._weights = weights
        self._prefix = layer_prefix(layer)

    def linear(self, *names: str) -> Linear:
        """Return the product with one or several projections with the same input."""
        matrices = self._weights.matrices(*(f"{self._prefix}{name}.weight" for name in names))
        return product_of(matrices, self._optional("bias", *names))

    def read(self, *names: str) -> torch.Tensor:
        """Return the weights of projections, stacked by rows."""
        return self._weights.read(*(f"{self._prefix}{name}.weight" for name in names))

    def norm(self, name: str) -> Norm:
        """Return a norm."""
        return norm_of(self.arch, self.read(name))

    def norm_if(self, name: str | None) -> Norm | None:
        """Return a norm, or None if the family has none with this role."""
        return None if name is None else self.norm(name)

    def _optional(self, what: str, *names: str) -> torch.Tensor | None:
        return self._weights.read_optional(*(f"{self._prefix}{name}.{what}" for name in names))


class AttentionPart:
    """Attention of one layer: from normed rows to what is added to the residual stream."""

    def __init__(self, weights: LayerWeights, turn: int) -> None:
        """Read the weights. `turn` is the index of the layer's rotary embedding in a step."""
        arch, names = weights.arch, weights.arch.names
        self.qkv = weights.linear(*names.qkv)
        self.query_norm = weights.norm(names.query_norm) if arch.qk_norm else None
        self.key_norm = weights.norm(names.key_norm) if arch.qk_norm else None
        self.output = weights.linear(names.output)
        self.window = weights.kind.window
        self.scoring = Scoring(arch.attention_scale or None, arch.attention_cap)
        self.turn = turn
        self._head_dim = arch.head_dim
        self._rotated = arch.rotated or arch.head_dim
        self._heads = arch.heads
        self._turned = arch.heads + arch.kv_heads  # heads with rotary embedding: queries and keys

    def __call__(self, normed: torch.Tensor, index: int, step: Step) -> torch.Tensor:
        """Compute the layer with this index in the shard for rows x hidden."""
        adapters, batch = step.adapters, step.batch
        heads = adapters.change(self.qkv(normed), normed, index, "qkv")
        heads = heads.view(len(normed), -1, self._head_dim)
        turned = self._turn(heads[:, : self._turned], *step.turns[self.turn])
        keys, values = step.memory.keys[index], step.memory.values[index]
        batch.write(keys, turned[:, self._heads :])
        batch.write(values, heads[:, self._turned :])
        queries = turned[:, : self._heads]
        attended = batch.attend(queries, keys, values, self.window, self.scoring)
        return adapters.change(self.output(attended), attended, index, "output")

    def _turn(self, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Apply the norms and the rotary embedding to queries and keys (T x heads x head_dim)."""
        if self.query_norm is not None and self.key_norm is not None:
            queries, keys = heads[:, : self._heads], heads[:, self._heads :]
            heads = torch.cat((self.query_norm(queries), self.key_norm(keys)), 1)
        if self._rotated == self._head_dim:
            return heads * cos + heads.roll(self._rotated // 2, -1) * sin
        first = heads[..., : self._rotated]
        first = first * cos + first.roll(self._rotated // 2, -1) * sin
        return torch.cat((first, heads[..., self._rotated :]), -1)


ACTIVATIONS: Final[Mapping[Activation, Callable[[torch.Tensor], torch.Tensor]]] = {
    "silu": F.silu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


class DensePart:
    """Feed-forward part of one layer, with a gate."""

    def __init__(self, weights: LayerWeights) -> None:
        names = weights.arch.names
        self.gate_up = weights.linear(*names.gate_up)
        self.down = weights.linear(names.down)
        self._activate = ACTIVATIONS[weights.arch.activation]

    def __call__(self, normed: torch.Tensor, index: int, step: Step) -> torch.Tensor:
        """Compute the layer with this index in the shard for rows x hidden."""
        adapters = step.adapters
        gate, up = adapters.change(self.gate_up(normed), normed, index, "gate_up").chunk(2, -1)
        inner = self._activate(gate) * up
        return adapters.change(self.down(inner), inner, index, "down")
