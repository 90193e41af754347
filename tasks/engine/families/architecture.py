"""A model's `Architecture`: the parameters of its forward pass, as its family read them.

The architecture is data. `compute/` computes every family from it, so a family whose layers are
made of the parts that are named here needs no code in torch.
"""

from dataclasses import dataclass
from typing import Literal

from ..layouts import FLOATS, Layouts

RopeKind = Literal["default", "linear", "llama3", "yarn"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding with frequencies `theta ** (-2i/d)`, which `kind` rescales.

    `linear` divides all frequencies by `factor` (position interpolation, Chen 2023). `llama3`
    divides the frequencies of long wavelengths and interpolates those of middle ones (Llama 3.1).
    `yarn` interpolates by the number of rotations within the original context, and multiplies
    cosines and sines by `attention_factor` (Peng 2023).
    """

    theta: float
    kind: RopeKind = "default"
    factor: float = 1.0
    original_context: int = 0  # in tokens; only for llama3 and yarn
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class LayerKind:
    """How one layer of a model differs from its other layers."""

    rope: Rope
    window: int = 0  # positions a token attends to, with its own; 0: all


@dataclass(frozen=True, slots=True)
class Names:
    """Names of the tensors of a layer, without `model.layers.N.` and `.weight`.

    `qkv` and `gate_up` are the projections with the same input, in the order in which a product
    with all of them has its outputs.
    """

    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    output: str = "self_attn.o_proj"
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    input_norm: str = "input_layernorm"
    mlp_norm: str = "post_attention_layernorm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Parameters of a model's forward pass. Sizes are in elements, `context` in tokens."""

    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    context: int
    eps: float
    tied: bool
    kinds: tuple[LayerKind, ...]  # by layer
    names: Names = Names()
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    layouts: Layouts = FLOATS  # how the weights are stored

    @property
    def windows(self) -> tuple[int, ...]:
        """By layer, the positions a token attends to, with its own; 0: all."""
        return tuple(kind.window for kind in self.kinds)
