"""A node's knowledge of a member besides its own link with it."""

from dataclasses import dataclass, field
from math import inf

from ..transport.identity import PeerId
from . import defaults


@dataclass(slots=True)
class Watched:
    """A known member, as far as the own links do not say whether it answers. Times are `now`s."""

    rank: bytes  # the order in which this node checks members due together
    since: float = -inf  # when the member became known
    witnesses: dict[PeerId, None] = field(default_factory=dict)
    networks: dict[str, int] = field(default_factory=dict)  # of those whose links answer: how many
    live: bool = False
    proved: float = -inf  # when it last was
    doubted: float = inf  # since when there is reason to check it
    tried: float = -inf  # when a check last found nothing
    pause: float = defaults.CHECK_PAUSE[0]  # after that one
    turn: int = 0  # checks begun
    first: float = inf  # when it was proved first, since it was last out
    checking: bool = False
    asked: bool = False  # for, in a question for many

    def count(self, place: str) -> None:
        """Count one more witness in a network."""
        self.networks[place] = self.networks.get(place, 0) + 1

    def uncount(self, place: str) -> None:
        """Count one fewer."""
        if self.networks[place] == 1:
            del self.networks[place]
        else:
            self.networks[place] -= 1

    @property
    def shared(self) -> bool:
        """Whether a question for many is enough: a witness is there, and nothing is wrong."""
        if self.doubted < inf or not self.networks:
            return False
        return self.live or (self.first == inf and self.pause == defaults.CHECK_PAUSE[0])
