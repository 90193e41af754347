"""Values that describe a link: its status for people, and the identities at its ends."""

from dataclasses import dataclass

from ..bytestream import PathKind
from ..handshake.hello import Admitted
from ..host.datagrams import Place
from ..identity import PeerId


@dataclass(frozen=True, slots=True)
class PathStatus:
    """A path of a link: its kind, its medium (`tcp`, `udp`, `circuit` or `webrtc`), its far
    end, its round trip in seconds (None before the first pong), whether it carries the link, and
    whether this node dialled it (the peer may add paths to a link that this node dialled)."""

    path_kind: PathKind
    medium: str
    address: Place
    rtt: float | None
    used: bool
    dialled: bool


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """Status of a link. `rtt` is in seconds, None before the first pong. `since` is on the host's
    monotonic clock. `path` is a `PathKind`, or `none`."""

    rtt: float | None
    bytes_in: int
    bytes_out: int
    address: tuple[str, int]
    since: float
    path: str
    paths: tuple[PathStatus, ...]
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
