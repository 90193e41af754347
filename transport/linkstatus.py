"""Values that describe a link: its status for people, and the identities at its ends."""

from dataclasses import dataclass

from .datagrams import Place
from .hello import Admitted
from .identity import PeerId
from .pipe import Way


@dataclass(frozen=True, slots=True)
class LegStatus:
    """A path of a link: its kind, its medium (`tcp`, `udp`, `circuit` or `webrtc`), its far
    end, its round trip in seconds (None before the first pong), whether it carries the link, and
    whether this node dialled it (the peer may add paths to a link that this node dialled)."""

    way: Way
    medium: str
    address: Place
    rtt: float | None
    used: bool
    dialled: bool


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """Status of a link. `rtt` is in seconds, None before the first pong. `since` is on the host's
    monotonic clock. `path` is a `Way`, or `none`."""

    rtt: float | None
    bytes_in: int
    bytes_out: int
    address: tuple[str, int]
    since: float
    path: str
    legs: tuple[LegStatus, ...]
    dialled: bool
    incarnation: bytes
    peer_incarnation: bytes
    admitted: Admitted
    posts_refused: int


@dataclass(frozen=True, slots=True)
class Identities:
    """The identities at both ends of a link: the peer, both incarnations, and how it was made."""

    peer: PeerId
    incarnation: bytes
    peer_incarnation: bytes
    dialled: bool
    admitted: Admitted
    port: int = 0  # the port on which the peer listens, or at which it was dialled
    udp_port: int = 0  # the peer's UDP port; 0 if it has none
