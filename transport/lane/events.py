"""Events that a lane's core reports to its shell, and small values that both use."""

from dataclasses import dataclass, field

from ..defaults import REORDERED_IDS
from .frame import Bytes, Fault, Priority
from .outbox import OutCall
from .stream import LaneStream


@dataclass(slots=True)
class Called:
    """The peer made a call. A `post` needs no reply."""

    ident: int
    method: str
    header: dict[str, object]
    payload: Bytes
    priority: Priority
    post: bool


@dataclass(slots=True)
class Answered:
    """A call of this node has its reply, or its refusal if `code` is set."""

    call: OutCall
    header: dict[str, object] = field(default_factory=dict)
    payload: Bytes = b""
    priority: Priority = Priority.CONTROL
    code: str | None = None
    message: str = ""


@dataclass(slots=True)
class Cancelled:
    """The peer no longer wants the reply to its call."""

    ident: int


@dataclass(slots=True)
class Opened:
    """The peer opened a stream."""

    stream: LaneStream
    method: str
    header: dict[str, object]


@dataclass(slots=True)
class StreamReady:
    """A stream's reader or writer can make progress."""

    stream: LaneStream


@dataclass(slots=True)
class Ended:
    """The link has ended. The peer said so, or made a protocol error (`ours`)."""

    code: str
    message: str
    ours: bool


Event = Called | Answered | Cancelled | Opened | StreamReady | Ended


@dataclass(frozen=True, slots=True)
class Windows:
    """Limits that a side's hello grants: bytes per stream, bytes per link, and open streams."""

    stream_bytes: int
    link_bytes: int
    streams: int


class SeenIds:
    """Set of the peer's ascending ids that have come: all below `floor`, and a few above."""

    __slots__ = ("above", "floor")

    def __init__(self) -> None:
        self.floor = 1
        self.above: set[int] | None = (
            None  # created when needed, because each link has two of these
        )

    def __contains__(self, ident: int) -> bool:
        return ident < self.floor or (self.above is not None and ident in self.above)

    @property
    def count(self) -> int:
        """Return the number of ids that have come, plus one."""
        return self.floor + len(self.above or ())

    def add(self, ident: int) -> bool:
        """Add an id. Return False if it had come before. Raises Fault (`bad-id`)."""
        if ident == self.floor:
            self.floor += 1
            while self.above and self.floor in self.above:
                self.above.remove(self.floor)
                self.floor += 1
            return True
        if ident in self:
            return False
        if ident > self.floor + REORDERED_IDS:
            raise Fault("bad-id")
        if self.above is None:
            self.above = set()
        self.above.add(ident)
        return True
