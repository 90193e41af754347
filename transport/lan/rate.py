"""So many a second, and so many at once."""


class Rate:
    """A token bucket: `per_s` per second, `burst` at once."""

    def __init__(self, per_s: float, burst: int, now: float) -> None:
        self._per_s = per_s
        self._burst = burst
        self._tokens = float(burst)
        self._filled = now

    def allows(self, now: float) -> bool:
        """Whether there is room for one more, which is then taken."""
        gained = max(0.0, now - self._filled) * self._per_s
        self._tokens, self._filled = min(self._tokens + gained, self._burst), now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
