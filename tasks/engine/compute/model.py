"""Forward pass of a model over a range of layers, in plain torch.

There is no batch dimension: input and output have the shape (T, hidden), for T rows of any
sessions. Only attention sees which rows belong together (attention.py). The layers are in
`layers.py`; what distinguishes the families is in their architecture (`../families`).

Products with few rows are padded, so that a row does not depend on the others (products.py). Rows
with an adapter get its changes after each product (lora.py).
"""

import torch
from torch.nn import functional as F

from ..defaults import LEAST_ROWS, SHARED_HEAD_BYTES
from ..families import Architecture, Rope, check_parts, tensor_shapes
from ..families.shapes import EMBEDDING, HEAD, NORM
from ..interface import DType, LoadShard
from .attention import Attention
from .device import CPU, ComputeDevice
from .kv import KvMemory
from .layers import Layer, LayerWeights, Norm, Step
from .lora import WITHOUT_ADAPTERS, StepAdapters
from .native import NativeLinear
from .products import linear_of, native_kernels, packs, padded
from .rotary import Rotary
from .weights import TORCH_DTYPES, Weights


class ShardModel:
    """Weights of one shard, and their forward pass over the rows of many sessions."""

    def __init__(self, arch: Architecture, shard: LoadShard, device: ComputeDevice = CPU) -> None:
        """Load the weights to a device. Raises EngineError if they are missing, damaged or do not
        fit the architecture."""
        parts = shard.parts
        check_parts(arch, parts)
        weights = Weights(shard.tensors, tensor_shapes(arch, parts), shard.dtype, device)
        self.device = device
        self.arch = arch
        self.parts = parts
        self.dtype: DType = shard.dtype
        own = range(parts.start, parts.stop)
        # Each different rotary embedding, in the order of the layers.
        ropes = list(dict.fromkeys(arch.kinds[index].rope for index in own))
        self.rotaries = [self._rotary(rope) for rope in ropes]
        self.layers = [
            Layer(LayerWeights(arch, weights, index), ropes.index(arch.kinds[index].rope))
            for index in own
        ]
        self._read_ends(weights)
        # Products of fewer rows are padded, so that a row does not depend on their number.
        self.least_rows = max(LEAST_ROWS)

    def _rotary(self, rope: Rope) -> Rotary:
        return Rotary(rope, self.arch.head_dim, self.arch.context, self.dtype, self.device)

    def _read_ends(self, weights: Weights) -> None:
        """Read the embedding, the last norm and the head, as far as the shard has them."""
        parts, arch = self.parts, self.arch
        table = weights.read_optional(EMBEDDING)
        self._embedding = table if parts.embedding else None
        norm = weights.read_optional(NORM)
        self._norm = None if norm is None else Norm(norm, arch.eps)
        head = table if parts.head and arch.tied else weights.read_optional(HEAD)
        # A table that the embedding also uses would need a second copy in the blocked layout.
        pack = head is not self._embedding or (head is not None and head.nbytes < SHARED_HEAD_BYTES)
        pack = pack or native_kernels(TORCH_DTYPES[self.dtype], self.device.torch.type) is not None
        self._head = None if head is None else linear_of(head, None, pack=pack)
        if head is not None and head is self._embedding and isinstance(self._head, NativeLinear):
            self._embedding = None  # `embed` reads the rows of the packed table
        packed = packs(TORCH_DTYPES[self.dtype], self.device.torch.type)
        self.packed = packed and (pack or head is None)
        """Whether oneDNN computes all products, of which a row is the same from 2 rows on."""

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Convert token ids (T) to the residual stream (T x hidden)."""
        if self._embedding is None:
            assert isinstance(self._head, NativeLinear)
            return self._head.rows(tokens)
        return F.embedding(tokens, self._embedding)

    def forward_rows(
        self,
        x: torch.Tensor,
        batch: Attention,
        memory: KvMemory,
        adapters: StepAdapters = WITHOUT_ADAPTERS,
    ) -> torch.Tensor:
        """Compute all layers for T rows, and return the residual stream.

        Row i has the position `batch.positions[i]`. Its keys and values are written into the slot
        `batch.slots[i]` of `memory`. `adapters` says which rows have an adapter.
        """
        count = len(x)
        x = padded(x, self.least_rows)
        turns = tuple(each.rows(batch.positions, batch.end, len(x)) for each in self.rotaries)
        step = Step(batch, memory, adapters, turns)
        for index, layer in enumerate(self.layers):
            x = layer(x, index, step)
        return x[:count]

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Convert the residual stream (T x hidden) to float32 logits (T x vocabulary)."""
        assert self._head is not None and self._norm is not None
        return self._head(self._norm(padded(x, self.least_rows)))[: len(x)].float()

    def final_states(self, x: torch.Tensor) -> torch.Tensor:
        """Convert the residual stream (T x hidden) to the states that the head projects, in the
        shard's dtype."""
        assert self._norm is not None
        return self._norm(x)
