"""Where a relay sees its peers: what each end of a circuit is told of the other.

An address that a peer claims for itself proves nothing. One at which a third node sees it may be
probed (docs/spec/punch.md), so what a relay says is checked here: a relay that lies may name
somebody else's public address, but none in a network that only we can reach.
"""

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

from ..link import Link


class Vouched(NamedTuple):
    """An IP address in its usual spelling, and the TCP and UDP ports seen there; 0: not known.
    A peer that is seen at two, of both IP versions, is at `other` too ("": it is not)."""

    ip: str
    tcp: int = 0
    udp: int = 0
    other: str = ""


def seen_at(link: Link) -> Vouched:
    """Where this node sees the other end of a link whose connections are TCP."""
    ip, port = link.status.address
    return Vouched(ip, port)


def is_relayed(link: Link) -> bool:
    """Whether a link's peer is seen nowhere: it comes through a relay itself."""
    return not link.status.address[0]


def read_vouched(value: object, voucher: str) -> Vouched | None:
    """What a relay seen at the IP address `voucher` says; None where it is not to be used."""
    if not isinstance(value, list) or len(value) not in (3, 4):
        return None
    ip, tcp, udp, other = (*value, "")[:4]
    if not isinstance(ip, str) or not all(
        type(port) is int and 0 <= port <= 65535 for port in (tcp, udp)
    ):
        return None
    found = _believed(ip, voucher)
    if found is None or not isinstance(other, str):
        return None
    return Vouched(found, tcp, udp, _believed(other, voucher) or "")


def _believed(ip: str, voucher: str) -> str | None:
    found, near = _ip(ip), _ip(voucher)
    return None if found is None or _nearness(found) > _nearness(near) else str(found)


def _ip(text: str) -> IPv4Address | IPv6Address | None:
    if "%" in text:
        return None
    try:
        found = ip_address(text)
    except ValueError:
        return None
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return _usable(found.ipv4_mapped)
        if found.sixtofour is not None or found.teredo is not None:
            return None  # they carry an IPv4 address to wherever
    return _usable(found)


def _usable(ip: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address | None:
    odd = ip.is_link_local or ip.is_multicast or ip.is_unspecified
    return None if odd or (ip.is_reserved and not ip.is_loopback) else ip


def _nearness(ip: IPv4Address | IPv6Address | None) -> int:
    """0 public (and where it is not known), 1 of a private network, 2 of this machine."""
    if ip is None or ip.is_global:
        return 0
    return 2 if ip.is_loopback else 1
