"""One path of a link with the link's state for it, and the choice among several paths."""

from collections.abc import Callable, Sequence
from math import inf

import trio

from .. import defaults
from ..bytestream import PathKind
from ..handshake.secured import PathLost, SecureStream
from ..host.seam import Host
from ..lane.connection import LaneConnection
from ..lane.frame import Bytes
from ..lane.meter import PathMeter
from .writer import LaneWriter


class LinkPath:
    """One path of a link.

    `due` is the time at which its connection needs the next tick, `since` the time at which the
    path was added, and `wanted` the time at which the peer chose to send on it. Times are seconds
    on the host's clock. `meter` counts its bytes for the node's bandwidth caps; None if there are
    none.
    """

    __slots__ = ("connection", "due", "meter", "path_kind", "secured", "since", "wanted", "writer")

    def __init__(
        self,
        secured: SecureStream,
        path_kind: PathKind,
        connection: LaneConnection,
        writer: LaneWriter,
        now: float,
        meter: PathMeter | None = None,
    ) -> None:
        self.secured = secured
        self.path_kind = path_kind
        self.connection = connection
        self.writer = writer
        self.meter = meter
        self.since = self.due = self.wanted = now

    async def read(
        self, host: Host, early: Bytes, take_in: Callable[["LinkPath", Bytes, float], bool]
    ) -> None:
        """Pass what arrives on this path to `take_in`, with the time, until the path is lost.

        Also ends when `take_in` returns False. `early` is what arrived before.
        """
        data, secured = early, self.secured
        try:
            while True:
                if data:
                    began = host.now()
                    belongs = take_in(self, data, began)
                    if secured.reads_much and host.now() - began > defaults.TURN_S:
                        secured.read_less()
                    if not belongs:
                        return
                if self.meter is not None:
                    await self._keep_to_caps(host, self.meter)
                data = await secured.receive()
                if not data:
                    return
        except PathLost:
            return

    async def _keep_to_caps(self, host: Host, meter: PathMeter) -> None:
        """Count the bytes that were read from this path, and wait until the bandwidth caps allow
        more."""
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
    """Return the path to send on, or None if there is no path.

    This is a path of the best kind among those whose peer replies. Of the same kind, TCP precedes
    UDP, which costs ten times the CPU, except on a long path (dial/longpaths.py). Among paths that
    are still equal, the newest is returned, because a peer that dials again has lost its old paths.
    The listening side counts a path as newest if the peer has switched to it last.

    `used` is the path in use. If it gets no replies, another path replaces it only if bytes have
    arrived there more recently.
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
    """Return whether the shortest round trip measured on any path counts as long."""
    least = inf
    for path in paths:
        trip = path.connection.least_rtt
        if trip is not None and trip < least:
            least = trip
    return defaults.LONG_S <= least < inf


def worst(paths: Sequence[LinkPath], keep: LinkPath | None) -> LinkPath:
    """Return the path to drop if there are too many: the oldest path of the worst kind except
    `keep`."""
    return max(
        (path for path in paths if path is not keep),
        key=lambda path: (path.path_kind.rank, -path.since),
    )


def redundant(paths: Sequence[LinkPath], used: LinkPath | None, now: float) -> list[LinkPath]:
    """Return the paths that can be dropped because the path in use makes them redundant.

    A path of the same kind as the one in use is redundant after some time, because one failure
    breaks both. A relayed path is redundant once a direct one has lasted for some time, because a
    relay's reservations are for peers that have no other path.
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
    """Return (path kind, medium, whether it is IPv6), which two redundant paths have in common.

    IPv4 and IPv6 paths are not redundant: either may fail alone, and a relay that sees the peer on
    both can vouch for both addresses.
    """
    return path.path_kind, path.secured.medium, ":" in path.secured.address[0]
