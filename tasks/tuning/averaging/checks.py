"""Whether an update is harmless by the loss on data that its receiver chose. No I/O."""

import math

from .defaults import BESIDE_TOLERANCE, LOSS_TOLERANCE


def is_harmless(before: float, after: float, *, strict: bool, beside: bool = False) -> bool:
    """Return whether an update may be applied. `before` and `after` are the losses without it and
    with it: alone, or `beside` a peer's own update.

    An honest update may raise the loss a little by chance. With `strict` it may not: its author's
    earlier updates were refused.
    """
    if not math.isfinite(after):
        return False
    tolerance = 0.0 if strict else BESIDE_TOLERANCE if beside else LOSS_TOLERANCE
    return after <= before + tolerance * abs(before)
