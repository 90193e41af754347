"""Decoder layers in torch: attention and a feed-forward part, each with its norms.

The operations and their order are those of transformers' modelling code. Results in float32
therefore agree up to rounding, and bfloat16 is rounded at the same places: the statistics of a norm
are float32, but its product with the weight is not. Projections with the same input are one matrix.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from ..families import Architecture
from ..families.shapes import layer_prefix
from .attention import Attention
from .kv import KvMemory
from .lora import StepAdapters
from .products import Linear
from .quantised import product_of
from .rotary import Turn
from .weights import Weights


@dataclass(frozen=True, slots=True)
class Step:
    """What all layers share in one step.

    `turns` has the cosines and sines of each rotary embedding of the shard.
    """

    batch: Attention
    memory: KvMemory
    adapters: StepAdapters
    turns: tuple[Turn, ...]


class Norm:
    """Root mean square norm with a weight."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight, self._eps, self._shape = weight, eps, weight.shape

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        # The fused product would round only once, but transformers rounds twice.
        return self.weight * torch.rms_norm(x, self._shape, None, self._eps)


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
        return Norm(self.read(name), self.arch.eps)

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
        self._turn_index = turn
        self._head_dim = arch.head_dim
        self._half = arch.head_dim // 2
        self._heads = arch.heads
        self._turned = arch.heads + arch.kv_heads  # heads with rotary embedding: queries and keys

    def __call__(self, normed: torch.Tensor, index: int, step: Step) -> torch.Tensor:
        """Compute the layer with this index in the shard for rows x hidden."""
        adapters, batch = step.adapters, step.batch
        heads = adapters.change(self.qkv(normed), normed, index, "qkv")
        heads = heads.view(len(normed), -1, self._head_dim)
        turned = self._turn(heads[:, : self._turned], *step.turns[self._turn_index])
        keys, values = step.memory.keys[index], step.memory.values[index]
        batch.write(keys, turned[:, self._heads :])
        batch.write(values, heads[:, self._turned :])
        attended = batch.attend(turned[:, : self._heads], keys, values, self.window)
        return adapters.change(self.output(attended), attended, index, "output")

    def _turn(self, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Apply the norms (Qwen3) and the rotary embedding to queries and keys (T x heads x
        head_dim)."""
        if self.query_norm is not None and self.key_norm is not None:
            queries, keys = heads[:, : self._heads], heads[:, self._heads :]
            heads = torch.cat((self.query_norm(queries), self.key_norm(keys)), 1)
        return heads * cos + heads.roll(self._half, -1) * sin


class DensePart:
    """Feed-forward part of one layer, with a gate."""

    def __init__(self, weights: LayerWeights) -> None:
        names = weights.arch.names
        self.gate_up = weights.linear(*names.gate_up)
        self.down = weights.linear(names.down)

    def __call__(self, normed: torch.Tensor, index: int, step: Step) -> torch.Tensor:
        """Compute the layer with this index in the shard for rows x hidden."""
        adapters = step.adapters
        gate, up = adapters.change(self.gate_up(normed), normed, index, "gate_up").chunk(2, -1)
        inner = F.silu(gate) * up
        return adapters.change(self.down(inner), inner, index, "down")


class Layer:
    """One decoder layer: an attention part and a feed-forward part, and their norms."""

    def __init__(self, weights: LayerWeights, turn: int) -> None:
        """Read the weights. `turn` is the index of the layer's rotary embedding in a step."""
        names = weights.arch.names
        self.input_norm = weights.norm(names.input_norm)
        self.attention = AttentionPart(weights, turn)
        self.mlp_norm = weights.norm(names.mlp_norm)
        self.mlp = DensePart(weights)

    def __call__(self, x: torch.Tensor, index: int, step: Step) -> torch.Tensor:
        """Compute the layer with this index in the shard, and return the residual stream."""
        x = x + self.attention(self.input_norm(x), index, step)
        return x + self.mlp(self.mlp_norm(x), index, step)
