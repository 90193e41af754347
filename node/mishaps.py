"""Mistakes of ours that a peer has found, as a condition that the owner can report.

A peer that can trigger one can trigger thousands: there is one condition, and a line for it only
when a mistake shows for the first time and when its count has doubled.
"""

from collections import Counter

from ..transport.guard import Mishap
from . import defaults
from .health import Health

CONDITION = "mishap"
HINT = (
    "the connection to that peer was ended and the node goes on; please report the line above as "
    "a bug, with the version that `shoal --version` prints"
)


class Mishaps:
    """Counts them by exception and line of ours, of which it keeps `defaults.MISHAP_KINDS`."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, mishap: Mishap) -> None:
        """Count one more; the sentence names the peer of the latest that is told."""
        kind = mishap.error, mishap.place
        if kind not in self._counts and len(self._counts) >= defaults.MISHAP_KINDS:
            kind = "others", ""
        self._counts[kind] += 1
        count = self._counts[kind]
        if count & (count - 1) == 0:
            times = "" if count == 1 else f", {count} times by now"
            what = f"{mishap.error} at {mishap.place}{times}"
            sentence = f"a mistake of this program met `{mishap.who}`: {what}"
            self._health.report(CONDITION, sentence, hint=HINT)
