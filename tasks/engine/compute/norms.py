"""Root mean square norms, which round where transformers does."""

import torch

from ..families import Architecture


class Norm:
    """Norm whose statistics are float32, but whose product with the weight is in the dtype of the
    rows."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight, self.eps, self._shape = weight, eps, weight.shape

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the normed rows, in the dtype of the rows."""
        # The fused product would round only once, but transformers rounds twice.
        return self.weight * torch.rms_norm(x, self._shape, None, self.eps)


class WideNorm(Norm):
    """Norm that computes in float32, and rounds once. Its weight is float32."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.rms_norm(x.float(), self._shape, None, self.eps)
        return (wide * self.weight).to(x.dtype)


def norm_of(arch: Architecture, weight: torch.Tensor) -> Norm:
    """Return a norm of a model with a weight that was read."""
    if arch.wide_norms:
        return WideNorm(weight.float() + arch.norm_offset, arch.eps)
    return Norm(weight, arch.eps)
