"""Where the feeds of the revoked end: what a private group's revocations mean for a replica.

A feed that ends is a part of one chain: what leads to its end. What is behind the end, or on
another branch, is nobody's any more; a fork of it proves nothing. Spec: docs/spec/group.md, Ends.
"""

from collections.abc import Iterable, Mapping

from .digest import Plot
from .entry import FORKED, Head
from .feed import NOWHERE
from .gossip import Told


class Ends:
    """By the authors' public keys."""

    def __init__(self) -> None:
        self._ends: dict[bytes, Mapping[Plot, Head]] = {}

    def of(self, key: bytes, plot: Plot) -> Head | None:
        """The last entry that counts; None where the author is not revoked."""
        ends = self._ends.get(key)
        return None if ends is None else ends.get(plot, NOWHERE)

    def replace(self, ends: Mapping[bytes, Mapping[Plot, Head]]) -> Iterable[bytes]:
        """These from now on, and no others; the authors for whom that changes something."""
        before, self._ends = self._ends, dict(ends)
        changed = before.keys() | ends.keys()
        return sorted(key for key in changed if before.get(key) != ends.get(key))


def leads_on(mine: Head | None, told: Told, end: Head) -> bool:
    """Whether who told of this head may have what leads further to the end of a feed."""
    if mine == end or end == NOWHERE or told.epoch in (FORKED.epoch, 0):
        return False
    if told.epoch != end.epoch or told.seq < end.seq:
        return told.epoch <= end.epoch and (mine is None or told[3:5] > mine[:2])
    return told.seq > end.seq or told.same(end)
