"""Deadline for the next message of a chain, from the times of the earlier ones. No I/O."""

from math import inf

from ...defaults import PACE_GROWTH, PACE_MEMORY, SLOW_LEAST, SPAN_DEADLINE, SPAN_FACTOR


class Pace:
    """Predicted time between two messages of one chain. All times are in seconds.

    The prediction is the longest of the latest gaps, because tokens arrive in groups. A gap beyond
    PACE_GROWTH times the prediction counts as that much, so that one pause does not hide the next
    one.
    """

    def __init__(self, now: float) -> None:
        self.heard_at = now  # when the chain last sent a message, or was opened
        self._messages = 0
        self._usual = 0.0
        self._first = inf

    @property
    def known(self) -> bool:
        """Whether there were messages from which the next one can be predicted."""
        return self._usual > 0

    @property
    def deadline(self) -> float:
        """Seconds of silence after which a stage is at fault, unless it says why it is late."""
        return max(SPAN_DEADLINE, SPAN_FACTOR * self._usual)

    @property
    def slow(self) -> float:
        """Seconds of silence after which a stage is too slow, if it computes for nothing else."""
        return self.deadline if self.known else self._first

    def predict(self, first: float) -> None:
        """Set the predicted time until the first message, which the measured gaps say nothing of.
        Without it, no stage counts as slow until then."""
        self._first = max(SLOW_LEAST, SPAN_FACTOR * first)

    def note(self, now: float) -> None:
        """Count a message of the chain. The wait for the first one predicts nothing, since it
        depends on the prompt."""
        gap, self.heard_at = now - self.heard_at, now
        self._messages += 1
        if self._messages == 1:
            return
        if self.known:
            gap = min(gap, PACE_GROWTH * self._usual)
        self._usual = max(gap, PACE_MEMORY * self._usual)
