"""Measurement of what products of passes take on this machine, with the loaded weights."""

from collections.abc import Callable, Sequence
from typing import Final

import torch

from ...clock import clock
from .layer import FrozenLayer
from .matrices import PANEL, Frozen
from .pacing import ProductRate

_ROWS: Final = (16, 128)  # of the two products that are measured
_PANELS: Final = 4


def fitted(layers: Sequence[FrozenLayer], device: str) -> tuple[ProductRate, ProductRate] | None:
    """Return the rates of products and of their derivatives, or None without layers.

    They differ: a product may be in bfloat16, and for its derivative a tile of the weights is
    unpacked to float32.
    """
    if not layers:
        return None
    matrix = layers[0].widest
    end = min(matrix.outputs, _PANELS * PANEL)

    def forward(rows: int) -> None:
        matrix.times(torch.ones(rows, matrix.inputs), 0, end)

    def back(rows: int) -> None:
        tile = matrix.tile(0, end)
        torch.zeros(rows, matrix.inputs).addmm_(torch.ones(rows, end), tile)

    rates = _rate(forward, matrix, end, device), _rate(back, matrix, end, device)
    matrix.tile((matrix.outputs - 1) // PANEL * PANEL, matrix.outputs)  # frees a plain copy
    return rates


def _rate(work: Callable[[int], None], matrix: Frozen, end: int, device: str) -> ProductRate:
    few, many = (_seconds(work, rows, device) / (matrix.inputs * end) for rows in _ROWS)
    row = max(0.0, many - few) / (_ROWS[1] - _ROWS[0])
    return ProductRate(max(0.0, few - _ROWS[0] * row), row)


def _seconds(work: Callable[[int], None], rows: int, device: str) -> float:
    times = []
    for _ in range(3):  # the first one warms up
        began = clock(device)
        work(rows)
        times.append(clock(device) - began)
    return min(times)
