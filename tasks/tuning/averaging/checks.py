"""Whether an update is harmless by the loss on data that its receiver chose. No I/O."""

import math

from .defaults import LOSS_TOLERANCE


def is_harmless(before: float, after: float, *, strict: bool) -> bool:
    """Return whether an update may be applied. `before` and `after` are the losses without it and
    with it alone.

    An honest update may raise the loss a little by chance. With `strict` it may not: its author's
    earlier updates were refused.
    """
    if not math.isfinite(after):
        return False
    return after <= before if strict else after <= before + LOSS_TOLERANCE * abs(before)
