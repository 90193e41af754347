"""IP addresses as text: canonical spelling, nearness, and the networks that contain them.

All code that decides from an address what may be sent to it uses this module. The list of addresses
to which nothing is ever sent is therefore kept in one place.
"""

from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple

from trio.socket import AF_INET, AF_INET6, inet_ntop, inet_pton

from . import defaults
from .bytestream import PathKind

Ip = IPv4Address | IPv6Address
Levels = tuple[tuple[int, int], ...]

_LETTERS: Final = 45  # the longest IPv6 address as text
_NEVER: Final[tuple[IPv4Network | IPv6Network, ...]] = tuple(
    map(
        ip_network,
        (
            "0.0.0.0/8",
            "169.254.0.0/16",
            # Metadata services of two clouds, outside of the link-local range.
            "100.100.100.200/32",
            "fd00:ec2::254/128",
            "224.0.0.0/3",  # multicast, reserved, broadcast
            "::/128",
            # The next four embed an IPv4 address, which would not be checked.
            "64:ff9b::/96",  # RFC 6052
            "64:ff9b:1::/48",  # RFC 8215
            "2001::/32",  # RFC 4380
            "2002::/16",  # RFC 3056
            "fe80::/10",
            "fec0::/10",  # deprecated site-local addresses (RFC 3879)
            "ff00::/8",
        ),
    )
)
CARRIER: Final = IPv4Network("100.64.0.0/10")
"""Addresses shared by customers behind a carrier's NAT (RFC 6598)."""


class Nearness(IntEnum):
    """Distance from which an address can be reached: the whole internet, a private network, or only
    this machine."""

    PUBLIC = 0
    PRIVATE = 1
    LOOPBACK = 2


@lru_cache(4096)
def parse_ip(text: str) -> Ip | None:
    """Parse an IP address. An IPv4 address embedded in IPv6 (`::ffff:1.2.3.4`) becomes an IPv4
    address. Return None if the text is no IP address or has a zone."""
    if len(text) > _LETTERS or "%" in text:
        return None
    try:
        found = ip_address(text)
    except ValueError:
        return None
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found


def plain_ip(text: str) -> str | None:
    """Return an IP address in canonical spelling, or None if the text is not an IP address."""
    found = parse_ip(text)
    return None if found is None else str(found)


@lru_cache(4096)
def nearness_of(ip: str) -> Nearness | None:
    """Return the nearness of an IP address. Return None for an address that no node should be told
    to dial: a DNS name (which can resolve to any address), a link-local or cloud metadata address,
    one with an embedded IPv4 address, or a multicast address."""
    found = parse_ip(ip)
    if found is None or any(found in net for net in _NEVER if net.version == found.version):
        return None
    if found.is_loopback:
        return Nearness.LOOPBACK
    if found.is_reserved:
        return None
    return Nearness.PUBLIC if found.is_global else Nearness.PRIVATE


def nearness_at(ip: str) -> Nearness:
    """Return the nearness of a peer that is connected from an IP address. An address that must not
    be dialled counts as public."""
    return nearness_of(ip) or Nearness.PUBLIC


def is_public(ip: str) -> bool:
    """Return whether a text is the canonical spelling of a public address of a single host."""
    return nearness_of(ip) is Nearness.PUBLIC and plain_ip(ip) == ip


def may_dial_port(port: int) -> bool:
    """Return whether this node may dial a port that a peer named.

    System services use the ports below 1024. Of these, peers may use only the port of HTTPS.
    """
    return defaults.LOW_PORT <= port <= 65535 or port == defaults.HTTPS_PORT


def path_kind_to(ip: str) -> PathKind:
    """Return the path kind of a direct connection to an address. A text that is not an IP address
    counts as direct.

    A link-local address counts as LAN, because a peer that connects from one is on the local
    network.
    """
    found = parse_ip(ip)
    if found is None:
        return PathKind.DIRECT
    if found.is_loopback:
        return PathKind.LOOPBACK
    return PathKind.LAN if found.is_private and not found.is_unspecified else PathKind.DIRECT


