"""One path of a link with the link's own state for it, and the choice among several paths."""

from collections.abc import Sequence
from math import inf

import trio

from . import defaults
from .connection import Connection
from .host import Host
from .meter import Meter
from .path import Path
from .pipe import Way
from .writer import Writer


class Leg:
    """A path of a link. `due` is when its connection wants the next tick, `since` when the
    path came, `wanted` when the peer chose to send by it, all on the host's clock. `meter` is
    its account with the node's bandwidth caps."""

    __slots__ = ("connection", "due", "meter", "path", "since", "wanted", "way", "writer")

    def __init__(
        self,
        path: Path,
        way: Way,
        connection: Connection,
        writer: Writer,
        now: float,
        meter: Meter | None = None,
    ) -> None:
        self.path = path
        self.way = way
        self.connection = connection
        self.writer = writer
        self.meter = meter
        self.since = self.due = self.wanted = now

    async def keep_to_caps(self, host: Host, meter: Meter) -> None:
        """Charge the bytes that were read, and wait until more may be read."""
        now, path = host.now(), self.path
        flows = meter.read(self.connection, path.bytes_in, now)
        path.read_most = defaults.READ_BYTES
        while flows:
            path.read_most, at = meter.room(flows, defaults.READ_BYTES, now)
            if path.read_most:
                break
            meter.paused = True
            await trio.sleep_until(at)
            self.connection.heard = now = host.now()
        meter.paused = False


def best(legs: Sequence[Leg], now: float, used: Leg | None = None) -> Leg | None:
    """Return the path to send by: one whose peer replies, of the best kind.

    TCP comes before UDP, which costs ten times the CPU, but not on a long path (longpaths.py).
    Among equals the newest wins, because a peer that dials again has lost its old paths. On the
    side that follows the peer's choice, the one that the peer chose last wins. If the path in
    `used` gets no replies, its successor must have been heard later.
    """
    if len(legs) < 2:
        return legs[0] if legs else None
    likely = "udp" if is_long(legs) else "tcp"
    heard = -inf
    if used is not None and used.connection.is_doubtful(now):
        heard = used.connection.heard

    def is_doubtful(leg: Leg) -> bool:
        connection = leg.connection
        if leg is used:
            return connection.is_doubtful(now)
        return connection.is_unanswered(now) or connection.heard <= heard

    return min(
        legs,
        key=lambda leg: (
            is_doubtful(leg),
            leg.way.rank,
            leg.path.medium != likely,
            -leg.wanted,
        ),
    )


def is_long(legs: Sequence[Leg]) -> bool:
    """Whether the shortest round trip measured on any path is a long one."""
    least = inf
    for leg in legs:
        trip = leg.connection.least_rtt
        if trip is not None and trip < least:
            least = trip
    return defaults.LONG_S <= least < inf


def worst(legs: Sequence[Leg], keep: Leg | None) -> Leg:
    """Return the path to drop if there are too many: the oldest of the worst kind, not `keep`."""
    return max((leg for leg in legs if leg is not keep), key=lambda leg: (leg.way.rank, -leg.since))


def redundant(legs: Sequence[Leg], used: Leg | None, now: float) -> list[Leg]:
    """Return the paths that are not worth keeping.

    These are paths of the same kind as the one in use, after a while, because one failure breaks
    both. And they are relayed paths beside a direct one that has lasted, because a relay's
    reservations are for peers that have nothing else.
    """
    if used is None:
        return []
    return [
        leg
        for leg in legs
        if leg is not used
        and (
            (_kind(leg) == _kind(used) and now > leg.since + defaults.REDUNDANT_S)
            or (leg.way is Way.RELAYED is not used.way and now > used.since + defaults.SPARE_S)
        )
    ]


def _kind(leg: Leg) -> tuple[Way, str, bool]:
    """Return what two redundant paths share. IPv4 and IPv6 differ: a failure of one leaves the
    other, and a relay that sees both can vouch for both."""
    return leg.way, leg.path.medium, ":" in leg.path.address[0]
