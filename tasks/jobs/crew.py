"""The members that do jobs, and the conditions under which this node is one of them."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import trio

from ...state import defaults as state_defaults
from ...state.views.members import Members
from ...transport.identity import PeerId
from . import defaults
from .claimant import WorkerRing, patience


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
        for peer in self._answered.keys() & self._answering:
            self._answered[peer] = now
        lately = [
            at for at in self._answered.values() if now - at < state_defaults.CLAIM_PATIENCE[1]
        ]
        self._patience = patience(sum(at < now for at in lately), len(lately))

    def silent(self, peer: PeerId) -> float:
        """Return for how many seconds a peer has been silent. 0 means that the peer is live."""
        if peer in self._answering:
            return 0.0
        return self._now() - self._answered.get(peer, self._began)

    def patience(self) -> float:
        """Return the seconds of silence after which other nodes may take over a member's jobs."""
        return self._patience
