"""Who does jobs, as they say of themselves, and for how long somebody has not answered."""

from collections.abc import Callable, Collection

from ...state import defaults
from ...state.claimant import patience
from ...state.shares import Shares
from ...state.views.members import Members
from ...transport.identity import PeerId


class Crew:
    """Members that do jobs of one of these kinds. `live`: who answers now; `now`: monotonic
    seconds. A node that has just begun gives everybody time to answer."""

    def __init__(
        self,
        members: Members,
        kinds: Collection[str],
        *,
        live: Callable[[], Collection[PeerId]],
        now: Callable[[], float],
    ) -> None:
        self.shares = Shares()
        self._members = members
        self._kinds = frozenset(kinds)
        self._live = live
        self._now = now
        self._began = now()
        self._answering: Collection[PeerId] = frozenset()
        self._answered: dict[PeerId, float] = {}  # of who does jobs: when last
        self._patience = patience(0, 0)

    def known(self) -> list[PeerId]:
        """Those of whom `changed` is to be told where anybody may say something else."""
        return sorted({*self._members, *self._answered})

    def changed(self, peer: PeerId) -> None:
        """A member says something else of itself."""
        member = self._members.get(peer)
        if member is not None and not self._kinds.isdisjoint(member.jobs):
            self.shares.add(peer)
            self._answered.setdefault(peer, self._began)
        else:
            self.shares.remove(peer)
            self._answered.pop(peer, None)

    def look(self) -> None:
        """Note who answers. To be called before others ask."""
        now = self._now()
        self._answering = frozenset(self._live())
        for peer in self._answered.keys() & self._answering:
            self._answered[peer] = now
        lately = [at for at in self._answered.values() if now - at < defaults.CLAIM_PATIENCE[1]]
        self._patience = patience(sum(at < now for at in lately), len(lately))

    def silent(self, peer: PeerId) -> float:
        """Seconds for which it has not answered; 0 while it does."""
        if peer in self._answering:
            return 0.0
        return self._now() - self._answered.get(peer, self._began)

    def patience(self) -> float:
        """From how many seconds of silence on somebody's jobs are others', as things are."""
        return self._patience
