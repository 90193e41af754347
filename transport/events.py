"""What a lane's core tells its shell, and the small values both use."""

from dataclasses import dataclass, field
from typing import Any

from .defaults import REORDERED_IDS
from .frame import Bytes, Fault, Priority
from .lanestream import LaneStream
from .outbox import OutCall


@dataclass(slots=True)
class Called:
    """The peer calls. `post` ones want no answer."""

    ident: int
    method: str
    header: dict[str, Any]
    payload: Bytes
    priority: Priority
    post: bool


@dataclass(slots=True)
class Answered:
    """A call of ours has its reply, or its refusal where `code` is set."""

    call: OutCall
    header: dict[str, Any] = field(default_factory=dict)
    payload: Bytes = b""
    priority: Priority = Priority.CONTROL
    code: str | None = None
    message: str = ""


@dataclass(slots=True)
class Cancelled:
    """The peer no longer wants the answer to its call."""

    ident: int


@dataclass(slots=True)
class Opened:
    """The peer opened a stream."""

    stream: LaneStream
    method: str
    header: dict[str, Any]


@dataclass(slots=True)
class StreamReady:
    """Something changed for a stream's reader or writer."""

    stream: LaneStream


@dataclass(slots=True)
class Ended:
    """The link is over: by the peer's word, or by the peer's mistake (`ours`)."""

    code: str
    message: str
    ours: bool


Event = Called | Answered | Cancelled | Opened | StreamReady | Ended


@dataclass(frozen=True, slots=True)
class Windows:
    """What a side's hello grants the other: bytes per stream and per link, streams at once."""

    stream_bytes: int
    link_bytes: int
    streams: int


class SeenIds:
    """Which of the peer's ascending ids have come: all below `floor`, and a few above."""

    __slots__ = ("above", "floor")

    def __init__(self) -> None:
        self.floor = 1
        self.above: set[int] | None = None  # created when needed, as each link has two of these

    def __contains__(self, ident: int) -> bool:
        return ident < self.floor or (self.above is not None and ident in self.above)

    @property
    def count(self) -> int:
        """How many have come, and one."""
        return self.floor + len(self.above or ())

    def add(self, ident: int) -> bool:
        """Note an id; False where it had come before. Raises Fault."""
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
