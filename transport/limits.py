"""Limits on the resources that one peer, or all peers together, can use."""

from dataclasses import dataclass
from math import floor
from typing import NamedTuple

from . import defaults
from .networks import THIS_MACHINE, ContainingNetwork, networks
from .rates import Rate, SourceRates, bound_of


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on everything that a peer can make this node store or wait for. The default values are
    in `defaults.py`."""

    message_bytes: int = defaults.MESSAGE_BYTES
    """Largest payload of a call, post or reply, in bytes."""
    stream_window_bytes: int = defaults.STREAM_WINDOW_BYTES
    """Unread bytes that a peer may send on one stream, at first."""
    largest_stream_window_bytes: int = defaults.LARGEST_STREAM_WINDOW_BYTES
    """Unread bytes that a peer may send on a stream whose reader keeps up with the peer."""
    link_window_bytes: int = defaults.LINK_WINDOW_BYTES
    """Unread bytes that a peer may send on all streams of a link together."""
    streams: int = defaults.STREAMS
    """Streams that a peer may have open on a link, a count."""
    calls: int = defaults.CALLS
    """Handler tasks that run for one link at once, a count. Further calls are refused with code
    `busy`."""
    backlog_bytes: int = defaults.BACKLOG_BYTES
    """Unsent and unacknowledged bytes of a link above which this node's new calls wait and the
    peer's calls are refused. At twice this number the link ends with code `backlog`."""
    total_bytes: int = defaults.TOTAL_BYTES
    """Bytes in memory for all links together. Above it, the link that uses the most is ended."""
    links: int = defaults.LINKS
    """Concurrent links, a count."""
    half_open: int = defaults.HALF_OPEN
    """Half-open connections, a count: accepted, but without an acceptable hello so far."""
    half_open_per_subnet: int = defaults.HALF_OPEN_PER_SUBNET
    """Half-open connections from one /24 (IPv4) or /64 (IPv6), a count. The bound of a larger
    network is a multiple of it (`Sources`)."""
    half_open_loopback: int = defaults.HALF_OPEN_LOOPBACK
    """Half-open connections from this machine, a count. All nodes of a local swarm may start at
    once."""
    arrivals_burst: float = defaults.ARRIVALS_BURST
    """Connections accepted from one subnet in a burst, a count. The bounds on half-open connections
    do not suffice: a handshake costs two milliseconds, even if the peer ends it at once and is not
    half open for long."""
    arrivals_per_s: float = defaults.ARRIVALS_PER_S
    """Connections accepted from one subnet per second, in the long run."""
    all_arrivals_burst: float = defaults.ALL_ARRIVALS_BURST
    """Connections accepted from all sources in a burst, a count. It is high because all peers of a
    relay may reconnect at once, some of them over two paths."""
    all_arrivals_per_s: float = defaults.ALL_ARRIVALS_PER_S
    """Connections accepted from all sources per second, in the long run. A flood of connections
    then uses a twentieth of a core, and the rest remains for the links."""
    handshake_s: float = defaults.HANDSHAKE_S
    """Longest time, in seconds, from accepting a connection to an acceptable hello."""
    idle_s: float = defaults.IDLE_S
    """Seconds without a byte from the peer after which a ping is sent."""
    silent_s: float = defaults.SILENT_S
    """Seconds without a byte from the peer after which its connection counts as lost."""
    quiet_s: float = defaults.QUIET_S
    """Seconds without a byte from the peer after which a link that has no connection sends nothing
    new."""
    grace_s: float = defaults.GRACE_S
    """Seconds without a byte from the peer after which a link that has no connection ends."""
    hold_s: float = defaults.HOLD_S
    """Seconds without a byte from the peer after which a link that has no connection, but has open
    calls, replies or streams, ends."""


