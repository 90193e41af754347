"""Reads matrices in MXFP4, the format of gpt-oss (OCP Microscaling Formats 1.0).

32 values in a row share a scale, a power of two that is stored as its exponent plus 127. A value is
a 4-bit float with 2 bits of exponent and 1 of mantissa. A byte has two values, the first one in its
lower half. They are converted to the shard's dtype: bfloat16 has all of these values exactly.
"""

from typing import Final

import torch

from ..errors import EngineError

GROUP: Final = 32
"""Number of values that share a scale."""

_VALUES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # the highest bit is the sign
_NO_SCALE: Final = 255  # the scale that stands for NaN


def converted(blocks: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a matrix (rows x columns) from bytes.

    `blocks` has the shape (rows, columns / 32, 16), and `scales` (rows, columns / 32). Raises
    EngineError `bad-tensor` if a value is not finite.
    """
    table = torch.tensor([*_VALUES, *(-value for value in _VALUES)])
    pairs = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2).int()
    values = torch.ldexp(table[pairs], scales[..., None].int() - 127).to(dtype)
    if bool((scales == _NO_SCALE).any()) or not bool(torch.isfinite(values).all()):
        raise EngineError("bad-tensor", "a matrix in MXFP4 has values that are not finite")
    return values.flatten(-2)
