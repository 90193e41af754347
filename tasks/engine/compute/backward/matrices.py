"""Frozen matrices as the backward pass reads them: a tile of outputs at a time, in float32.

A product `y = x W^T` has the gradient `dx = dy W`. The loaded weights have layouts that are fast
for `y` only. A tile is unpacked or dequantised into scratch memory, used and dropped, so no second
copy of a matrix is ever in memory.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

import torch
from torch.nn import functional as F

from ...errors import EngineError
from ..native.library import BFLOAT16, FLOAT32, INT8, Kernels, Matrix, NativeLinear
from ..products import BlockedLinear, Linear, PlainLinear, Quantised, QuantisedLinear, StackedLinear

PANEL: Final = 64
"""Outputs of the smallest tile: those that the native kernels pack together."""
_GROUP: Final = 32  # inputs that they pack together
_BLOCK_BYTES: Final = 2048  # bytes of the values of a block of int8, before its scales


class Frozen(ABC):
    """A matrix (outputs x inputs) whose values are never changed, and its bias (outputs)."""

    def __init__(self, outputs: int, inputs: int, bias: torch.Tensor | None) -> None:
        self.outputs, self.inputs = outputs, inputs
        self.bias = None if bias is None else bias.float()

    @abstractmethod
    def tile(self, first: int, end: int) -> torch.Tensor:
        """Return the outputs `first` to `end` - 1 as float32 (outputs x inputs), which may be a
        view. `first` is a multiple of PANEL."""

    def times(self, x: torch.Tensor, first: int, end: int) -> torch.Tensor:
        """Return `x W^T` for the outputs `first` to `end` - 1, without the bias."""
        return F.linear(x, self.tile(first, end))


class _Plain(Frozen):
    def __init__(self, linear: PlainLinear) -> None:
        outputs, inputs = linear.weight.shape
        super().__init__(int(outputs), int(inputs), linear.bias)
        self._weight = linear.weight

    def tile(self, first: int, end: int) -> torch.Tensor:
        return self._weight[first:end].float()


class _Quantised(Frozen):
    def __init__(self, linear: QuantisedLinear) -> None:
        weight = linear.weight
        super().__init__(weight.outputs, weight.inputs, linear.bias)
        self._weight: Quantised = weight

    def tile(self, first: int, end: int) -> torch.Tensor:
        return self._weight.dequantised(first, end, torch.float32)


class _Blocked(Frozen):
    """A matrix in oneDNN's layout, of which no part can be read alone. While its tiles are read in
    their order, one plain copy of it is in memory."""

    def __init__(self, linear: BlockedLinear) -> None:
        super().__init__(*linear.shape, linear.bias)
        self._blocked = linear.blocked
        self._copy: torch.Tensor | None = None

    def tile(self, first: int, end: int) -> torch.Tensor:
        if self._copy is None:
            self._copy = self._blocked.to_dense()
        found = self._copy[first:end].float()
        if end == self.outputs:
            self._copy = None
        return found


class _Native(Frozen):
    """A matrix that the native kernels have packed (kernels/products.h)."""

    def __init__(self, linear: NativeLinear) -> None:
        matrix = linear.matrix
        super().__init__(matrix.outputs, matrix.inputs, linear.bias)
        self._matrix, self._kernels = matrix, linear.kernels
        panels, blocks = -(-matrix.outputs // PANEL), -(-matrix.inputs // _GROUP)
        self._blocks = linear.data.view(panels, blocks, -1)
        self._flipped = linear.kernels.name.startswith("avx512")
        # Other kernels round the rows: to 8 bits, or to bfloat16, whose pairs `avx512bf16` sums.
        rounding = (BFLOAT16,) if linear.kernels.name == "avx512bf16" else ()
        self._exact = matrix.kind in (FLOAT32, BFLOAT16) and matrix.kind not in rounding

    def times(self, x: torch.Tensor, first: int, end: int) -> torch.Tensor:
        if not self._exact:
            return super().times(x, first, end)
        return _native_times(
            self._kernels, self._matrix, self._blocks[first // PANEL], x, end - first
        )

    def tile(self, first: int, end: int) -> torch.Tensor:
        blocks = self._blocks[first // PANEL : -(-end // PANEL)]
        kind = self._matrix.kind
        if kind in (FLOAT32, BFLOAT16):
            return self._dense(blocks, kind)[: end - first, : self.inputs]
        values = self._int8(blocks) if kind == INT8 else _int4(blocks)
        return values[: end - first, : self.inputs]

    @staticmethod
    def _dense(blocks: torch.Tensor, kind: int) -> torch.Tensor:
        panels = len(blocks)
        if kind == FLOAT32:
            rows = blocks.view(torch.float32).view(panels, -1, PANEL)
        else:
            pairs = blocks.view(torch.bfloat16).view(panels, -1, PANEL, 2)
            rows = pairs.permute(0, 1, 3, 2).float().reshape(panels, -1, PANEL)
        # Runs of 64 values are copied, which is faster than to transpose them here.
        return rows.transpose(0, 1).reshape(-1, panels * PANEL).t()

    def _int8(self, blocks: torch.Tensor) -> torch.Tensor:
        panels, count, _ = blocks.shape
        group = int(self._matrix.group)
        raw = blocks[..., :_BLOCK_BYTES]
        codes = (raw ^ 0x80 if self._flipped else raw).contiguous().view(torch.int8)
        codes = codes.view(panels, count, 8, PANEL, 4).permute(0, 3, 1, 2, 4)
        scales = blocks[..., _BLOCK_BYTES:].contiguous().view(torch.float16)
        scales = scales.view(panels, count, _GROUP // group, PANEL).permute(0, 3, 1, 2)
        values = codes.reshape(panels * PANEL, -1, group).float()
        return (values * scales.reshape(panels * PANEL, -1, 1).float()).view(panels * PANEL, -1)


def _int4(blocks: torch.Tensor) -> torch.Tensor:
    """Return the values of packed panels of int4 (outputs x inputs)."""
    panels, count, _ = blocks.shape
    raw = blocks[..., :1024].view(panels, count, 4, PANEL, 4)
    nibbles = torch.stack((raw & 15, raw >> 4), 2)  # panels x blocks x half x 4 x outputs x 4
    nibbles = nibbles.permute(0, 4, 1, 2, 3, 5).reshape(panels * PANEL, count, _GROUP).float()

    def numbers(first: int) -> torch.Tensor:
        halves = blocks[..., first : first + 2 * PANEL].contiguous().view(torch.float16)
        return halves.permute(0, 2, 1).reshape(panels * PANEL, count, 1).float()

    return (nibbles * numbers(1024) + numbers(1152)).view(panels * PANEL, -1)


def _native_times(
    kernels: Kernels, matrix: Matrix, blocks: torch.Tensor, x: torch.Tensor, outputs: int
) -> torch.Tensor:
    """Multiply rows with the panels of a matrix that begin with `blocks`."""
    part = Matrix(matrix.kind, matrix.group, outputs, matrix.inputs, blocks.data_ptr(), None)
    out = x.new_empty(len(x), outputs)
    kernels.product(part, x, out)
    return out


class _Stacked(Frozen):
    """Several matrices with the same input, stacked by outputs."""

    def __init__(self, parts: Sequence[Frozen]) -> None:
        biases = [each.bias for each in parts if each.bias is not None]
        outputs = sum(each.outputs for each in parts)
        super().__init__(outputs, parts[0].inputs, torch.cat(biases) if biases else None)
        self.parts = parts

    def tile(self, first: int, end: int) -> torch.Tensor:
        found, at = [], 0
        for part in self.parts:
            low, high = max(first - at, 0), min(end - at, part.outputs)
            if low < high:
                start = low // PANEL * PANEL
                found.append(part.tile(start, high)[low - start :])
            at += part.outputs
        return found[0] if len(found) == 1 else torch.cat(found)


def frozen(linear: Linear) -> Frozen:
    """Return a loaded product as a frozen matrix.

    Raises EngineError `no-backward` if its layout cannot be read.
    """
    if isinstance(linear, NativeLinear):
        return _Native(linear)
    if isinstance(linear, QuantisedLinear):
        return _Quantised(linear)
    if isinstance(linear, BlockedLinear):
        return _Blocked(linear)
    if isinstance(linear, StackedLinear):
        return _Stacked([frozen(part) for part in linear.parts])
    if isinstance(linear, PlainLinear):
        return _Plain(linear)
    raise EngineError("no-backward", "the layout of the weights on this device has no backward")
