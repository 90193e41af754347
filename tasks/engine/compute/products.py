"""Products of rows with a weight matrix, whose rows do not depend on each other.

The native kernels compute them where there are some (native/). Without these, on a CPU that
oneDNN supports, matrices are stored in oneDNN's blocked layout. It is 1.3 to 2.3
times as fast for a single row, and a row's result is the same for any number of rows from 2 on
(measured for up to 512 in both dtypes; MKL's products differ below 4 rows and take twice as long
for 2 to 16). Smaller products are padded, so that a row does not depend on the others.

Quantised matrices have the layouts `int8` and `int4` of `Quantised`. torch converts them to the
dtype of the rows, a tile of outputs at a time, so they are never in memory as a whole.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch.nn import functional as F

from .native import choice, library

Linear = Callable[[torch.Tensor], torch.Tensor]
Layout = Literal["int8", "int4"]

INT4_GROUP: Final = 32
"""Number of weights that share a scale and a minimum in the layout `int4`."""

_TILE: Final = 1 << 20  # weights that are converted at once


@dataclass(frozen=True, slots=True)
class Quantised:
    """A quantised matrix of N outputs and K inputs.

    `int8`: `q` is int8, N x K; `scale` is float16, N x K/G with G = 16 or 32. A weight is
    scale * q.

    `int4`: `q` is uint8, N x K/2. Of each 32 weights along K, byte j (0 to 15) has weight j in its
    low nibble and weight j + 16 in its high one. `scale` and `minimum` are float16, N x K/32. A
    weight is scale * nibble + minimum.
    """

    layout: Layout
    q: torch.Tensor
    scale: torch.Tensor
    minimum: torch.Tensor | None = None

    def __post_init__(self) -> None:
        """Raise ValueError unless the tensors have the shapes and dtypes of the layout."""
        expected = torch.int8 if self.layout == "int8" else torch.uint8
        if self.q.dtype != expected or self.scale.dtype != torch.float16:
            raise ValueError(f"{self.layout} has {self.q.dtype} with {self.scale.dtype} scales")
        if self.scale.shape[0] != self.outputs or self.inputs % self.scale.shape[1]:
            raise ValueError(f"scales of shape {list(self.scale.shape)} do not fit the matrix")
        if self.group not in ((16, 32) if self.layout == "int8" else (INT4_GROUP,)):
            raise ValueError(f"{self.layout} has groups of {self.group}")
        if (self.minimum is None) != (self.layout == "int8"):
            raise ValueError("a minimum belongs to int4 and to no other layout")
        if self.minimum is not None and (
            self.minimum.shape != self.scale.shape or self.minimum.dtype != torch.float16
        ):
            raise ValueError("the minimum has another shape or dtype than the scale")

    @property
    def outputs(self) -> int:
        return int(self.q.shape[0])

    @property
    def inputs(self) -> int:
        return int(self.q.shape[1]) * (1 if self.layout == "int8" else 2)

    @property
    def group(self) -> int:
        """The number of weights that share a scale."""
        return self.inputs // int(self.scale.shape[1])

    def dequantised(self, first: int, end: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the outputs `first` to `end` - 1 as a matrix (outputs x K)."""
        q, scale = self.q[first:end], self.scale[first:end, :, None].float()
        if self.minimum is None:
            values = q.view(len(q), -1, self.group) * scale
        else:
            pairs = q.view(len(q), -1, INT4_GROUP // 2)
            nibbles = torch.cat((pairs & 15, pairs >> 4), -1)
            values = nibbles * scale + self.minimum[first:end, :, None].float()
        return values.view(len(q), -1).to(dtype)


def padded(rows: torch.Tensor, least: int) -> torch.Tensor:
    """Return the rows, followed by rows of zeros if there are fewer than `least`."""
    missing = least - len(rows)
    return rows if missing <= 0 else F.pad(rows, (0, 0, 0, missing))


@dataclass(frozen=True, slots=True)
class PlainLinear:
    """Product with a matrix (outputs x inputs) in torch's own layout, plus a bias (outputs)."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


class BlockedLinear:
    """Product with a matrix (outputs x inputs, `shape`) in oneDNN's blocked layout, plus a bias."""

    def __init__(
        self, blocked: torch.Tensor, shape: tuple[int, int], bias: torch.Tensor | None
    ) -> None:
        self.blocked, self.shape, self.bias = blocked, shape, bias
        self._operator = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._operator(x, self.blocked, self.bias, "none", [], "")
        return out


@dataclass(frozen=True, slots=True)
class StackedLinear:
    """Product with several matrices that have the same input, whose outputs are joined."""

    parts: Sequence[Linear]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x) for part in self.parts], -1)


@dataclass(frozen=True, slots=True)
class BiasedLinear:
    """Product that is rounded to the dtype of the rows before the bias (outputs) is added."""

    product: Linear
    bias: torch.Tensor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.product(x) + self.bias


@dataclass(frozen=True, slots=True)
class QuantisedLinear:
    """Product with a quantised matrix, which is dequantised a tile of outputs at a time, plus a
    bias (outputs)."""

    weight: Quantised
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        outputs = self.weight.outputs
        step = max(1, _TILE // self.weight.inputs)
        out = x.new_empty(*x.shape[:-1], outputs)
        for first in range(0, outputs, step):
            end = min(first + step, outputs)
            some = None if self.bias is None else self.bias[first:end]
            out[..., first:end] = F.linear(x, self.weight.dequantised(first, end, x.dtype), some)
        return out


def linear_of(weight: torch.Tensor, bias: torch.Tensor | None, *, pack: bool = True) -> Linear:
    """Return a function that computes `x W^T + b`, in the layout of the native kernels or oneDNN's
    if one is supported."""
    kernels = native_kernels(weight.dtype, weight.device.type) if pack else None
    if kernels is not None:
        return library.dense(kernels, weight, bias)
    return torch_linear(weight, bias, pack=pack)


def torch_linear(weight: torch.Tensor, bias: torch.Tensor | None, *, pack: bool = True) -> Linear:
    """Return what `linear_of` does, without the native kernels."""
    if pack and packs(weight.dtype, weight.device.type):
        blocked = torch.ops.mkldnn._reorder_linear_weight(weight)
        return BlockedLinear(blocked, (int(weight.shape[0]), int(weight.shape[1])), bias)
    return PlainLinear(weight, bias)


def linear_of_quantised(
    layout: Layout,
    q: torch.Tensor,
    scale: torch.Tensor,
    minimum: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> Linear:
    """Return a function that computes `x W^T + b` for a quantised W, whose parts are those of
    `Quantised`. The tensors must not change after that.

    Raises ValueError if they do not fit the layout.
    """
    weight = Quantised(layout, q, scale, minimum)
    kernels = choice.kernels() if q.device.type == "cpu" else None
    if kernels is None or weight.inputs % INT4_GROUP:
        return QuantisedLinear(weight, bias)
    kind = library.INT8 if layout == "int8" else library.INT4
    parts = [q, scale] if minimum is None else [q, scale, minimum]
    shape = (weight.outputs, weight.inputs)
    matrix, data = kernels.pack(kind, weight.group, shape, parts)
    return library.NativeLinear(kernels, matrix, data, bias)


def native_kernels(dtype: torch.dtype, kind: str = "cpu") -> library.Kernels | None:
    """Return the native kernels if they multiply matrices of a type on a kind of device."""
    if kind != "cpu" or dtype not in library.KINDS or dtype in choice.choice().slow:
        return None
    return choice.kernels()


def packs(dtype: torch.dtype, kind: str = "cpu") -> bool:
    """Return whether oneDNN multiplies matrices of a type in its own layout on a kind of device."""
    return bool(
        kind == "cpu"
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and (dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )
