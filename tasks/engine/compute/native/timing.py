"""Times the native kernels against torch on this machine, in some milliseconds, before their
use."""

from collections.abc import Callable
from typing import Final

import torch

from ...clock import clock
from ..products import torch_linear
from .library import Kernels, dense

_OUTPUTS: Final = 512
_INPUTS: Final = 1024
_ROWS: Final = (1, 32)  # a text and a prompt
_ROUNDS: Final = 5  # at least, and until the kernels are fast enough …
_MOST_ROUNDS: Final = 60  # … or this many on a busy machine
MOST_TIMES: Final = 1.5
"""How many times as long as torch the kernels may take. Whole steps in one call, and rows that do
not depend on others, are worth some time; and a short measurement errs."""


def slower(kernels: Kernels, dtype: torch.dtype) -> float | None:
    """Return the kernels' time with matrices of a dtype, as a multiple of torch's. None: it is not
    above MOST_TIMES."""
    weight = torch.full((_OUTPUTS, _INPUTS), 1 / 64).to(dtype)
    ours, theirs = dense(kernels, weight, None), torch_linear(weight, None)
    worst = max(time_ratio(ours, theirs, torch.ones(rows, _INPUTS, dtype=dtype)) for rows in _ROWS)
    return worst if worst > MOST_TIMES else None


Product = Callable[[torch.Tensor], torch.Tensor]


def time_ratio(ours: Product, theirs: Product, x: torch.Tensor) -> float:
    """Return the time of our product over that of theirs, each the fastest of some rounds.

    The rounds alternate, because other programs make both slower. A worker keeps the verdict for
    as long as it runs, so kernels that seem slow get more rounds.
    """
    best = [float("inf")] * 2
    for number in range(_MOST_ROUNDS):
        if number >= _ROUNDS and best[0] <= MOST_TIMES * best[1]:
            break
        for index, product in enumerate((ours, theirs)):
            began = clock()
            product(x)
            best[index] = min(best[index], clock() - began)
    return best[0] / max(best[1], 1e-9)
