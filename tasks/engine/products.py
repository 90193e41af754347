"""Products of rows with a weight matrix, in the layout that suits the machine."""

from collections.abc import Callable

import torch
from torch.nn import functional as F

Linear = Callable[[torch.Tensor], torch.Tensor]


def linear_of(weight: torch.Tensor, bias: torch.Tensor | None, *, pack: bool = True) -> Linear:
    """Return a function that computes `x W^T + b`, in oneDNN's layout if that is supported."""
    if pack and packs(weight.dtype, weight.device.type):
        blocked = torch.ops.mkldnn._reorder_linear_weight(weight)
        operator = torch.ops.mkldnn._linear_pointwise.default
        return lambda x: operator(x, blocked, bias, "none", [], "")
    return lambda x: F.linear(x, weight, bias)


def packs(dtype: torch.dtype, kind: str = "cpu") -> bool:
    """Return whether oneDNN multiplies matrices of a type in its own layout on a kind of device."""
    return bool(
        kind == "cpu"
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and (dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )
