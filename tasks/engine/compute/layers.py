"""Decoder layers in torch: attention and a feed-forward part, each with its norms.

The operations and their order are those of transformers' modelling code. Results in float32
therefore agree up to rounding, and bfloat16 is rounded at the same places. Projections with the
same input are one matrix.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import torch
from torch.nn import functional as F

from ..families import Activation
from .scores import Scoring
from .step import LayerWeights, StepContext


class AttentionPart:
    """Attention of one layer: from normed rows to what is added to the residual stream."""

    def __init__(self, weights: LayerWeights, turn: int, place: int) -> None:
        """Read the weights.

        `turn` is the index of the layer's rotary embedding in a step, and `place` the number of
        attention layers of the shard before it.
        """
        arch, names = weights.arch, weights.arch.names
        self.qkv = weights.gated(*names.qkv) if arch.gated_attention else weights.linear(*names.qkv)
        self._gated = arch.gated_attention
        self._place = place
        self.query_norm = weights.norm(names.query_norm) if arch.qk_norm else None
        self.key_norm = weights.norm(names.key_norm) if arch.qk_norm else None
        self.output = weights.linear(names.output)
        self.window = weights.kind.window
        sinks = weights.read_plain(names.sinks) if arch.sinks else None
        self.scoring = Scoring(arch.attention_scale or None, arch.attention_cap, sinks)
        self.turn = turn
        self._head_dim = arch.head_dim
        self._rotated = arch.rotated or arch.head_dim
        self._heads = arch.heads
        self._turned = arch.heads + arch.kv_heads  # heads with rotary embedding: queries and keys

    def __call__(self, normed: torch.Tensor, index: int, step: StepContext) -> torch.Tensor:
        """Compute the layer with this index in the shard for rows x hidden."""
        adapters, batch = step.adapters, step.batch
        heads = adapters.change(self.qkv(normed), normed, index, "qkv")
        heads = heads.view(len(normed), -1, self._head_dim)
        if self._gated:  # the gates come last
            heads, gates = heads[:, : -self._heads], heads[:, -self._heads :]
        turned = self._turn(heads[:, : self._turned], *step.turns[self.turn])
        keys, values = step.memory.keys[self._place], step.memory.values[self._place]
        batch.write(keys, turned[:, self._heads :])
        batch.write(values, heads[:, self._turned :])
        queries = turned[:, : self._heads]
        attended = batch.attend(queries, keys, values, self.window, self.scoring)
        if self._gated:
            attended = attended * torch.sigmoid(gates).flatten(1)
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
        self.activation: Activation = weights.arch.activation
        self._activate = ACTIVATIONS[self.activation]

    def __call__(self, normed: torch.Tensor, index: int, step: StepContext) -> torch.Tensor:
        """Compute the layer with this index in the shard for rows x hidden."""
        adapters = step.adapters
        gate, up = adapters.change(self.gate_up(normed), normed, index, "gate_up").chunk(2, -1)
        inner = self._activate(gate) * up
        return adapters.change(self.down(inner), inner, index, "down")
