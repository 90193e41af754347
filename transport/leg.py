"""A path that carries a link, with what the link keeps of it."""

from collections.abc import Sequence

from .connection import Connection
from .path import Path
from .pipe import Way
from .writer import Writer


class Leg:
    """One of a link's paths. `due` is when its connection wants the next tick, `since` when it
    came, both on the host's clock."""

    __slots__ = ("connection", "due", "path", "since", "way", "writer")

    def __init__(
        self, path: Path, way: Way, connection: Connection, writer: Writer, now: float
    ) -> None:
        self.path = path
        self.way = way
        self.connection = connection
        self.writer = writer
        self.since = self.due = now


def best(legs: Sequence[Leg], now: float) -> Leg | None:
    """The leg to send by: one that answers, of the best way; TCP before UDP, which costs ten
    times the CPU; of equals the newest, since a peer that dials anew has lost what it had."""
    return min(
        legs,
        key=lambda leg: (
            leg.connection.is_doubtful(now),
            leg.way.rank,
            leg.path.medium != "tcp",
            -leg.since,
        ),
        default=None,
    )


def worst(legs: Sequence[Leg], keep: Leg | None) -> Leg:
    """The one to give up where there are too many: of the worst way the oldest, but not `keep`."""
    return max((leg for leg in legs if leg is not keep), key=lambda leg: (leg.way.rank, -leg.since))
