"""How fast a shard is, as measured while it serves. No I/O."""

from .defaults import SPEED_MEMORY, SPEED_STEPS


class DecodeSpeed:
    """Tokens a second that its layers compute for one session, waiting aside; a moving mean."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._steps = 0

    def note(self, seconds: float) -> None:
        """One token took so long; what no clock could measure does not count."""
        if seconds <= 0.0:
            return
        self._steps += 1
        weight = max(1.0 / self._steps, 1.0 - SPEED_MEMORY)
        self._seconds += weight * (seconds - self._seconds)

    @property
    def tokens_per_s(self) -> float:
        """0 until enough were measured."""
        return 1.0 / self._seconds if self._steps >= SPEED_STEPS else 0.0
