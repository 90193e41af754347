"""The members that do jobs, and the conditions under which this node is one of them."""

import hashlib
from bisect import bisect, bisect_left, insort
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import islice

import trio

from ...state import defaults as state_defaults
from ...state.views.members import Members
from ...transport.identity import PeerId
from . import defaults
from .fairness import FairQueue

_POINT_DOMAIN = b"shoal/share/1 "
_POINT_BYTES = 8


class IdleTime:
    """`Turn` that lets jobs compute while there are no interactive requests.

    `waited_for` returns the number of interactive requests. A turn ends when there have been
    some for YIELD_AFTER seconds. Until then the engines compute it before the rows of jobs, whose
    chains stay open: closing and opening many of them takes longer than most requests.
    """

    def __init__(
        self, waited_for: Callable[[], int], now: Callable[[], float] = trio.current_time
    ) -> None:
        self._waited_for = waited_for
        self._now = now
        self._since: float | None = None  # time since when there are interactive requests

    @property
    def is_wanted(self) -> bool:
        """Whether there are interactive requests. No further job begins then."""
        return self._waited_for() > 0

    def is_over(self) -> bool:
        """Return whether jobs in progress must stop for interactive requests."""
        if not self.is_wanted:
            self._since = None
            return False
        if self._since is None:
            self._since = self._now()
        return self._now() - self._since >= defaults.YIELD_AFTER

    async def come(self) -> None:
        """Wait until there are no interactive requests."""
        while self.is_wanted:  # noqa: ASYNC110  two counters of other parts, without events
            await trio.sleep(defaults.PAUSE)


@dataclass(frozen=True, slots=True)
class WorkTerms:
    """Conditions under which this node does jobs."""

    turn: IdleTime
    """Tells when jobs may compute. At other times, interactive requests have priority."""
    ready: Callable[[], bool]
    """Returns whether the node does any jobs now."""
    accepts: Callable[[PeerId], bool] = lambda author: True
    """Returns whether the node does jobs of this author."""
    queue: FairQueue = field(default_factory=FairQueue)
    """The order of users and their jobs."""


def patience(silent: int, workers: int) -> float:
    """Return how long, in seconds, to assume that a silent worker is still working.

    `silent` of `workers` recently live workers do not answer. If these are many, the network may be
    partitioned, and the time is long. If they are few, they have probably ended, and the time is
    short.
    """
    few = max(1, int(workers * state_defaults.CLAIM_FEW))
    return state_defaults.CLAIM_PATIENCE[silent > few]


class WorkerRing:
    """Consistent-hash ring that assigns each job a preferred worker.

    All nodes know about the same workers, even on different sides of a partition. If each worker
    begins with the jobs that the ring assigns to it, both sides rarely do the same job. The ring is
    only a preference: a worker that has none of its own jobs left does jobs of others, and the next
    worker on the ring inherits the jobs of a dead one. Each worker has SHARE_POINTS points on the
    ring.
    """

    def __init__(self) -> None:
        self._points: list[tuple[int, PeerId]] = []
        self._workers: set[PeerId] = set()

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._workers

    def __len__(self) -> int:
        return len(self._workers)

    def add(self, peer: PeerId) -> None:
        """Add a worker to the ring, unless it is there."""
        if peer not in self._workers:
            self._workers.add(peer)
            for point in _points_of(peer):
                insort(self._points, (point, peer))

    def remove(self, peer: PeerId) -> None:
        """Remove a worker from the ring, if it is there."""
        if peer in self._workers:
            self._workers.remove(peer)
            for point in _points_of(peer):
                del self._points[bisect_left(self._points, (point, peer))]

    def heirs(self, job: str) -> Iterator[PeerId]:
        """Yield the preferred worker of a job, and then its successors on the ring.

        A worker may be yielded several times. `job` is the job's id, a hash in hex.
        """
        begin = bisect(self._points, (int(job[: 2 * _POINT_BYTES], 16), PeerId("")))
        for at in range(len(self._points)):
            yield self._points[(begin + at) % len(self._points)][1]


def _points_of(peer: PeerId) -> Iterator[int]:
    for number in range(state_defaults.SHARE_POINTS):
        told = _POINT_DOMAIN + f"{number} {peer}".encode()
        yield int.from_bytes(hashlib.sha256(told).digest()[:_POINT_BYTES])


class Crew:
    """Members that do jobs of one of the given kinds.

    `live` returns the peers that are reachable now, `now` the monotonic time in seconds. When this
    node starts, all members count as reachable.
    """

    def __init__(
        self,
        members: Members,
        kinds: Collection[str],
        *,
        live: Callable[[], Collection[PeerId]],
        now: Callable[[], float],
    ) -> None:
        self.shares = WorkerRing()
        self._members = members
        self._kinds = frozenset(kinds)
        self._live = live
        self._now = now
        self._began = now()
        self._answering: Collection[PeerId] = frozenset()
        # By member that does jobs: the time at which it was last live.
        self._answered: dict[PeerId, float] = {}
        self._patience = patience(0, 0)

    def known(self) -> list[PeerId]:
        """Return the peers that this object knows, sorted. The caller passes them to `changed` if
        any member record may have changed."""
        return sorted({*self._members, *self._answered})

    def changed(self, peer: PeerId) -> None:
        """Update whether a member does jobs, after its record has changed."""
        member = self._members.get(peer)
        if member is not None and not self._kinds.isdisjoint(member.jobs):
            self.shares.add(peer)
            self._answered.setdefault(peer, self._began)
        else:
            self.shares.remove(peer)
            self._answered.pop(peer, None)

    def look(self) -> None:
        """Record which members are live now. Must be called before `silent` and `patience`."""
        now = self._now()
        self._answering = frozenset(self._live())
        for peer in sorted(self._answered.keys() & self._answering):
            self._answered[peer] = now
        lately = [
            at for at in self._answered.values() if now - at < state_defaults.CLAIM_PATIENCE[1]
        ]
        self._patience = patience(sum(at < now for at in lately), len(lately))

    def is_live(self, peer: PeerId) -> bool:
        """Return whether a peer is reachable now."""
        return peer in self._live()

    def silent(self, peer: PeerId) -> float:
        """Return for how many seconds a peer has been silent. 0 means that the peer is live."""
        if peer in self._answering:
            return 0.0
        return self._now() - self._answered.get(peer, self._began)

    def heirs(self, job: str, own: PeerId) -> list[PeerId]:
        """Return the live workers other than `own` that would continue a job, the first one
        first."""
        ring = islice(self.shares.heirs(job), state_defaults.CLAIM_HEIRS)
        return list(dict.fromkeys(peer for peer in ring if peer != own and not self.silent(peer)))

    def patience(self) -> float:
        """Return the seconds of silence after which other nodes may take over a member's jobs."""
        return self._patience


def does_jobs(members: Members, peer: PeerId) -> bool:
    """Return whether a member publishes that it does jobs."""
    member = members.get(peer)
    return member is not None and bool(member.jobs)
