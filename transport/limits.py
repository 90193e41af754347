"""What one peer, and all of them together, may cost us."""

from collections import Counter
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network

from . import defaults


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


class HalfOpen:
    """Counts accepted connections that have not been let in yet, in all and by subnet."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._by_subnet: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """Half-open connections now."""
        return self._by_subnet.total()

    def enter(self, address: str) -> str | None:
        """Count a connection from an IP address; its subnet, or None where it is one too many."""
        subnet = _subnet(address)
        loopback = subnet == _LOOPBACK
        most = self._limits.half_open_loopback if loopback else self._limits.half_open_per_subnet
        remote = self.count - self._by_subnet[_LOOPBACK]
        if self._by_subnet[subnet] >= most or (not loopback and remote >= self._limits.half_open):
            return None
        self._by_subnet[subnet] += 1
        return subnet

    def leave(self, subnet: str) -> None:
        """The connection was let in, refused or closed."""
        self._by_subnet[subnet] -= 1
        if not self._by_subnet[subnet]:
            del self._by_subnet[subnet]


_LOOPBACK = "loopback"


def _subnet(address: str) -> str:
    try:
        found = ip_address(address)
    except ValueError:
        return "unknown"
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if found.is_loopback:
        return _LOOPBACK
    bits = 24 if found.version == 4 else 64
    return str(ip_network((found, bits), strict=False))
