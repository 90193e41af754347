"""What a link says of itself."""

from dataclasses import dataclass

from .datagrams import Place
from .hello import Admitted
from .identity import PeerId
from .pipe import Way


@dataclass(frozen=True, slots=True)
class LegStatus:
    """One of a link's paths: how it got there, over `tcp`, `udp`, `circuit` or `webrtc`, to where,
    its round trip in seconds (None before the first pong), whether it carries the link, and
    whether this node dialled it (the peer may add paths to a link that this node dialled)."""

    way: Way
    medium: str
    address: Place
    rtt: float | None
    used: bool
    dialled: bool


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """What is known of a link. `rtt` in seconds, None before the first pong; `since` on the
    host's monotonic clock; `path` is a `Way`, or `none`."""

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
    """Who a link is between: the peer, both incarnations, and how it came to be."""

    peer: PeerId
    incarnation: bytes
    peer_incarnation: bytes
    dialled: bool
    admitted: Admitted
    port: int = 0  # where the peer says it listens, or where it was dialled
    udp_port: int = 0  # the same for UDP, 0: nowhere
