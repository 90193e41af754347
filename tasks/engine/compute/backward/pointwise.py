"""Norms, activations and rotations with their derivatives. All tensors are float32."""

from dataclasses import dataclass

import torch

from ...families import Activation
from ..norms import Norm


@dataclass(frozen=True, slots=True)
class FrozenNorm:
    """A root mean square norm over the last dimension."""

    weight: torch.Tensor
    eps: float

    @classmethod
    def of(cls, norm: Norm) -> "FrozenNorm":
        """Return a loaded norm."""
        return cls(norm.weight.float(), norm.eps)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.rms_norm(x, self.weight.shape, self.weight, self.eps)

    def reverse(self, x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """Return the derivative by the input `x` from that by the output."""
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)
        normed, weighted = x * scale, gradient * self.weight
        shared = (weighted * normed).mean(-1, keepdim=True)
        return (weighted - normed * shared).mul_(scale)


def activated(kind: Activation, gate: torch.Tensor) -> torch.Tensor:
    """Return the activation of a gate."""
    if kind == "silu":
        return torch.nn.functional.silu(gate)
    return torch.nn.functional.gelu(gate, approximate="tanh")


def activation_reverse(
    kind: Activation, gate: torch.Tensor, gradient: torch.Tensor
) -> torch.Tensor:
    """Return the derivative by the gate from that by the activation."""
    if kind == "silu":
        return torch.ops.aten.silu_backward(gradient, gate)
    return torch.ops.aten.gelu_backward(gradient, gate, approximate="tanh")


@dataclass(frozen=True, slots=True)
class HeadRotation:
    """Rotary embedding of the leading values of each head: cosines and sines, length x 1 x rotated.

    The first half of the sines is negated, as in `rotary.py`.
    """

    cos: torch.Tensor
    sin: torch.Tensor

    def __call__(self, heads: torch.Tensor) -> torch.Tensor:
        """Turn heads (sequences x length x heads x head_dim)."""
        return self._apply(heads, back=False)

    def reverse(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the derivative by the heads from that by the turned ones."""
        return self._apply(gradient, back=True)

    def _apply(self, heads: torch.Tensor, *, back: bool) -> torch.Tensor:
        width = self.cos.shape[-1]
        some = heads[..., :width]
        if back:
            found = some * self.cos + (some * self.sin).roll(-(width // 2), -1)
        else:
            found = some * self.cos + some.roll(width // 2, -1) * self.sin
        return found if width == heads.shape[-1] else torch.cat((found, heads[..., width:]), -1)