class ContainingNetwork(NamedTuple):
    """A network that contains an address, such as `192.0.2.0/24`."""

    name: str
    share: int
    """The bound of this network, as a multiple of the bound of the smallest network."""


THIS_MACHINE: Final = ContainingNetwork("loopback", 1)
_UNKNOWN: Final = ContainingNetwork("unknown", 1)
_LOOPBACK_SIX: Final = bytes(15) + b"\1"
_MAPPED_FOUR: Final = bytes(10) + b"\xff\xff"


@lru_cache(4096)
def targets(ip: str) -> tuple[ContainingNetwork, ...]:
    """Return the networks of an address that may belong to one victim of an attack, smallest first.

    For IPv4 these are the address itself and its /24, for IPv6 its /64, /56 and /48. A dial or
    datagram that a peer asked for counts against each of them. All invalid addresses share one
    network.
    """
    packed = _packed(ip)
    if packed is None:
        return (_UNKNOWN,)
    return _around(packed, defaults.TARGETS_FOUR, defaults.TARGETS_SIX)


@lru_cache(4096)
def networks(ip: str) -> tuple[ContainingNetwork, ...]:
    """Return the networks of an address that may belong to one owner, smallest first.

    For IPv4 these are its /24 and /16, for IPv6 its /64, /56, /48 and /32. A limit by source
    applies to each of these networks, because one owner may have many small networks. All loopback
    addresses share one network, and all invalid ones share another.
    """
    packed = _packed(ip)
    if packed is None:
        return (_UNKNOWN,)
    if packed == _LOOPBACK_SIX or (len(packed) == 4 and packed[0] == 127):
        return (THIS_MACHINE,)
    return _around(packed, defaults.NETWORKS_FOUR, defaults.NETWORKS_SIX)


def _packed(ip: str) -> bytes | None:
    """Return the address that `parse_ip` returns, as 4 or 16 bytes. Return None if the text is not
    an IP address.

    This function is fast because in a flood each connection may come from a new address. The
    `ipaddress` module would take several times as long. The functions of `trio.socket` used here
    only convert text and do no I/O.
    """
    if len(ip) > _LETTERS or "%" in ip:
        return None
    try:
        if ":" not in ip:
            return inet_pton(AF_INET, ip)
        packed = inet_pton(AF_INET6, ip)
    except (OSError, ValueError):  # ValueError if there is a null character or a surrogate
        return None
    return packed[12:] if packed.startswith(_MAPPED_FOUR) else packed


def _around(packed: bytes, four: Levels, six: Levels) -> tuple[ContainingNetwork, ...]:
    """Return the networks around an address. `four` and `six` list (prefix length in bits, share)
    for the two IP versions."""
    family, levels = (AF_INET, four) if len(packed) == 4 else (AF_INET6, six)
    found = []
    for bits, share in levels:
        whole = bits // 8
        name = inet_ntop(family, packed[:whole] + bytes(len(packed) - whole))
        found.append(ContainingNetwork(f"{name}/{bits}", share))
    return tuple(found)


@lru_cache(4096)
def network(ip: str, four: int, six: int) -> str:
    """Return the network that an address belongs to, with a prefix of `four` bits for IPv4 or `six`
    bits for IPv6.

    All invalid addresses belong to the network `unknown`.
    """
    found = parse_ip(ip)
    if found is None:
        return _UNKNOWN.name
    return str(ip_network((found, four if found.version == 4 else six), strict=False))


def owner(ip: str) -> str:
    """Return the largest network that a provider usually assigns to one customer: the /24 (IPv4) or
    /48 (IPv6).

    Peers with the same owner do not count as independent of each other.
    """
    return network(ip, 24, 48)


def region(ip: str) -> str:
    """Return the /16 (IPv4) or /32 (IPv6) of an address. Addresses in the same region probably have
    the same provider."""
    return network(ip, 16, 32)
