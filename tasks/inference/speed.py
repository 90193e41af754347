"""Measures the decode speed of the shard that this node serves."""

from ..defaults import SPEED_MEMORY, SPEED_STEPS


class DecodeSpeed:
    """Moving mean of the tokens per second that the shard computes for one session.

    Waiting times are not included.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._steps = 0

    def note(self, seconds: float) -> None:
        """Record the computing time of one token. Times that are not positive are ignored."""
        if seconds <= 0.0:
            return
        self._steps += 1
        weight = max(1.0 / self._steps, 1.0 - SPEED_MEMORY)
        self._seconds += weight * (seconds - self._seconds)

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second, or 0 until SPEED_STEPS tokens were measured."""
        return 1.0 / self._seconds if self._steps >= SPEED_STEPS else 0.0
