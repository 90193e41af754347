"""The network of the tiny model, in plain torch.

A Llama network: parameter names, shapes and the rotary convention are those of
``LlamaForCausalLM`` in Hugging Face transformers, so that what is trained here can be loaded
by every program that reads such a folder. Input and output embeddings are one matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    """Sizes of the network. Six layers, so that three or five computers can share them."""

    vocabulary: int = 2048
    hidden: int = 256
    intermediate: int = 640
    layers: int = 6
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 32
    context: int = 1024
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5


def rotary_tables(shape: Shape) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of every position, each of shape (context, head_dim)."""
    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.outer(
        torch.arange(shape.context, dtype=torch.float32), shape.rope_theta**-exponents
    )
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn ``states`` (..., positions, head_dim); the two halves of a head form the pairs."""
    first, second = states.chunk(2, dim=-1)
    return states * cosine + torch.cat((-second, first), dim=-1) * sine


class RMSNorm(nn.Module):
    """Scale each vector to a root mean square of one, in float32."""

    def __init__(self, size: int, eps: float) -> None:
        """Start with a weight of one per element."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self._eps = eps

    def forward(self, states: Tensor) -> Tensor:
        """Return the normalised ``states``."""
        return F.rms_norm(states.float(), self.weight.shape, self.weight, self._eps)


class Attention(nn.Module):
    """Causal attention in which two query heads share one key and value head."""

    def __init__(self, shape: Shape) -> None:
        """Create the four projections."""
        super().__init__()
        self._head_dim = shape.head_dim
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden, queries, bias=False)
        self.k_proj = nn.Linear(shape.hidden, keys, bias=False)
        self.v_proj = nn.Linear(shape.hidden, keys, bias=False)
        self.o_proj = nn.Linear(queries, shape.hidden, bias=False)

    def _heads(self, states: Tensor) -> Tensor:
        """Reshape (rows, positions, heads * head_dim) to (rows, heads, positions, head_dim)."""
        return states.view(*states.shape[:-1], -1, self._head_dim).transpose(1, 2)

    def forward(self, states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Return the attention output of ``states`` (rows, positions, hidden)."""
        query = self._heads(self.q_proj(states))
        key = self._heads(self.k_proj(states))
        value = self._heads(self.v_proj(states))
        query = rotate(query, cosine, sine).to(value.dtype)
        key = rotate(key, cosine, sine).to(value.dtype)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        output: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return output


class MLP(nn.Module):
    """The gated feed-forward part of a layer."""

    def __init__(self, shape: Shape) -> None:
        """Create the three projections."""
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        """Return the feed-forward output of ``states``."""
        output: Tensor = self.down_proj(F.silu(self.gate_proj(states)) * self.up_proj(states))
        return output


class Layer(nn.Module):
    """One decoder layer. Dropout acts on what it adds to the stream, in training only."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        """Create the two halves of the layer and their norms."""
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden, shape.norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.norm_eps)
        self._dropout = nn.Dropout(dropout)

    def forward(self, states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Return the stream after this layer."""
        added = self.self_attn(self.input_layernorm(states), cosine, sine)
        states = states + self._dropout(added)
        added = self.mlp(self.post_attention_layernorm(states))
        output: Tensor = states + self._dropout(added)
        return output


class Decoder(nn.Module):
    """Embedding, layers and final norm: the part that Hugging Face names ``model``."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        """Create all parameters."""
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape, dropout) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden, shape.norm_eps)

    def forward(self, tokens: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Return the normalised stream after the last layer, (rows, positions, hidden)."""
        states = self.embed_tokens(tokens)
        for layer in self.layers:
            states = layer(states, cosine, sine)
        output: Tensor = self.norm(states)
        return output


class TinyLlama(nn.Module):
    """The language model: tokens (rows, positions) to logits (rows, positions, vocabulary)."""

    def __init__(self, shape: Shape, dropout: float = 0.0) -> None:
        """Create the network with random weights; call :meth:`initialise` to seed it well."""
        super().__init__()
        self.shape = shape
        self.model = Decoder(shape, dropout)
        cosine, sine = rotary_tables(shape)
        # Buffers that can be recomputed stay out of the saved weights.
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)

    def initialise(self) -> None:
        """Initialize all matrices, with smaller values where a layer adds to the stream."""
        for name, parameter in self.named_parameters():
            if parameter.ndim < 2:
                continue
            deviation = 0.02
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                deviation /= math.sqrt(2 * self.shape.layers)
            nn.init.normal_(parameter, std=deviation)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of ``tokens``, whose first position is position zero."""
        length = tokens.shape[1]
        cosine = self.get_buffer("cosine")[:length]
        sine = self.get_buffer("sine")[:length]
        return F.linear(self.model(tokens, cosine, sine), self.model.embed_tokens.weight)


def parameter_count(model: nn.Module) -> int:
    """Return the number of trained numbers in ``model``."""
    return sum(parameter.numel() for parameter in model.parameters())
