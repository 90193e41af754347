"""What one peer, and all of them together, may cost us."""

from collections import Counter, OrderedDict
from dataclasses import dataclass
from math import floor, inf

from . import defaults
from .place import THIS_MACHINE, Network, networks
from .rates import Bucket, Rate


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
    """The same from one /24 (IPv4) or /64 (IPv6), a count; larger networks have their shares of
    it (`Sources`)."""
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


class Sources:
    """Counts things by the networks that their addresses lie in (`place.networks`), each of which
    has its own bound: `each` for the smallest, for larger ones their shares of that."""

    def __init__(self, each: int, most: int) -> None:
        """`most`: how many there may be in all, of which a larger network has half at most."""
        self._each = each
        self._most = most
        self._counts: Counter[Network] = Counter()

    def fits(self, ip: str, *, without: str = "") -> bool:
        """Whether one more from there is within all bounds, if one that came from the address
        `without` had gone."""
        gone = networks(without) if without else ()
        return all(
            self._counts[each] - (each in gone) < _bound(self._each, each.share, self._most)
            for each in networks(ip)
        )

    def add(self, ip: str) -> None:
        """Count one."""
        self._counts.update(networks(ip))

    def remove(self, ip: str) -> None:
        """One that was counted has gone."""
        for each in networks(ip):
            self._counts[each] -= 1
            if not self._counts[each]:
                del self._counts[each]

    def __len__(self) -> int:
        """Networks that are counted."""
        return len(self._counts)


class SourceRates:
    """How often something may happen, by the networks that its source lies in, each with its own
    bucket, and for all together. Bounded in memory as `Rates` is."""

    def __init__(
        self,
        each: Rate,
        total: Rate | None = None,
        *,
        kept: float = 0.0,
        keys: int = defaults.RATE_KEYS,
    ) -> None:
        """`each` is the smallest network's rate. `kept`: so many at once are left of what all
        together may, to those that are `new`."""
        self._each = each
        self._most = total or Rate(inf, inf)
        self._total = None if total is None else Bucket(total, 0.0)
        self._kept = kept
        self._keys = keys
        self._buckets: OrderedDict[Network, Bucket] = OrderedDict()

    def take(self, ip: str, now: float, *, new: bool = False) -> bool:
        """Whether it may happen once more for this source; if so, it counts."""
        buckets = [self._bucket(each, now) for each in networks(ip)]
        while len(self._buckets) > self._keys:
            self._buckets.popitem(last=False)
        if not all(bucket.has(now) for bucket in buckets):
            return False
        if self._total is not None:
            if not self._total.has(now, 1 if new else 1 + self._kept):
                return False
            self._total.take(now)
        for bucket in buckets:
            bucket.take(now)
        return True

    def _bucket(self, source: Network, now: float) -> Bucket:
        bucket = self._buckets.pop(source, None)
        if bucket is None:
            each, most = self._each, self._most
            burst = _bound(each.burst, source.share, most.burst)
            bucket = Bucket(Rate(burst, _bound(each.per_s, source.share, most.per_s)), now)
        self._buckets[source] = bucket
        return bucket

    def __len__(self) -> int:
        """Networks that are remembered."""
        return len(self._buckets)


def _bound(each: float, share: int, most: float) -> float:
    return max(each, min(each * share, most * defaults.LARGEST_SHARE))


@dataclass(frozen=True, slots=True)
class Entry:
    """A connection that is counted in a `Crowd`; `new`: nothing came from its network lately."""

    ip: str
    new: bool


class Crowd:
    """Counts connections in all and by source. A part of the places is only for networks from
    which nothing came lately, so that those that come again and again do not keep others out."""

    def __init__(self, most: int, each: int, loopback: int, *, apart: bool = False) -> None:
        """At most so many in all, from one source, from this machine. `apart`: those from this
        machine are not counted among all."""
        self._most = most
        self._loopback = loopback
        self._apart = apart
        self._sources = Sources(each, most)
        self._lately = SourceRates(Rate(1, 1 / defaults.LATELY_S))
        self._far = self._near = 0

    @property
    def count(self) -> int:
        """Connections now."""
        return self._far + self._near

    def enter(self, ip: str, now: float) -> Entry | None:
        """Count a connection from an IP address; None where it is one too many."""
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
        """The connection is no longer one of them."""
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
    """How fast connections are accepted, from one source and from all; this machine's own are not
    counted."""

    def __init__(self, limits: Limits) -> None:
        each = Rate(limits.arrivals_burst, limits.arrivals_per_s)
        total = Rate(limits.all_arrivals_burst, limits.all_arrivals_per_s)
        kept = min(defaults.KEPT_S * total.per_s, defaults.KEPT_SHARE * total.burst)
        self._rates = SourceRates(each, total, kept=kept)

    def allow(self, entry: Entry, now: float) -> bool:
        """Whether one more may be accepted now; if so, it counts."""
        return is_own(entry.ip) or self._rates.take(entry.ip, now, new=entry.new)


def is_own(ip: str) -> bool:
    """Whether it is this machine."""
    return networks(ip) == (THIS_MACHINE,)
