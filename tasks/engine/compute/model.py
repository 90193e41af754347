"""Forward pass of a model over a range of layers, in plain torch.

There is no batch dimension: input and output have the shape (T, hidden), for T rows of any
sessions. Only attention sees which rows belong together (attention.py). The layers are in
`layers.py`; what distinguishes the families is in their architecture (`../families`).

Products with few rows are padded, so that a row does not depend on the others (products.py). Rows
with an adapter get its changes after each product (lora.py).
"""

import torch

from ..defaults import LEAST_ROWS, SHARED_HEAD_BYTES
from ..families import DTYPE_BYTES, Architecture, Rope, check_parts, tensor_shapes
from ..families.shapes import EMBEDDING, HEAD, NORM
from ..interface import DType, LoadShard
from ..shard import StepStopped, Stop
from .attention import Attention
from .device import CPU, ComputeDevice
from .experts import ExpertsPart
from .kv import KvMemory
from .layers import AttentionPart, DensePart
from .lora import WITHOUT_ADAPTERS, StepAdapters
from .native.library import NativeLinear
from .norms import Norm, norm_of
from .products import Linear, native_kernels, packs, padded
from .quantised import embedded, product_of
from .recurrent import RecurrentPart, StateMemory
from .rotary import Rotary
from .step import LayerWeights, StepContext
from .weights import TORCH_DTYPES, Weights


class Layer:
    """One decoder layer: attention or a recurrent part, a feed-forward part, and their norms."""

    def __init__(self, weights: LayerWeights, turn: int, place: int) -> None:
        """Read the weights.

        `turn` is the index of the layer's rotary embedding in a step, and `place` the number of
        layers of the shard before it that also have attention, or are also recurrent.
        """
        names, recurrent = weights.arch.names, weights.kind.recurrent
        self.input_norm = weights.norm(names.input_norm)
        self.mixer = (
            RecurrentPart(weights, recurrent, place)
            if recurrent
            else AttentionPart(weights, turn, place)
        )
        self.mixed_norm = weights.norm_if(names.mixed_norm)
        self.mlp_norm = weights.norm(names.mlp_norm)
        self.output_norm = weights.norm_if(names.output_norm)
        experts = weights.kind.experts
        self.mlp = ExpertsPart(weights, experts) if experts else DensePart(weights)

    def __call__(self, x: torch.Tensor, index: int, step: StepContext) -> torch.Tensor:
        """Compute the layer with this index in the shard, and return the residual stream."""
        mixed = self.mixer(self.input_norm(x), index, step)
        x = x + (mixed if self.mixed_norm is None else self.mixed_norm(mixed))
        output = self.mlp(self.mlp_norm(x), index, step)
        return x + (output if self.output_norm is None else self.output_norm(output))


class ShardModel:
    """Weights of one shard, and their forward pass over the rows of many sessions."""

    def __init__(self, arch: Architecture, shard: LoadShard, device: ComputeDevice = CPU) -> None:
        """Load the weights to a device. Raises EngineError if they are missing, damaged or do not
        fit the architecture."""
        parts = shard.parts
        check_parts(arch, parts)
        shapes = tensor_shapes(arch, parts)
        weights = Weights(shard.tensors, shapes, shard.dtype, device, arch.layouts)
        self.device = device
        self.arch = arch
        self.parts = parts
        self.dtype: DType = shard.dtype
        own = range(parts.start, parts.stop)
        # Each different rotary embedding, in the order of the layers.
        ropes = list(dict.fromkeys(arch.kinds[index].rope for index in own))
        self.rotaries = [self._rotary(rope) for rope in ropes]
        places = arch.places(parts.start, parts.stop)
        self.layers = [
            Layer(LayerWeights(arch, weights, index), ropes.index(arch.kinds[index].rope), place)
            for index, place in zip(own, places, strict=True)
        ]
        self._read_ends(weights)
        # Products of fewer rows are padded, so that a row does not depend on their number.
        self.least_rows = max(LEAST_ROWS)

    def _rotary(self, rope: Rope) -> Rotary:
        rotated = self.arch.rotated or self.arch.head_dim
        return Rotary(rope, rotated, self.arch.context, self.dtype, self.device)

    def _read_ends(self, weights: Weights) -> None:
        """Read the embedding, the last norm and the head, as far as the shard has them."""
        parts, arch = self.parts, self.arch
        table = weights.matrices(EMBEDDING)
        self.embedding = table[0] if parts.embedding else None
        # transformers rounds the scale to the dtype of the weights.
        self._scale = float(torch.tensor(arch.embedding_scale, dtype=TORCH_DTYPES[self.dtype]))
        norm = weights.read_optional(NORM)
        self._norm = None if norm is None else norm_of(arch, norm)
        head = table if parts.head and arch.tied else weights.matrices(HEAD)
        # A table that the embedding also uses would need a second copy in the blocked layout.
        shared = bool(head) and head[0] is self.embedding
        small = arch.vocab * arch.hidden * DTYPE_BYTES[self.dtype] < SHARED_HEAD_BYTES
        native = native_kernels(TORCH_DTYPES[self.dtype], self.device.torch.type) is not None
        pack = small or native or not shared
        self._head = product_of(head, None, pack=pack) if head else None
        if shared and isinstance(head[0], torch.Tensor) and isinstance(self._head, NativeLinear):
            self.embedding = None  # `embed` reads the rows of the packed table
        packed = packs(TORCH_DTYPES[self.dtype], self.device.torch.type)
        self.packed = packed and (small or not shared) and not arch.layouts.precision
        """Whether oneDNN computes all products, of which a row is the same from 2 rows on."""

    @property
    def ends(self) -> tuple[Linear | None, Norm | None]:
        """The product of the head and the norm before it, or None if the shard has no head."""
        return self._head, self._norm

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Convert token ids (T) to the residual stream (T x hidden)."""
        if self.embedding is None:
            assert isinstance(self._head, NativeLinear)
            rows = self._head.rows(tokens)
        else:
            rows = embedded(self.embedding, tokens, TORCH_DTYPES[self.dtype])
        return rows if self._scale == 1.0 else rows * self._scale

    def forward_rows(
        self,
        x: torch.Tensor,
        batch: Attention,
        memory: KvMemory,
        states: StateMemory,
        adapters: StepAdapters = WITHOUT_ADAPTERS,
        stop: Stop | None = None,
    ) -> torch.Tensor:
        """Compute all layers for T rows, and return the residual stream.

        Row i has the position `batch.positions[i]`. Its keys and values are written into the slot
        `batch.slots[i]` of `memory`. `states` has the states of recurrent layers. `adapters` says
        which rows have an adapter. Raises StepStopped if `stop` returns True between two layers.
        """
        count = len(x)
        x = padded(x, self.least_rows)
        turns = tuple(each.rows(batch.positions, batch.end, len(x)) for each in self.rotaries)
        step = StepContext(
            batch, memory, adapters, turns, count, self.least_rows, states, batch.runs
        )
        for index, layer in enumerate(self.layers):
            if stop is not None and stop():
                raise StepStopped
            x = layer(x, index, step)
        return x[:count]

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Convert the residual stream (T x hidden) to float32 logits (T x vocabulary)."""
        assert self._head is not None and self._norm is not None
        logits = self._head(self._norm(padded(x, self.least_rows)))[: len(x)]
        if cap := self.arch.logit_cap:
            logits = torch.tanh(logits / cap) * cap
        return logits.float()

    def final_states(self, x: torch.Tensor) -> torch.Tensor:
        """Convert the residual stream (T x hidden) to the states that the head projects, in the
        shard's dtype."""
        assert self._norm is not None
        return self._norm(x)
