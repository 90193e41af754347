"""One path of a link with the link's own state for it, and the choice among several paths."""

from collections.abc import Sequence
from math import inf

import trio

from .. import defaults
from ..bytestream import PathKind
from ..handshake.secured import SecureStream
from ..host.seam import Host
from ..lane.connection import Connection
from ..lane.meter import Meter
from .writer import Writer


class LinkPath:
    """A path of a link. `due` is when its connection wants the next tick, `since` when the
    path came, `wanted` when the peer chose to send by it, all on the host's clock. `meter` is
    its account with the node's bandwidth caps."""

    __slots__ = ("connection", "due", "meter", "path_kind", "secured", "since", "wanted", "writer")

    def __init__(
        self,
        secured: SecureStream,
        path_kind: PathKind,
        connection: Connection,
        writer: Writer,
        now: float,
        meter: Meter | None = None,
    ) -> None:
        self.secured = secured
        self.path_kind = path_kind
        self.connection = connection
        self.writer = writer
        self.meter = meter
        self.since = self.due = self.wanted = now

    async def keep_to_caps(self, host: Host, meter: Meter) -> None:
        """Charge the bytes that were read, and wait until more may be read."""
        now, secured = host.now(), self.secured
        flows = meter.read(self.connection, secured.bytes_in, now)
        secured.read_most = defaults.READ_BYTES
        while flows:
            secured.read_most, at = meter.room(flows, defaults.READ_BYTES, now)
            if secured.read_most:
                break
            meter.paused = True
            await trio.sleep_until(at)
            self.connection.heard = now = host.now()
        meter.paused = False


def best(paths: Sequence[LinkPath], now: float, used: LinkPath | None = None) -> LinkPath | None:
    """Return the path to send by: one whose peer replies, of the best kind.

    TCP comes before UDP, which costs ten times the CPU, but not on a long path (longpaths.py).
    Among equals the newest wins, because a peer that dials again has lost its old paths. On the
    side that follows the peer's choice, the one that the peer chose last wins. If the path in
    `used` gets no replies, its successor must have been heard later.
    """
    if len(paths) < 2:
        return paths[0] if paths else None
    likely = "udp" if is_long(paths) else "tcp"
    heard = -inf
    if used is not None and used.connection.is_doubtful(now):
        heard = used.connection.heard

    def is_doubtful(path: LinkPath) -> bool:
        connection = path.connection
        if path is used:
            return connection.is_doubtful(now)
        return connection.is_unanswered(now) or connection.heard <= heard

    return min(
        paths,
        key=lambda path: (
            is_doubtful(path),
            path.path_kind.rank,
            path.secured.medium != likely,
            -path.wanted,
        ),
    )


def is_long(paths: Sequence[LinkPath]) -> bool:
    """Whether the shortest round trip measured on any path is a long one."""
    least = inf
    for path in paths:
        trip = path.connection.least_rtt
        if trip is not None and trip < least:
            least = trip
    return defaults.LONG_S <= least < inf


def worst(paths: Sequence[LinkPath], keep: LinkPath | None) -> LinkPath:
    """Return the path to drop if there are too many: the oldest of the worst kind, not `keep`."""
    return max(
        (path for path in paths if path is not keep),
        key=lambda path: (path.path_kind.rank, -path.since),
    )


def redundant(paths: Sequence[LinkPath], used: LinkPath | None, now: float) -> list[LinkPath]:
    """Return the paths that are not worth keeping.

    These are paths of the same kind as the one in use, after a while, because one failure breaks
    both. And they are relayed paths beside a direct one that has lasted, because a relay's
    reservations are for peers that have nothing else.
    """
    if used is None:
        return []
    return [
        path
        for path in paths
        if path is not used
        and (
            (_kind(path) == _kind(used) and now > path.since + defaults.REDUNDANT_S)
            or (
                path.path_kind is PathKind.RELAYED is not used.path_kind
                and now > used.since + defaults.SPARE_S
            )
        )
    ]


def _kind(path: LinkPath) -> tuple[PathKind, str, bool]:
    """Return what two redundant paths share. IPv4 and IPv6 differ: a failure of one leaves the
    other, and a relay that sees both can vouch for both."""
    return path.path_kind, path.secured.medium, ":" in path.secured.address[0]
