"""Events that the lane's protocol code reports to the code that does the I/O, and small values that
both use."""

from dataclasses import dataclass, field

from ..defaults import REORDERED_IDS
from .frame import Bytes, Fault, Priority
from .outbox import OutCall
from .stream import LaneStream


@dataclass(slots=True)
class Called:
    """The peer has made a call or, if `post` is True, sent a post, which needs no reply. `ident` is
    the call's id."""

    ident: int
    method: str
    header: dict[str, object]
    payload: Bytes
    priority: Priority
    post: bool


@dataclass(slots=True)
class Answered:
    """A call of this node was answered by a reply or, if `code` is set, by a refusal."""

    call: OutCall
    header: dict[str, object] = field(default_factory=dict)
    payload: Bytes = b""
    priority: Priority = Priority.CONTROL
    code: str | None = None
    message: str = ""


@dataclass(slots=True)
class Cancelled:
    """The peer no longer wants the reply to its call with the id `ident`."""

    ident: int


@dataclass(slots=True)
class Opened:
    """The peer has opened a stream."""

    stream: LaneStream
    method: str
    header: dict[str, object]


@dataclass(slots=True)
class StreamReady:
    """The reader or the writer of a stream can make progress."""

    stream: LaneStream


@dataclass(slots=True)
class Ended:
    """The link has ended. `ours` is True if this side has ended it, for example because of a
    protocol error of the peer."""

    code: str
    message: str
    ours: bool


Event = Called | Answered | Cancelled | Opened | StreamReady | Ended


@dataclass(frozen=True, slots=True)
class GrantedLimits:
    """Limits that the hello of one side grants to the other: bytes per stream, bytes per link, and
    open streams."""

    stream_bytes: int
    link_bytes: int
    streams: int


class SeenIds:
    """Set of the peer's ids that have arrived. The ids ascend, so the set holds all ids below
    `floor`, and a few above it."""

    __slots__ = ("above", "floor")

    def __init__(self) -> None:
        self.floor = 1
        self.above: set[int] | None = (
            None  # created when needed, to save memory: each link has two `SeenIds`
        )

    def __contains__(self, ident: int) -> bool:
        return ident < self.floor or (self.above is not None and ident in self.above)

    @property
    def count(self) -> int:
        """Number of ids that have arrived, plus one."""
        return self.floor + len(self.above or ())

    def add(self, ident: int) -> bool:
        """Add an id. Return False if it was in the set already. Raises Fault with code `bad-id` if
        it is too far above `floor`."""
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
