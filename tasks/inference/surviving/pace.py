"""Deadline for the next message of a chain, from the times of the earlier ones. No I/O."""

from math import inf

from ...defaults import (
    CRAWL_LAG,
    PACE_GROWTH,
    PACE_MEMORY,
    SLOW_LEAST,
    SPAN_DEADLINE,
    SPAN_FACTOR,
)


class Pace:
    """Predicted time between two messages of one chain. All times are in seconds.

    The prediction is the longest of the latest gaps, because tokens arrive in groups. A gap beyond
    PACE_GROWTH times the prediction counts as that much, so that one pause does not hide the next
    one.

    A stage that sends something just before each deadline is never silent for long. So the chain
    also has to keep up with SPAN_FACTOR times the time that was predicted for a token: `crawls`. A
    single gap counts there as SPAN_DEADLINE at most, because what was silent once is judged by its
    silence.
    """

    def __init__(self, now: float) -> None:
        self.heard_at = now  # when the chain last sent a message, or was opened
        self._messages = 0
        self._usual = 0.0
        self._first = inf
        self.token_s = 0.0  # predicted for each token; 0: the progress is not judged
        self._text = False  # whether the last message was a token
        self._lag = 0.0  # seconds by which tokens came later than they may
        self._crawls_since = 0.0

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

    @property
    def crawls(self) -> bool:
        """Whether tokens have come much later than was predicted, again and again."""
        return self._lag >= CRAWL_LAG * self._longest

    @property
    def _longest(self) -> float:
        return max(SPAN_DEADLINE, SPAN_FACTOR * self.token_s)

    @property
    def gap(self) -> float:
        """The usual seconds between two messages."""
        return self._usual

    def crawled(self, now: float) -> float:
        """Return for how many seconds a chain that crawls counts as silent: its deadline, and the
        time since it began to crawl."""
        return self.slow + now - self._crawls_since

    def predict(self, first: float) -> None:
        """Set the predicted time until the first message, which the measured gaps say nothing of.
        Without it, no stage counts as slow until then."""
        self._first = max(SLOW_LEAST, SPAN_FACTOR * first)

    def note(self, now: float, *, token: bool = False) -> None:
        """Count a message of the chain: a token, or progress in the prompt. The wait for the first
        one predicts nothing, since it depends on the prompt."""
        gap, self.heard_at = now - self.heard_at, now
        self._messages += 1
        if token and self._text and self.token_s:
            self._judge(gap, now)
        self._text = token
        if self._messages == 1:
            return
        if self.known:
            gap = min(gap, PACE_GROWTH * self._usual)
        self._usual = max(gap, PACE_MEMORY * self._usual)

    def _judge(self, gap: float, now: float) -> None:
        """Add the gap before a token to what the chain lags behind."""
        crawled, late = self.crawls, min(gap, self._longest) - SPAN_FACTOR * self.token_s
        self._lag = min(max(0.0, self._lag + late), (CRAWL_LAG + 1) * self._longest)
        if self.crawls and not crawled:
            self._crawls_since = now
