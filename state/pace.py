"""A token bucket on a given clock."""


class Pace:
    """`burst` at once, then `rate` per second."""

    def __init__(self, burst: float, rate: float, now: float) -> None:
        self._burst = burst
        self._rate = rate
        self._left = burst
        self._at = now

    def take(self, now: float) -> bool:
        """Whether one more may be now."""
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True
