"""The last valid entries of revoked members' feeds in a private group.

A revocation names the last entry of each feed that still counts: the feed's end. Only the chain of
entries that leads to the end is valid. Later entries and other branches do not count, and two
entries with the same number do not prove a fork of such a feed. Spec: docs/spec/group.md, Ends.
"""

from collections.abc import Iterable, Mapping

from ..feeds.digest import Plot
from ..feeds.entry import FORKED, Head
from ..feeds.feed import NOWHERE
from .gossip import Told


class Ends:
    """The ends of revoked members' feeds, by the author's public key."""

    def __init__(self) -> None:
        self._ends: dict[bytes, Mapping[Plot, Head]] = {}

    def of(self, key: bytes, plot: Plot) -> Head | None:
        """Return the head of the last entry of a feed that counts, or None if the author is not
        revoked."""
        ends = self._ends.get(key)
        return None if ends is None else ends.get(plot, NOWHERE)

    def replace(self, ends: Mapping[bytes, Mapping[Plot, Head]]) -> Iterable[bytes]:
        """Replace all ends. Return the authors whose ends have changed, sorted."""
        before, self._ends = self._ends, dict(ends)
        changed = before.keys() | ends.keys()
        return sorted(key for key in changed if before.get(key) != ends.get(key))


def leads_on(mine: Head | None, told: Told, end: Head) -> bool:
    """Return whether a peer's entries of a feed may bring this node closer to the feed's end.

    `mine` is this node's head of the feed, or None if it has none. `told` is the peer's head.
    """
    if mine == end or end == NOWHERE or told.epoch in (FORKED.epoch, 0):
        return False
    if told.epoch != end.epoch or told.seq < end.seq:
        return told.epoch <= end.epoch and (mine is None or told[3:5] > mine[:2])
    return told.seq > end.seq or told.same(end)
