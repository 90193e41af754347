"""Checks of what stages return: finite values, and norms that can be right. No I/O.

A stage may lie, or its memory may be damaged. A result that is a million times too large would ruin
the adapter in one step.
"""

from collections import deque
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ...engine.interface import DType
from ...engine.wire import Buffer
from ...errors import SessionError
from ..defaults import BELIEVED, GROWTH, LARGEST, USUAL


def values_of(data: Buffer, wire: DType) -> NDArray[np.float32]:
    """Return values that a stage has sent as float32."""
    if wire == "float32":
        return np.frombuffer(data, np.float32)
    return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)


def norm_of(values: NDArray[np.float32]) -> float:
    """Return the norm of some values. Raises SessionError `bad-result` if one is not finite.

    A norm that overflows is infinite, and also refused.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        norm = float(np.sqrt(np.dot(values, values))) if values.size else 0.0
    if not np.isfinite(norm):
        raise SessionError("bad-result", "the stage returned values that are not finite")
    return norm


class UsualNorms:
    """The norms of a stage's results so far, for each counted position."""

    def __init__(self) -> None:
        self._seen: deque[float] = deque(maxlen=32)

    def check(self, norm: float, counted: int) -> None:
        """Raise SessionError `bad-result` if a norm is far beyond the earlier ones, or is
        larger than LARGEST."""
        each = norm / max(1, counted)
        most = LARGEST
        if len(self._seen) >= USUAL:
            # Derivatives vanish where nothing is left to learn, so growth from 0 proves no lie.
            most = min(most, max(GROWTH * median(self._seen), BELIEVED))
        if each > most:
            raise SessionError(
                "bad-result",
                f"the stage returned derivatives of norm {norm:.3g}, {each / most:.3g} times the "
                "most that is believed",
            )
        self._seen.append(each)
