"""Peers that rely on this node to hear of the end of members to which they have no witness. No I/O.

A peer that has asked this node for a proof of a member, and got it, follows the member through this
node. This node tells it when the source of that proof fails: the witness that brought it withdraws
its report or is lost, or this node's own link with the member is. Spec: docs/spec/liveness.md.
"""

from collections.abc import Collection

from ...transport.identity import PeerId
from .. import defaults


class Followers:
    """The members that peers follow through this node."""

    def __init__(self) -> None:
        # by peer and member: source of the last proof, and until when the member is followed
        self._followed: dict[PeerId, dict[PeerId, tuple[PeerId, float]]] = {}

    def add(self, peer: PeerId, member: PeerId, source: PeerId, now: float) -> None:
        """Record that a peer got a proof of a member that `source` has brought.

        `source` is a witness, or the member itself if it is linked with this node.
        """
        followed = self._followed.setdefault(peer, {})
        followed.pop(member, None)
        followed[member] = source, now + defaults.FOLLOWED_S
        if len(followed) > defaults.FOLLOWED:
            del followed[next(iter(followed))]

    def lost(
        self, source: PeerId, now: float, members: Collection[PeerId] | None = None
    ) -> dict[PeerId, list[PeerId]]:
        """Remove and return the members that are followed by proofs of a source, by following peer.

        `members` are those that the source no longer reports. If None, the source itself is lost.
        """
        found: dict[PeerId, list[PeerId]] = {}
        for peer, followed in self._followed.items():
            for member, (by, until) in list(followed.items()):
                if by == source and (members is None or member in members):
                    del followed[member]
                    if now < until:
                        found.setdefault(peer, []).append(member)
        return found

    def forget(self, peer: PeerId) -> None:
        """Remove a peer whose link has ended."""
        self._followed.pop(peer, None)
