"""Status of a link and of its paths, for display."""

from dataclasses import dataclass

from ..bytestream import PathKind
from ..handshake.hello import Admitted
from ..host.datagrams import Place


@dataclass(frozen=True, slots=True)
class PathStatus:
    """Status of one path of a link.

    `medium` is `tcp`, `udp`, `circuit` or `webrtc`. `address` is the remote address. `rtt` is the
    round trip in seconds, None before the first measurement. `used` says whether this side sends on
    the path, and `dialled` whether this side dialled it. The peer may add paths to a link that this
    node dialled.
    """

    path_kind: PathKind
    medium: str
    address: Place
    rtt: float | None
    used: bool
    dialled: bool


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """Status of a link.

    `rtt` is the round trip in seconds, None before the first measurement. `rate` is the number of
    bytes per second that the path in use can carry, and `loss` the share of bytes that it loses;
    both are 0 if unknown, as on TCP. `since` is the time at
    which the link came up, in seconds on the host's monotonic clock. `path` is the path kind of the
    path in use, or `none`.
    """

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
    rate: float = 0.0
    loss: float = 0.0
