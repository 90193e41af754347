"""Functions of single values, whose results do not depend on a value's place in its tensor.

torch computes the last values of a tensor, which do not fill a vector register, in another way
than the others. Its sigmoid, silu and softplus then differ in the last bit, so a row depends on the
number of rows, unless a row has a multiple of 64 values. Its exponential function does not differ.
"""

import torch


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Return 1 / (1 + exp(-x)), computed in float32, in the dtype of `x`."""
    return (1 / (1 + torch.exp(-x.float()))).to(x.dtype)


def silu(x: torch.Tensor) -> torch.Tensor:
    """Return x * sigmoid(x), computed in float32, in the dtype of `x`."""
    wide = x.float()
    return (wide / (1 + torch.exp(-wide))).to(x.dtype)


def softplus(x: torch.Tensor) -> torch.Tensor:
    """Return log(1 + exp(x)) of float32 values."""
    # In float64, the logarithm of rounded sums is exact enough, and rounding hides its last bits.
    return torch.clamp(x, min=0) + torch.log(1 + torch.exp(-x.abs().double())).float()
