"""Limits on the resources that one peer, and all peers together, can use."""

from dataclasses import dataclass
from math import floor
from typing import NamedTuple

from . import defaults
from .networks import THIS_MACHINE, Network, networks
from .rates import Rate, SourceRates, bound_of


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on everything that a peer can make this node keep or wait for. Defaults:
    `defaults.py`."""

    message_bytes: int = defaults.MESSAGE_BYTES
    """Largest payload of a call, post or reply, in bytes."""
    stream_window_bytes: int = defaults.STREAM_WINDOW_BYTES
    """Bytes that a peer may send on one stream ahead of its reader."""
    link_window_bytes: int = defaults.LINK_WINDOW_BYTES
    """Bytes that a peer may send on all streams of a link ahead of their readers."""
    streams: int = defaults.STREAMS
    """Streams that a peer may hold open on a link, a count."""
    calls: int = defaults.CALLS
    """Running handler tasks of one link, a count. A further call is refused as `busy`."""
    backlog_bytes: int = defaults.BACKLOG_BYTES
    """Unsent and unacknowledged bytes of a link beyond which new calls wait and a peer's calls are
    refused. At twice this number the link ends (`backlog`)."""
    total_bytes: int = defaults.TOTAL_BYTES
    """Bytes in memory for all links together. Beyond it, the link that holds most ends."""
    links: int = defaults.LINKS
    """Concurrent links, a count."""
    half_open: int = defaults.HALF_OPEN
    """Accepted connections that have not sent an acceptable hello yet, a count."""
    half_open_per_subnet: int = defaults.HALF_OPEN_PER_SUBNET
    """Half-open connections from one /24 (IPv4) or /64 (IPv6), a count. A larger network may have a
    multiple of it (`Sources`)."""
    half_open_loopback: int = defaults.HALF_OPEN_LOOPBACK
    """Half-open connections from this machine, where a local swarm starts all at once; a count."""
    arrivals_burst: float = defaults.ARRIVALS_BURST
    """Connections accepted from one subnet in a burst, a count. A handshake costs two milliseconds,
    and a peer that ends it at once is not half open for long."""
    arrivals_per_s: float = defaults.ARRIVALS_PER_S
    """Connections accepted from one subnet per second, in the long run."""
    all_arrivals_burst: float = defaults.ALL_ARRIVALS_BURST
    """Connections accepted from all sources in a burst, a count. All peers of a relay reconnect at
    once, some over two paths."""
    all_arrivals_per_s: float = defaults.ALL_ARRIVALS_PER_S
    """Connections accepted from all sources per second, in the long run. A flood then takes a
    twentieth of a core and leaves the rest to the links."""
    handshake_s: float = defaults.HANDSHAKE_S
    """Seconds from accept to an acceptable hello."""
    idle_s: float = defaults.IDLE_S
    """Seconds without a byte from the peer before a ping."""
    silent_s: float = defaults.SILENT_S
    """Seconds without a byte from the peer after which its connection counts as lost."""
    quiet_s: float = defaults.QUIET_S
    """Silence, in seconds, after which nothing new is sent on a link without a connection."""
    grace_s: float = defaults.GRACE_S
    """Silence, in seconds, after which a link without a connection ends."""
    hold_s: float = defaults.HOLD_S
    """Silence, in seconds, after which such a link ends if calls, replies or streams are open."""


class Sources:
    """Counter by source network, with a bound for each network size.

    An address counts against every network that contains it (`networks.networks`).
    """

    def __init__(self, each: int, most: int) -> None:
        """`each` bounds the smallest networks and `most` all sources together.

        A larger network gets several times `each`, but at most half of `most`.
        """
        self._each = each
        self._most = most
        self._bounds: dict[int, float] = {}
        self._counts: dict[Network, int] = {}

    def fits(self, ip: str, *, without: str = "") -> bool:
        """Return whether one more from `ip` is within all bounds.

        With `without`, one that was added for that address counts as removed.
        """
        gone = networks(without) if without else ()
        for each in networks(ip):
            if self._counts.get(each, 0) - (each in gone) >= self._bound(each.share):
                return False
        return True

    def add(self, ip: str) -> None:
        """Count one from an address."""
        for each in networks(ip):
            self._counts[each] = self._counts.get(each, 0) + 1

    def remove(self, ip: str) -> None:
        """Stop counting one that was added for an address."""
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
        """Return the number of networks with a count."""
        return len(self._counts)


class Entry(NamedTuple):
    """A connection that a `Crowd` counts."""

    ip: str
    new: bool
    """Whether no other connection came from its network lately."""


class Crowd:
    """Limiter of concurrent connections, in all and by source network.

    A quarter is reserved for networks that were not seen lately, so that sources that reconnect
    again and again do not keep others out.
    """

    def __init__(self, most: int, each: int, loopback: int, *, apart: bool = False) -> None:
        """Bound the connections in all, from one source, and from this machine.

        With `apart`, connections from this machine do not count towards `most`.
        """
        self._most = most
        self._loopback = loopback
        self._apart = apart
        self._sources = Sources(each, most)
        self._lately = SourceRates(Rate(1, 1 / defaults.LATELY_S))
        self._far = self._near = 0

    @property
    def count(self) -> int:
        """The number of connections now."""
        return self._far + self._near

    def enter(self, ip: str, now: float) -> Entry | None:
        """Count a connection from an IP address, or return None if a bound is reached."""
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
        return Entry(ip, new)

    def _has_room(self, new: bool) -> bool:
        among_all = self._far if self._apart else self.count
        kept = 0 if new else floor(self._most * defaults.KEPT_SHARE)
        return among_all < self._most - kept

    def leave(self, entry: Entry) -> None:
        """Stop counting a connection."""
        if is_own(entry.ip):
            self._near -= 1
        else:
            self._far -= 1
            self._sources.remove(entry.ip)


class HalfOpen(Crowd):
    """Accepted connections that have not been let in yet. A local swarm that starts all at once
    does not keep others out."""

    def __init__(self, limits: Limits) -> None:
        loopback = limits.half_open_loopback
        super().__init__(limits.half_open, limits.half_open_per_subnet, loopback, apart=True)


class Arrivals:
    """Rate limiter of accepted connections, by source and in all, except from this machine."""

    def __init__(self, limits: Limits) -> None:
        each = Rate(limits.arrivals_burst, limits.arrivals_per_s)
        total = Rate(limits.all_arrivals_burst, limits.all_arrivals_per_s)
        kept = min(defaults.KEPT_S * total.per_s, defaults.KEPT_SHARE * total.burst)
        self._rates = SourceRates(each, total, kept=kept)

    def allow(self, entry: Entry, now: float) -> bool:
        """Return whether one more connection may be accepted now, and count it if so."""
        return is_own(entry.ip) or self._rates.take(entry.ip, now, new=entry.new)


def is_own(ip: str) -> bool:
    """Return whether an address is this machine's loopback."""
    return networks(ip)[0] is THIS_MACHINE
