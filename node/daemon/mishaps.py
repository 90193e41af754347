"""Reports bugs of this program that peers have triggered, as one condition, so that the owner can
report them to the developers.

A peer that can trigger a bug can do so thousands of times. All bugs therefore share one condition,
whose text changes only when a bug appears for the first time or its count has doubled.
"""

from collections import Counter

from ...transport.guard import Mishap
from .. import defaults
from ..health import Health

CONDITION = "mishap"
HINT = (
    "the connection to that peer was closed and the node keeps running; please report the line "
    "above as a bug, with the version that `shoal --version` prints"
)


class Mishaps:
    """Counts bugs by exception and source line. Beyond MISHAP_KINDS different bugs, further ones
    are counted together."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self.counts: Counter[tuple[str, str]] = Counter()

    def add(self, mishap: Mishap) -> None:
        """Count a bug, and report it if its count is a power of two."""
        kind = mishap.error, mishap.place
        if kind not in self.counts and len(self.counts) >= defaults.MISHAP_KINDS:
            kind = "others", ""
        self.counts[kind] += 1
        count = self.counts[kind]
        if count & (count - 1) == 0:
            times = "" if count == 1 else f", {count} times by now"
            what = f"{mishap.error} at {mishap.place}{times}"
            sentence = f"this program ran into a bug with `{mishap.subject}`: {what}"
            self._health.report(CONDITION, sentence, hint=HINT)
