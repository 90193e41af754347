"""Liveness state of one member, as known from witnesses and proofs."""

from dataclasses import dataclass, field
from enum import IntEnum
from math import inf
from typing import Final

from ...transport.identity import PeerId
from .. import defaults


class Urgency(IntEnum):
    """Order of the checks that are due together: a member without a link is doubted; live with no
    witness; not live but reported by one; live and reported; or neither."""

    DOUBTED = 0
    ALONE = 1
    TOLD_OF = 2
    SEEN = 3
    UNSEEN = 4


# Of members that are not in doubt, whose checks can wait.
CALM: Final = (Urgency.TOLD_OF, Urgency.SEEN, Urgency.UNSEEN)


@dataclass(slots=True)
class Watched:
    """The liveness of a known member by witnesses and proofs.

    Times are by the node's clock, in seconds.

    A witness is a linked peer that reports a live link to the member. See `liveness.py`.
    """

    rank: bytes  # order of checks among members that are due together
    since: float = -inf  # when the member became known
    witnesses: dict[PeerId, None] = field(default_factory=dict)
    networks: dict[str, int] = field(default_factory=dict)  # live witnesses by network
    live: bool = False
    proved: float = -inf  # when the member was last proved live
    doubted: float = inf  # since when there has been a reason to check the member
    tried: float = -inf  # time of the last failed check
    pause: float = defaults.CHECK_PAUSE[0]  # seconds to wait after a failed check
    turn: int = 0  # number of checks begun
    first: float = inf  # time of the first proof since the member was last dead
    checking: bool = False
    asked: bool = False  # the member is in a pending question about many members
    through: PeerId | None = None  # linked peer that brought the last proof, and reports its end
    crowd: float = 1.0  # see `Liveness.crowd`; as it was at the last proof
    counted: tuple[bool, bool] = (False, False)  # whether it is live and alone, see `Agenda`

    def count(self, place: str) -> None:
        """Increase the number of witnesses in this network by one."""
        self.networks[place] = self.networks.get(place, 0) + 1

    def uncount(self, place: str) -> None:
        """Decrease the number of witnesses in this network by one."""
        if self.networks[place] == 1:
            del self.networks[place]
        else:
            self.networks[place] -= 1

    @property
    def shared(self) -> bool:
        """Whether a question to a witness about many members is enough to check this member.

        The value is True if the member has a witness and nothing suggests that the member is dead.
        """
        if self.doubted < inf or not self.networks:
            return False
        return self.live or (self.first == inf and self.pause == defaults.CHECK_PAUSE[0])

    @property
    def urgency(self) -> Urgency:
        """How urgent a check of the member is, if it has no link."""
        if self.doubted < inf:
            return Urgency.DOUBTED
        if self.live:
            return Urgency.SEEN if self.networks else Urgency.ALONE
        return Urgency.TOLD_OF if self.networks else Urgency.UNSEEN

    @property
    def due(self) -> float:
        """When the member must be checked next, if it has no link and is not in doubt."""
        if self.live:
            return self.proved + self._again
        if self.tried == -inf and not self.networks:  # a witness may still come
            return self.since + defaults.UNSEEN_S
        return self.tried + self.pause

    @property
    def early(self) -> float:
        """How many seconds before it is due a check may be made together with those of others.

        One question to the peer that brought the last proofs then asks about many members.
        """
        early = self.through is not None and self.urgency is Urgency.ALONE
        return max(defaults.TOGETHER_S, self._again / 4) if early else 0.0

    @property
    def ends(self) -> float:
        """When a live member without a link or a witness counts as dead, checked or not.

        Infinity for other members.
        """
        if not self.live or self.networks:
            return inf
        if self.doubted < inf:
            return self.doubted + defaults.CHECK_S
        return self.proved + self._again + defaults.FRESH_S - defaults.PROVE_AGAIN_S[0]

    @property
    def _again(self) -> float:
        """The time in seconds from a proof to the next check.

        If any peer reports the member's end, this time grows with the swarm.
        """
        alone, one, more = defaults.PROVE_AGAIN_S
        if not self.networks and self.through is None:
            return alone
        least = one if self.networks else defaults.FOLLOW_AGAIN_S
        return more if len(self.networks) > 1 else min(least * self.crowd, more)
