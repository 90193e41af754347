"""Values that describe a link: its status for people, and the identities at its ends."""

from dataclasses import dataclass

from ..bytestream import PathKind
from ..handshake.hello import Admitted
from ..host.datagrams import Place


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

    @property
    def seen(self) -> dict[str, tuple[int, int]]:
        """The IP addresses at which this node sees the other end of a link.

        The latest comes last; each has its TCP and UDP port. Relayed paths have none.
        """
        found: dict[str, tuple[int, int]] = {}
        for path in self.paths:
            ip, port = path.address
            if path.path_kind is PathKind.RELAYED or not ip:
                continue
            tcp, udp = found.get(ip, (0, 0))
            found[ip] = (port, udp) if path.medium == "tcp" else (tcp, port)
        return found
