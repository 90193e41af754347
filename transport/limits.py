"""What one peer, and all of them together, may cost us."""

from collections import Counter
from dataclasses import dataclass

from . import defaults
from .place import Nearness, nearness_of, network
from .rates import Rate, Rates

_LOOPBACK = "loopback"


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on everything a peer can make us keep or wait for. Defaults: `defaults.py`."""

    message_bytes: int = defaults.MESSAGE_BYTES
    """Largest payload of a call, post or reply, in bytes."""
    stream_window_bytes: int = defaults.STREAM_WINDOW_BYTES
    """Bytes a peer may send on one stream ahead of its reader."""
    link_window_bytes: int = defaults.LINK_WINDOW_BYTES
    """The same over all streams of a link, in bytes."""
    streams: int = defaults.STREAMS
    """Streams a peer may hold open on a link, a count."""
    calls: int = defaults.CALLS
    """Handler tasks at work for one link, a count; a further call is refused as `busy`."""
    backlog_bytes: int = defaults.BACKLOG_BYTES
    """Unsent and unacknowledged bytes of a link beyond which new calls wait and a peer's calls
    are refused; at twice that the link ends (`backlog`)."""
    total_bytes: int = defaults.TOTAL_BYTES
    """Bytes held for all links together; beyond it the link that holds most ends."""
    links: int = defaults.LINKS
    """Links at once, a count."""
    half_open: int = defaults.HALF_OPEN
    """Accepted connections that have not said an acceptable hello yet, a count."""
    half_open_per_subnet: int = defaults.HALF_OPEN_PER_SUBNET
    """The same from one /24 (IPv4) or /64 (IPv6), a count."""
    half_open_loopback: int = defaults.HALF_OPEN_LOOPBACK
    """The same from this machine, where a local swarm starts all at once; a count."""
    arrivals_burst: float = defaults.ARRIVALS_BURST
    """Connections accepted at once from one subnet, a count: a handshake costs us two milliseconds,
    and who ends it at once is not half open for long."""
    arrivals_per_s: float = defaults.ARRIVALS_PER_S
    """The same per second, in the long run."""
    all_arrivals_burst: float = defaults.ALL_ARRIVALS_BURST
    """Connections accepted at once from everywhere, a count: all peers of a relay come back at
    once, some by two ways."""
    all_arrivals_per_s: float = defaults.ALL_ARRIVALS_PER_S
    """The same per second, in the long run: a flood takes a twentieth of a core, and the links
    have the rest."""
    handshake_s: float = defaults.HANDSHAKE_S
    """Seconds from accept to an acceptable hello."""
    idle_s: float = defaults.IDLE_S
    """Seconds without a byte from the peer before a ping."""
    silent_s: float = defaults.SILENT_S
    """Seconds without a byte from the peer after which its connection counts as lost."""
    quiet_s: float = defaults.QUIET_S
    """Seconds since the last byte heard after which a link without a connection counts as gone
    for everything new."""
    grace_s: float = defaults.GRACE_S
    """Seconds since the last byte heard after which a link without a connection ends."""
    hold_s: float = defaults.HOLD_S
    """The same while calls, their answers, or streams are open on it."""


class Arrivals:
    """How fast connections are accepted, from one subnet and from all; this machine's own are not
    counted. `subnet` is what `HalfOpen.enter` gave, or any other name for a source."""

    def __init__(self, limits: Limits) -> None:
        each = Rate(limits.arrivals_burst, limits.arrivals_per_s)
        self._rates = Rates(each, Rate(limits.all_arrivals_burst, limits.all_arrivals_per_s))

    def allow(self, subnet: str, now: float) -> bool:
        """Whether one more may be accepted now; if so, it counts."""
        return subnet == _LOOPBACK or self._rates.take(subnet, now)


class Crowd:
    """Counts connections in all and by subnet (/24, or /64 of IPv6)."""

    def __init__(self, most: int, per_subnet: int, loopback: int, *, apart: bool = False) -> None:
        """At most so many in all, from one subnet, from this machine. `apart`: those from this
        machine are not counted among all."""
        self._most = most
        self._per_subnet = per_subnet
        self._loopback = loopback
        self._apart = apart
        self._by_subnet: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """Connections now."""
        return self._by_subnet.total()

    def enter(self, ip: str) -> str | None:
        """Count a connection from an IP address; its subnet, or None where it is one too many."""
        subnet = subnet_of(ip)
        near = subnet == _LOOPBACK
        if self._by_subnet[subnet] >= (self._loopback if near else self._per_subnet):
            return None
        among_all = self.count - (self._by_subnet[_LOOPBACK] if self._apart else 0)
        if among_all >= self._most and not (near and self._apart):
            return None
        self._by_subnet[subnet] += 1
        return subnet

    def leave(self, subnet: str) -> None:
        """The connection is no longer one of them."""
        self._by_subnet[subnet] -= 1
        if not self._by_subnet[subnet]:
            del self._by_subnet[subnet]


class HalfOpen(Crowd):
    """Accepted connections that have not been let in yet. A local swarm that starts all at once
    does not keep others out."""

    def __init__(self, limits: Limits) -> None:
        loopback = limits.half_open_loopback
        super().__init__(limits.half_open, limits.half_open_per_subnet, loopback, apart=True)


def subnet_of(ip: str) -> str:
    """What counts as one place: the /24 (IPv4) or /64 (IPv6) of an IP address; this machine."""
    return _LOOPBACK if nearness_of(ip) is Nearness.LOOPBACK else network(ip)
