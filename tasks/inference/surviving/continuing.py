"""A session over a changed chain at its gateway, until all stages have their state. No I/O."""

from dataclasses import dataclass, field

from ....transport.identity import PeerId
from ...defaults import MAX_SPAN_TOKENS
from .rebuilding import Rebuilding


@dataclass(slots=True)
class Continuation:
    """The stages that must be rebuilt before the chain continues at position `resume`.

    The stages in `kept` were in the chain before. The others are new.
    """

    resume: int
    kept: frozenset[PeerId] = frozenset()
    lacking: set[int] = field(default_factory=set)  # places of the stages whose state is rebuilt
    _built: dict[int, int] = field(default_factory=dict)
    _given: Rebuilding = field(init=False)

    def __post_init__(self) -> None:
        self._given = Rebuilding(self.resume, self.resume)

    @property
    def withholding(self) -> int | None:
        """The place of the stage whose answers the first lacking stage waits for, or None. The
        gateway itself answers the first stage."""
        return max(min(self.lacking) - 1, 0) if self.lacking else None

    def note(self, place: int, have: int) -> None:
        """Note that the stage at `place` has the state of `have` positions."""
        if have < self.resume:
            self.lacking.add(place)

    def want(self, start: int, stop: int) -> None:
        """Note that the first stage needs tokens. Raises SessionError for a range that does not
        follow the previous one."""
        self._given.want(start, stop, MAX_SPAN_TOKENS)

    def built(self, place: int, position: int) -> bool:
        """Note that a stage has rebuilt its state up to a position. Return whether that is news."""
        if not self._built.get(place, 0) < position <= self.resume:
            return False
        self._built[place] = position
        if position == self.resume:
            self.lacking.discard(place)
        return True
