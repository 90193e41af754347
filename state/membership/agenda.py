"""When each watched member is due, so that a look at those that are due does not look at all.

A heap whose entries are removed late: a changed time leaves the old entry behind, which is skipped
when it comes up. No I/O.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from ...transport.identity import PeerId
from .watched import CALM, Urgency, Watched

_STALE: Final = 32  # outdated entries of a heap that are never worth removing


class DueTimes:
    """The time at which each of some members is due. Members without a time are not stored."""

    __slots__ = ("_at", "_heap", "ready")

    def __init__(self) -> None:
        self._at: dict[PeerId, float] = {}
        self._heap: list[tuple[float, PeerId]] = []
        self.ready: dict[PeerId, None] = {}
        """The members that were due at the last `advance`, until their time changes."""

    def set(self, peer: PeerId, at: float) -> None:
        """Set the time at which a member is due, in seconds. Infinity removes the member."""
        if self._at.get(peer, inf) == at:
            return
        self.ready.pop(peer, None)
        if at == inf:
            del self._at[peer]
            return
        self._at[peer] = at
        heappush(self._heap, (at, peer))
        if len(self._heap) > 2 * len(self._at) + _STALE:
            self._heap = [(due, each) for each, due in self._at.items() if each not in self.ready]
            heapify(self._heap)

    def advance(self, now: float) -> None:
        """Add to `ready` the members that are due by now."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            at, peer = heappop(heap)
            if self._at.get(peer) == at:
                self.ready[peer] = None

    def next_at(self) -> float:
        """Return the time at which the next member is due.

        Minus infinity if one is ready, infinity if no member has a time.
        """
        if self.ready:
            return -inf
        heap = self._heap
        while heap and self._at.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else inf


class Agenda:
    """When the members are due, by what is done about them then, and counts of them.

    `put` must be called for each member after a change of it.
    """

    def __init__(self) -> None:
        self.shared = DueTimes()
        """Members that a question about many members includes."""
        self.urgent = DueTimes()
        """Members that are checked at once."""
        self.calm = DueTimes()
        """Members whose checks can wait, apart from the unseen."""
        self.unseen = DueTimes()
        """Members that are neither live nor reported."""
        self.early = DueTimes()
        """When members may be checked together with others that are due."""
        self.ends = DueTimes()
        """When live members count as dead, checked or not."""
        self.live = 0
        """Number of live members without a link."""
        self.alone = 0
        """Number of live members without a link or a witness."""
        self.checking: dict[PeerId, None] = {}
        """Members of which a check is under way."""
        self._all = (self.shared, self.urgent, self.calm, self.unseen, self.early, self.ends)

    def advance(self, now: float) -> None:
        """Determine the members that are due by now."""
        for times in self._all:
            times.advance(now)

    def put(self, peer: PeerId, watched: Watched, *, linked: bool, due: float, ends: float) -> None:
        """Store a member. `due` and `ends` are times in seconds, or infinity."""
        live = watched.live and not linked
        self._count(watched, (live, live and not watched.networks))
        if watched.checking:
            self.checking[peer] = None
        else:
            self.checking.pop(peer, None)
        place = self._place(watched)
        for times in (self.shared, self.urgent, self.calm, self.unseen):
            times.set(peer, due if times is place else inf)
        self.early.set(peer, due - watched.early if watched.early else inf)
        self.ends.set(peer, ends)

    def remove(self, peer: PeerId, watched: Watched) -> None:
        """Remove a member that is no longer known."""
        self._count(watched, (False, False))
        self.checking.pop(peer, None)
        for times in self._all:
            times.set(peer, inf)

    def _count(self, watched: Watched, counted: tuple[bool, bool]) -> None:
        before, watched.counted = watched.counted, counted
        self.live += counted[0] - before[0]
        self.alone += counted[1] - before[1]

    def _place(self, watched: Watched) -> DueTimes:
        if watched.shared:
            return self.shared
        urgency = watched.urgency
        if urgency is Urgency.UNSEEN:
            return self.unseen
        return self.calm if urgency in CALM else self.urgent

    def to_check(self) -> Iterable[PeerId]:
        """Return the members to check now: those that are due and, if there are any, those that may
        be checked early."""
        due = {**self.urgent.ready, **self.calm.ready, **self.unseen.ready}
        return {**due, **self.early.ready} if due else due

    def next_at(self, *, shared_at: float, round_at: float, calm_at: float, unseen: bool) -> float:
        """Return the time at which something is due, in seconds.

        A question about many members waits until `shared_at`, a check until `round_at`, and one
        that is not urgent until `calm_at`. Without `unseen`, unseen members wait for a change.
        """
        calm_at = max(calm_at, round_at)
        return min(
            max(self.shared.next_at(), shared_at),
            max(self.urgent.next_at(), round_at),
            max(self.calm.next_at(), calm_at),
            max(self.unseen.next_at(), calm_at) if unseen else inf,
            self.ends.next_at(),
        )
