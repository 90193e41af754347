"""Whether an update is harmless by the loss on data that its receiver chose. No I/O."""

import math

from .defaults import LOSS_TOLERANCE


def is_harmless(before: float, after: float, *, strict: bool, weight: float = 1.0) -> bool:
    """Return whether an update may be applied. `before` and `after` are the losses without it and
    with it, applied with this weight.

    An honest update may raise the loss a little by chance. With `strict` it may not: its author's
    earlier updates were refused.
    """
    if not math.isfinite(after):
        return False
    tolerance = 0.0 if strict else LOSS_TOLERANCE * weight * abs(before)
    return after <= before + tolerance
