"""Reports bugs that a peer has triggered as one condition, which the owner can pass on to us.

A peer that can trigger a bug can do so thousands of times. So there is one condition, and a new
line only when a bug shows for the first time or its count has doubled.
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
    """Counts bugs by exception and source line; keeps at most `defaults.MISHAP_KINDS` of them."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, mishap: Mishap) -> None:
        """Count a bug, and report it if its count is a power of two."""
        kind = mishap.error, mishap.place
        if kind not in self._counts and len(self._counts) >= defaults.MISHAP_KINDS:
            kind = "others", ""
        self._counts[kind] += 1
        count = self._counts[kind]
        if count & (count - 1) == 0:
            times = "" if count == 1 else f", {count} times by now"
            what = f"{mishap.error} at {mishap.place}{times}"
            sentence = f"this program ran into a bug with `{mishap.who}`: {what}"
            self._health.report(CONDITION, sentence, hint=HINT)
