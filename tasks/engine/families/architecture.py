"""A model's `Architecture`: the parameters of its forward pass, as its family read them.

The architecture is data. `compute/` computes every family from it, so a family whose layers are
made of the parts that are named here needs no code in torch.
"""

from dataclasses import dataclass
from typing import Literal

from ..layouts import FLOATS, Layouts

RopeKind = Literal["default", "linear", "llama3", "yarn", "longrope"]
Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding with frequencies `theta ** (-2i/d)`, which `kind` rescales.

    `linear` divides all frequencies by `factor` (position interpolation, Chen 2023). `llama3`
    divides the frequencies of long wavelengths and interpolates those of middle ones (Llama 3.1).
    `yarn` interpolates by the number of rotations within the original context, and multiplies
    cosines and sines by `attention_factor` (Peng 2023). `longrope` divides each frequency by its
    own of `factors` (Ding 2024).
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
    factors: tuple[float, ...] = ()  # only for longrope: one for each pair that is turned


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Names of the tensors of a layer's experts, without `model.layers.N.` and `.weight`.

    The tensors of expert E are `{each}.E.{gate}` and so on.
    """

    router: str = "mlp.gate"
    each: str = "mlp.experts"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    stacked: str = "gate_up_proj"  # gates and ups of all experts, by turns
    shared: str = "mlp.shared_expert"
    shared_gate: str = "mlp.shared_expert_gate"

    def gate_up(self, expert: int) -> tuple[str, str]:
        """Return the names of the projections of an expert that have its input."""
        return f"{self.each}.{expert}.{self.gate}", f"{self.each}.{expert}.{self.up}"

    def last(self, expert: int) -> str:
        """Return the name of the last projection of an expert."""
        return f"{self.each}.{expert}.{self.down}"


@dataclass(frozen=True, slots=True)
class Experts:
    """Feed-forward parts of a layer, of which a router chooses `active` ones for each row.

    Their outputs are added with the router's probabilities. With `normed`, these are scaled so that
    those of the chosen experts add up to 1. `wide` is the intermediate size of one expert.
    """

    count: int
    active: int
    wide: int
    normed: bool = True
    shared: int = 0  # intermediate size of an expert that every row uses, with a gate; 0: none
    wide_weights: bool = False  # whether the probabilities stay float32
    stacked: bool = False  # stored as one tensor, experts x inputs x outputs, with biases
    mxfp4: bool = False  # if stacked: whether it is stored in MXFP4
    choose_first: bool = False  # the probabilities are those among the chosen experts
    swiglu_limit: float = 0.0  # bound of the inputs of a SwiGLU with `swiglu_alpha`; 0: plain SiLU
    swiglu_alpha: float = 1.702
    names: ExpertNames = ExpertNames()


@dataclass(frozen=True, slots=True)
class RecurrentNames:
    """Names of the tensors of a recurrent layer, without `model.layers.N.`.

    All but `decay` and `bias` end in `.weight`.
    """

    inputs: str = "linear_attn.in_proj_qkvz"
    gates: str = "linear_attn.in_proj_ba"
    convolution: str = "linear_attn.conv1d"
    decay: str = "linear_attn.A_log"
    bias: str = "linear_attn.dt_bias"
    norm: str = "linear_attn.norm"
    output: str = "linear_attn.out_proj"


@dataclass(frozen=True, slots=True)
class Recurrent:
    """A gated delta rule in place of attention, after a causal convolution over `kernel`
    positions."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    names: RecurrentNames = RecurrentNames()

    @property
    def channels(self) -> int:
        """Number of values of a position that the convolution has."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class LayerKind:
    """How one layer of a model differs from its other layers."""

    rope: Rope
    window: int = 0  # positions a token attends to, with its own; 0: all
    experts: Experts | None = None  # None: the layer has one dense feed-forward part
    recurrent: Recurrent | None = None  # None: the layer has attention


@dataclass(frozen=True, slots=True)
class Names:
    """Names of the tensors of a layer, without `model.layers.N.` and `.weight`.

    The projections of `qkv` have the same input, and so have those of `gate_up`. One product
    computes them together, and its outputs are in this order; a family may store them as one
    tensor. Some families normalise what attention and the feed-forward part add to the residual
    stream: `mixed_norm` and `output_norm` are the weights of these norms.
    """

    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    output: str = "self_attn.o_proj"
    query_norm: str = "self_attn.q_norm"
    key_norm: str = "self_attn.k_norm"
    sinks: str = "self_attn.sinks"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    input_norm: str = "input_layernorm"
    mixed_norm: str | None = None
    mlp_norm: str = "post_attention_layernorm"
    output_norm: str | None = None

    @property
    def norms(self) -> tuple[str, ...]:
        """Names of the norms of the residual stream."""
        names = (self.input_norm, self.mixed_norm, self.mlp_norm, self.output_norm)
        return tuple(name for name in names if name is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Parameters of a model's forward pass. Sizes are in elements, `context` in tokens.

    A norm multiplies with its weight + `norm_offset`. With `wide_norms` it does so in float32, and
    rounds to the dtype of the shard once. `attention_scale` multiplies the products of queries and
    keys. A cap limits values smoothly: `cap * tanh(x / cap)`.
    """

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
    rotated: int = 0  # leading values of a head with rotary embedding; 0: all
    activation: Activation = "silu"
    norm_offset: float = 0.0
    wide_norms: bool = False
    embedding_scale: float = 1.0
    attention_scale: float = 0.0  # 0: head_dim ** -0.5
    attention_cap: float = 0.0  # 0: none
    sinks: bool = False  # each head has a score without a value
    gated_attention: bool = False  # each head's output is multiplied with the sigmoid of a gate
    logit_cap: float = 0.0  # 0: none

    def places(self, start: int, stop: int) -> list[int]:
        """Return for each of the layers start:stop how many before it have a state of its kind."""
        found, seen = [], [0, 0]
        for kind in self.kinds[start:stop]:
            found.append(seen[kind.recurrent is not None])
            seen[kind.recurrent is not None] += 1
        return found

    @property
    def recurrent(self) -> bool:
        """Whether some layers are recurrent."""
        return any(kind.recurrent for kind in self.kinds)

    @property
    def windows(self) -> tuple[int, ...]:
        """By layer, the positions a token attends to, with its own; 0: all."""
        return tuple(kind.window for kind in self.kinds)
