"""Forward pass of the Llama family over a range of layers, in plain torch.

The operations and their order are those of transformers' modelling code. Results in float32
therefore agree up to rounding, and bfloat16 is rounded at the same places: the statistics of a norm
are float32, but its product with the weight is not; rotary tables are float32 and are rounded once.
Projections with the same input are one matrix. There is no batch dimension: input and output have
the shape (T, hidden), for T rows of any sessions. Only attention sees which rows belong together
(attention.py).

Products with few rows are padded, so that a row does not depend on the others (linear.py). Rows
with an adapter get its changes after each product (lora.py).
"""

import math
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from ..defaults import LEAST_ROWS, ROPE_BLOCK, SHARED_HEAD_BYTES
from ..families import DTYPE_BYTES, Architecture, Rope, check_parts, tensor_shapes
from ..interface import DType, LoadShard
from .attention import Attention
from .device import CPU, ComputeDevice
from .kv import KvMemory
from .lora import WITHOUT_ADAPTERS, StepAdapters
from .products import Linear, packs, padded
from .quantised import embedded, product_of
from .weights import TORCH_DTYPES, Weights


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one decoder layer. `qkv` and `gate_up` are several projections in one matrix."""

    input_norm: torch.Tensor
    qkv: Linear
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    window: int  # number of positions that are attended to; 0: all


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
        self.layers = [_layer(arch, weights, index) for index in range(parts.start, parts.stop)]
        table = weights.matrices("model.embed_tokens.weight")
        self._embedding = table[0] if parts.embedding else None
        self._norm = weights.read_optional("model.norm.weight")
        head = table if parts.head and arch.tied else weights.matrices("lm_head.weight")
        # A table that the embedding also uses would need a second copy in the blocked layout.
        shared = bool(head) and head[0] is self._embedding
        small = arch.vocab * arch.hidden * DTYPE_BYTES[shard.dtype] < SHARED_HEAD_BYTES
        self._head = product_of(head, None, pack=small or not shared) if head else None
        kind = device.torch.type
        self.packed = (
            packs(TORCH_DTYPES[shard.dtype], kind)
            and (small or not shared)
            and not arch.layouts.precision
        )
        """Whether oneDNN computes all products, of which a row is the same from 2 rows on."""
        # Products of fewer rows are padded, so that a row does not depend on their number.
        self.least_rows = max(LEAST_ROWS)
        self._rotary = Rotary(arch, shard.dtype, device)
        self._hidden = (arch.hidden,)
        self._head_dim = (arch.head_dim,)
        self._half = arch.head_dim // 2
        self._turned = arch.heads + arch.kv_heads  # heads with rotary embedding: queries and keys

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Convert token ids (T) to the residual stream (T x hidden)."""
        assert self._embedding is not None
        return embedded(self._embedding, tokens, TORCH_DTYPES[self.dtype])

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
        cos, sin = self._rotary.rows(batch.positions, batch.end, len(x))
        for index, layer in enumerate(self.layers):
            normed = self._normed(x, layer.input_norm)
            heads = adapters.change(layer.qkv(normed), normed, index, "qkv")
            heads = heads.view(len(x), -1, self.arch.head_dim)
            turned = self._turn(layer, heads[:, : self._turned], cos, sin)
            keys, values = memory.keys[index], memory.values[index]
            batch.write(keys, turned[:, self.arch.heads :])
            batch.write(values, heads[:, self._turned :])
            queries = turned[:, : self.arch.heads]
            attended = batch.attend(queries, keys, values, layer.window)
            x = x + adapters.change(layer.output(attended), attended, index, "output")
            normed = self._normed(x, layer.mlp_norm)
            gate, up = adapters.change(layer.gate_up(normed), normed, index, "gate_up").chunk(2, -1)
            inner = F.silu(gate) * up
            x = x + adapters.change(layer.down(inner), inner, index, "down")
        return x[:count]

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Convert the residual stream (T x hidden) to float32 logits (T x vocabulary)."""
        assert self._head is not None and self._norm is not None
        return self._head(self._normed(padded(x, self.least_rows), self._norm))[: len(x)].float()

    def final_states(self, x: torch.Tensor) -> torch.Tensor:
        """Convert the residual stream (T x hidden) to the states that the head projects, in the
        shard's dtype."""
        assert self._norm is not None
        return self._normed(x, self._norm)

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        # The fused product would round only once, but transformers rounds twice.
        return weight * torch.rms_norm(x, self._hidden, None, self.arch.eps)

    def _turn(
        self, layer: Layer, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """Apply the norms (Qwen3) and the rotary embedding to queries and keys (T x heads x
        head_dim)."""
        if layer.query_norm is not None and layer.key_norm is not None:
            plain = torch.rms_norm(heads, self._head_dim, None, self.arch.eps)
            split = self.arch.heads
            heads = torch.cat(
                (plain[:, :split] * layer.query_norm, plain[:, split:] * layer.key_norm), 1
            )
        return heads * cos + heads.roll(self._half, -1) * sin


def _layer(arch: Architecture, weights: Weights, index: int) -> Layer:
    prefix = f"model.layers.{index}."
    attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."

    def fused(*names: str) -> Linear:
        matrices = weights.matrices(*(f"{name}_proj.weight" for name in names))
        return product_of(matrices, weights.read_optional(*(f"{name}_proj.bias" for name in names)))

    return Layer(
        input_norm=weights.read(f"{prefix}input_layernorm.weight"),
        qkv=fused(f"{attention}q", f"{attention}k", f"{attention}v"),
        query_norm=weights.read_optional(f"{attention}q_norm.weight"),
        key_norm=weights.read_optional(f"{attention}k_norm.weight"),
        output=fused(f"{attention}o"),
        mlp_norm=weights.read(f"{prefix}post_attention_layernorm.weight"),
        gate_up=fused(f"{mlp}gate", f"{mlp}up"),
        down=fused(f"{mlp}down"),
        window=arch.windows[index],
    )


class Rotary:
    """Cosines and sines of the rotary embedding by position, extended when sessions need more.

    The first half of `sin` is negated, so that `x * cos + roll(x, d/2) * sin` is the rotation.
    """

    def __init__(self, arch: Architecture, dtype: DType, device: ComputeDevice = CPU) -> None:
        self._frequencies = frequencies(arch.rope, arch.head_dim)
        self._device = device
        self._scale = arch.rope.attention_factor
        self._dtype = TORCH_DTYPES[dtype]
        self._context = arch.context
        self._cos = self._sin = torch.empty(0)

    def rows(
        self, positions: torch.Tensor, end: int, count: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (cosines, sines) of T positions below `end`, each of shape (count, 1, head_dim).

        Rows beyond T are those of position 0.
        """
        if end > len(self._cos):
            self._grow(min(self._context, max(end, 2 * len(self._cos), ROPE_BLOCK)))
        positions = F.pad(positions, (0, count - len(positions)))
        return self._cos[positions], self._sin[positions]

    def _grow(self, size: int) -> None:
        angles = torch.arange(size).float()[:, None] * self._frequencies
        cos, sin = angles.cos() * self._scale, angles.sin() * self._scale
        # Computed on the CPU, so that all devices have the same values.
        upload = self._device.upload
        self._cos = upload(torch.cat((cos, cos), -1).to(self._dtype)[:, None])
        self._sin = upload(torch.cat((-sin, sin), -1).to(self._dtype)[:, None])


def frequencies(rope: Rope, head_dim: int) -> torch.Tensor:
    """Return the radians per position of each rotated pair: head_dim / 2 values in float32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, plain)
    if rope.kind == "yarn":
        return _yarn(rope, head_dim, rope.theta**exponents)
    return plain


def _llama3(rope: Rope, plain: torch.Tensor) -> torch.Tensor:
    """Return the frequencies of Llama 3.1.

    Those of long wavelengths are divided by the factor, those of middle ones are interpolated.
    """
    wavelength = 2 * math.pi / plain
    low, high = rope.low_freq_factor, rope.high_freq_factor
    smooth = (rope.original_context / wavelength - low) / (high - low)
    blended = (1 - smooth) * plain / rope.factor + smooth * plain
    scaled = torch.where(wavelength > rope.original_context / low, plain / rope.factor, blended)
    return torch.where(wavelength < rope.original_context / high, plain, scaled)


def _yarn(rope: Rope, head_dim: int, periods: torch.Tensor) -> torch.Tensor:
    """Return the frequencies of YaRN (Peng 2023, section 3.2).

    Pairs that rotate often keep their frequency, and slow ones are interpolated.
    """

    def pair_turning(rotations: float) -> float:
        span = rope.original_context / (rotations * 2 * math.pi)
        return head_dim * math.log(span) / (2 * math.log(rope.theta))

    low, high = pair_turning(rope.beta_fast), pair_turning(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    high += 0.001 if low == high else 0
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    keep = 1 - ramp
    return 1.0 / (rope.factor * periods) * (1 - keep) + 1.0 / periods * keep
