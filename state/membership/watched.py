"""Liveness state of one member, as known from witnesses and proofs."""

from dataclasses import dataclass, field
from math import inf

from ...transport.identity import PeerId
from .. import defaults


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
