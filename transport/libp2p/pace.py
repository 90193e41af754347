"""Rate limiter for reading, so that processing a peer's bytes takes only a part of this node's
time."""

import math

import trio


class LeakyBucket:
    """Rate limiter that allows `rate` bytes per second after a burst of `burst` bytes (a leaky
    bucket)."""

    def __init__(self, rate: int, burst: int) -> None:
        self._rate = rate
        self._ahead = burst / rate
        self._paid_until = -math.inf  # time at which all bytes so far are within the rate

    async def spend(self, size: int) -> None:
        """Wait until `size` more bytes are within the rate."""
        now = trio.current_time()
        self._paid_until = max(self._paid_until, now - self._ahead) + size / self._rate
        if self._paid_until > now:
            await trio.sleep_until(self._paid_until)
