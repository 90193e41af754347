"""Rate limiter of dials for background work, because a dial costs more than its request.

Joining, bucket refresh and background announcements share one `DialLimiter`. Requests of a user or
an application do not use it. Sans-I/O; times are seconds of the host's monotonic clock.
"""


class DialLimiter:
    """Allows one dial each `pause` seconds, the first of them after the first pause.

    Each pause is 1.5 times as long as the previous one, up to `most` seconds, because a node sends
    most such requests soon after its start.
    """

    def __init__(self, pause: float, now: float, most: float = 0.0) -> None:
        self.pause = pause
        self._most = max(pause, most)
        self.at = now + pause
        """Time of the next dial."""

    def take(self, now: float) -> bool:
        """Return whether a dial may begin now, and count it if so."""
        if now < self.at:
            return False
        self.pause = min(1.5 * self.pause, self._most)
        self.at = now + self.pause
        return True

    def within(self, seconds: float, dials: int, now: float) -> "DialLimiter":
        """Return this rate limiter, or a faster one if `dials` would take more than `seconds`.

        A thousand records must not expire while they are being announced.
        """
        if dials * self.pause <= seconds:
            return self
        return DialLimiter(seconds / dials, now)
