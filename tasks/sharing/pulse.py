"""Decides from the looks at an engine whether its models are offered. No I/O."""

from . import defaults


class Pulse:
    """State of one engine: whether it answers, and whether its models are offered.

    A refused connection withdraws them at once, and MISSES late answers do. An engine that goes and
    comes back often must answer for longer each time until it is offered again, because every
    change of the offer is news for the whole swarm.
    """

    def __init__(self) -> None:
        self.offered = False
        self._misses = 0
        self._settle = defaults.SETTLE[0]
        self._since: float | None = None  # when it began to answer
        self._offered_at = 0.0

    def heard(self, now: float) -> None:
        """Note an answer."""
        self._misses = 0
        if self._since is None:
            self._since = now
        if not self.offered and now - self._since >= self._settle:
            self.offered, self._offered_at = True, now

    def missed(self, now: float, *, gone: bool) -> None:
        """Note a look without an answer. `gone`: nothing accepted the connection."""
        self._misses += 1
        if not gone and self._misses < defaults.MISSES:
            return
        self._since = None
        if self.offered:
            self.offered = False
            steady = now - self._offered_at >= defaults.FLAP
            wait = defaults.SETTLE[0] if steady else max(2 * self._settle, defaults.LOOK)
            self._settle = min(wait, defaults.SETTLE[1])
