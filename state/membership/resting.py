"""Which links may rest, because other linked peers watch their peers closely. No I/O.

Spec: docs/spec/liveness.md.
"""

from collections.abc import Iterable, Mapping, Set
from functools import partial
from hashlib import sha256
from heapq import nsmallest

from ...transport.identity import PeerId
from .. import defaults


class Resting:
    """The peers whose links may rest.

    A link that rests is pinged only rarely. A node's watchers are the peers that are nearest to it.
    The link to a watcher rests on neither end. Any other link may rest if this node would hear of
    WATCHERS_HEARD of the peer's watchers at once that the peer no longer answers: from a watcher
    that is linked here, or from CARRIERS linked peers that are linked with the watcher, because
    they pass its report on (`to_tell`).

    `answering` are the peers whose links answer, and `said` the peers that each of them reports a
    link to. Both change meanwhile: call `changed` and `reported` then.
    """

    def __init__(
        self,
        own: PeerId,
        *,
        answering: Mapping[PeerId, str],
        said: Mapping[PeerId, Set[PeerId]],
    ) -> None:
        self._own = own
        self._answering = answering
        self._said = said
        self.places: dict[PeerId, int] = {}  # see `_distance`
        # by peer: its watchers, among the peers in its reports
        self._near: dict[PeerId, set[PeerId]] = {}
        self._shown: Set[PeerId] = frozenset()  # peers in this node's last report on its links
        self._peers: set[PeerId] | None = None  # None: not known yet
        self._rested: set[PeerId] = set()  # its last known value

    def changed(self) -> None:
        """Record that a link has begun or ceased to answer."""
        self._peers = None

    def reported(self, by: PeerId) -> None:
        """Record that the reports of a peer have changed."""
        self._peers = None
        self._near.pop(by, None)

    def shown(self, peers: Set[PeerId]) -> None:
        """Record the peers in this node's last report on its links.

        Peers pass on only what concerns a link that they know of.
        """
        self._shown = peers
        self._peers = None

    def to_tell(self, by: PeerId, peers: Iterable[PeerId]) -> dict[PeerId, list[PeerId]]:
        """Return which linked peers must hear that `by` reports a link to these peers no longer.

        Maps each linked peer to those of `peers` that it has a link to. Leaves out peers that `by`
        does not watch, as far as this node knows, and linked peers that hear of it from `by`.
        """
        found: dict[PeerId, list[PeerId]] = {}
        for peer in peers:
            linked = [other for other, said in self._said.items() if peer in said and other != by]
            if by in self._nearest(peer, [*linked, by]):
                for other in linked:
                    if by not in self._said[other] and other in self._answering:
                        found.setdefault(other, []).append(peer)
        return found

    def peers(self) -> set[PeerId]:
        """Return the peers whose links may rest."""
        if self._peers is None:
            own = self._nearest(self._own, self._answering)
            self._peers = {
                peer
                for peer in self._answering.keys() - own
                if len(self.watchers(peer)) >= defaults.WATCHERS_HEARD
            }
            self._rested = self._peers
        return self._peers

    def rested(self, peer: PeerId) -> bool:
        """Return whether the link to a peer was among those that `peers` returned last."""
        return peer in self._rested

    def watchers(self, peer: PeerId) -> set[PeerId]:
        """Return those of a peer's watchers of whose reports this node hears at once.

        Returns none if this node itself is one of the peer's watchers.
        """
        near = self._near.get(peer)
        if near is None:
            named = {*self._said.get(peer, ()), self._own}
            near = self._near[peer] = self._nearest(peer, named)
        if self._own in near:
            return set()
        return {by for by in near if self._hears(by, peer)}

    def _hears(self, by: PeerId, peer: PeerId) -> bool:
        """Return whether this node hears at once if a watcher, `by`, loses its link to a peer."""
        if by in self._answering:
            return peer in self._said.get(by, ())
        if peer not in self._shown:
            return False
        carriers = (by in self._said.get(other, ()) for other in self._answering if other != peer)
        return sum(carriers) >= defaults.CARRIERS

    def _nearest(self, peer: PeerId, peers: Iterable[PeerId]) -> set[PeerId]:
        return set(nsmallest(defaults.WATCHERS, peers, key=partial(self._distance, peer)))

    def _distance(self, one: PeerId, other: PeerId) -> int:
        """Return the XOR distance between two peers.

        The distance is symmetric, so the two ends of a link agree on whether one watches the other.
        """
        return self._place_of(one) ^ self._place_of(other)

    def _place_of(self, peer: PeerId) -> int:
        found = self.places.get(peer)
        if found is None:
            if len(self.places) >= defaults.PLACES:  # reports may name peers without end
                self.places.clear()
            found = self.places[peer] = int.from_bytes(sha256(str(peer).encode()).digest())
        return found