class Sources:
    """Counter of items by the network that they come from, with a bound for each network size.

    An address counts against every network that contains it (`networks.networks`).
    """

    def __init__(self, each: int, most: int) -> None:
        """`each` bounds the count of each smallest network, and `most` is the bound for all sources
        together.

        The bound of a larger network is a multiple of `each`, but at most half of `most`. `most`
        itself is enforced by the caller.
        """
        self._each = each
        self._most = most
        self._bounds: dict[int, float] = {}
        self._counts: dict[ContainingNetwork, int] = {}

    def fits(self, ip: str, *, without: str = "") -> bool:
        """Return whether one more item from `ip` would be within the bounds of all its networks.

        If `without` is given, the result is for the counts after one item from that address is
        removed.
        """
        gone = networks(without) if without else ()
        for each in networks(ip):
            if self._counts.get(each, 0) - (each in gone) >= self._bound(each.share):
                return False
        return True

    def add(self, ip: str) -> None:
        """Count one item from an address."""
        for each in networks(ip):
            self._counts[each] = self._counts.get(each, 0) + 1

    def remove(self, ip: str) -> None:
        """Remove one item from an address from the counts."""
        for each in networks(ip):
            if self._counts[each] > 1:
                self._counts[each] -= 1
            else:
                del self._counts[each]

    def _bound(self, share: int) -> float:
        bound = self._bounds.get(share)
        if bound is None:
            bound = self._bounds[share] = bound_of(self._each, share, self._most)
        return bound

    def __len__(self) -> int:
        """Return the number of networks that have a count above 0."""
        return len(self._counts)


class CrowdEntry(NamedTuple):
    """A connection that a `Crowd` has counted."""

    ip: str
    new: bool
    """Whether no other connection has come from the address's networks lately. Always True for a
    connection from this machine.
    """


class Crowd:
    """Limiter of concurrent connections, by source network and in total.

    A quarter of the total is reserved for networks that were not seen lately, so that sources that
    reconnect again and again cannot lock out others.
    """

    def __init__(self, most: int, each: int, loopback: int, *, apart: bool = False) -> None:
        """`most` bounds all connections, `each` those from one smallest network, and `loopback`
        those from this machine.

        If `apart` is True, connections from this machine do not count towards `most`.
        """
        self._most = most
        self._loopback = loopback
        self._apart = apart
        self._sources = Sources(each, most)
        self._lately = SourceRates(Rate(1, 1 / defaults.LATELY_S))
        self._far = self._near = 0

    @property
    def count(self) -> int:
        """Number of present connections."""
        return self._far + self._near

    def enter(self, ip: str, now: float) -> CrowdEntry | None:
        """Count a connection from an IP address and return its entry. Return None, without counting
        it, if a bound is reached."""
        near = is_own(ip)
        if not (self._near < self._loopback if near else self._sources.fits(ip)):
            return None
        new = near or self._lately.take(ip, now)
        if not (near and self._apart) and not self._has_room(new):
            return None
        if near:
            self._near += 1
        else:
            self._far += 1
            self._sources.add(ip)
        return CrowdEntry(ip, new)

    def _has_room(self, new: bool) -> bool:
        among_all = self._far if self._apart else self.count
        kept = 0 if new else floor(self._most * defaults.KEPT_SHARE)
        return among_all < self._most - kept

    def leave(self, entry: CrowdEntry) -> None:
        """Remove a connection, given by its entry, from the counts."""
        if is_own(entry.ip):
            self._near -= 1
        else:
            self._far -= 1
            self._sources.remove(entry.ip)


class HalfOpen(Crowd):
    """Limiter of accepted connections that are not authenticated yet. Connections from this machine
    have a bound of their own, so that a local swarm that starts all at once does not lock out
    others."""

    def __init__(self, limits: Limits) -> None:
        loopback = limits.half_open_loopback
        super().__init__(limits.half_open, limits.half_open_per_subnet, loopback, apart=True)


class Arrivals:
    """Rate limiter of accepted connections, by source and in total. Connections from this machine
    are not limited."""

    def __init__(self, limits: Limits) -> None:
        each = Rate(limits.arrivals_burst, limits.arrivals_per_s)
        total = Rate(limits.all_arrivals_burst, limits.all_arrivals_per_s)
        kept = min(defaults.KEPT_S * total.per_s, defaults.KEPT_SHARE * total.burst)
        self._rates = SourceRates(each, total, kept=kept)

    def allow(self, entry: CrowdEntry, now: float) -> bool:
        """Return whether one more connection may be accepted now, and count it if so."""
        return is_own(entry.ip) or self._rates.take(entry.ip, now, new=entry.new)


def is_own(ip: str) -> bool:
    """Return whether an address is a loopback address, that is, belongs to this machine."""
    return networks(ip)[0] is THIS_MACHINE
