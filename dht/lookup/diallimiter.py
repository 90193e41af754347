"""Rate limiter of dials for background work, because a dial costs more than its request.

Joining, bucket refresh and background announcements share one `DialLimiter`. Requests of a user or
an application do not use it. No I/O. Times are seconds of the host's monotonic clock.
"""


class DialLimiter:
    """Rate limiter that allows one dial each `pause` seconds, the first after the first pause.

    Each pause is 1.5 times as long as the previous one, but at most `most` seconds, because a node
    has the most background work soon after its start.
    """

    def __init__(self, pause: float, now: float, most: float = 0.0) -> None:
        self.pause = pause
        self._most = max(pause, most)
        self.at = now + pause
        """Time at which the next dial is allowed."""

    def take(self, now: float) -> bool:
        """Return whether a dial may begin now. If so, the next pause starts."""
        if now < self.at:
            return False
        self.pause = min(1.5 * self.pause, self._most)
        self.at = now + self.pause
        return True

    def within(self, seconds: float, dials: int, now: float) -> "DialLimiter":
        """Return a rate limiter that allows `dials` dials within `seconds`.

        This is the same object if it is fast enough. Otherwise, it is a faster one, because a
        thousand records, for example, must not expire while they are being announced.
        """
        if dials * self.pause <= seconds:
            return self
        return DialLimiter(seconds / dials, now)
