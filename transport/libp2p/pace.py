"""Rate limiter for reading, so that handling a peer's bytes takes a limited share of this node."""

import math

import trio


class Pace:
    """Allows `rate` bytes per second after a burst of `burst` bytes (a leaky bucket)."""

    def __init__(self, rate: int, burst: int) -> None:
        self._rate = rate
        self._ahead = burst / rate
        self._paid_until = -math.inf  # when all bytes taken so far would have been due

    async def spend(self, size: int) -> None:
        """Wait until `size` bytes are within the rate."""
        now = trio.current_time()
        self._paid_until = max(self._paid_until, now - self._ahead) + size / self._rate
        if self._paid_until > now:
            await trio.sleep_until(self._paid_until)
