"""IP addresses as text: canonical spelling, nearness, and the networks that contain them.

All code that decides by an address what may be sent to it uses this module, so that there is one
list of addresses to which nothing is ever sent.
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
            "100.100.100.200/32",  # the metadata of two clouds, outside of the link-local range
            "fd00:ec2::254/128",
            "224.0.0.0/3",  # multicast, reserved, broadcast
            "::/128",
            "64:ff9b::/96",  # these four embed an IPv4 address that was not checked:
            "64:ff9b:1::/48",  # RFC 6052, RFC 8215, RFC 4380, RFC 3056
            "2001::/32",
            "2002::/16",
            "fe80::/10",
            "fec0::/10",  # deprecated site-local addresses (RFC 3879)
            "ff00::/8",
        ),
    )
)
CARRIER: Final = IPv4Network("100.64.0.0/10")
"""Addresses behind a carrier's NAT (RFC 6598)."""


class Nearness(IntEnum):
    """Distance from which an address can be reached."""

    PUBLIC = 0
    PRIVATE = 1
    LOOPBACK = 2


@lru_cache(4096)
def parse_ip(text: str) -> Ip | None:
    """Parse an IP address; IPv4 within IPv6 becomes IPv4. None if it is invalid or has a zone."""
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
    """Return an IP address in canonical spelling; None if it is not an address."""
    found = parse_ip(text)
    return None if found is None else str(found)


@lru_cache(4096)
def nearness_of(ip: str) -> Nearness | None:
    """Return an IP address's nearness. None for what no node should be told to dial: names (they
    resolve to anything), link-local and metadata addresses, embedded addresses, multicast."""
    found = parse_ip(ip)
    if found is None or any(found in net for net in _NEVER if net.version == found.version):
        return None
    if found.is_loopback:
        return Nearness.LOOPBACK
    if found.is_reserved:
        return None
    return Nearness.PUBLIC if found.is_global else Nearness.PRIVATE


def nearness_at(ip: str) -> Nearness:
    """Return the nearness of a peer seen at an IP address; doubtful addresses count as public."""
    return nearness_of(ip) or Nearness.PUBLIC


def is_public(ip: str) -> bool:
    """Whether a text is the address of a single host on the internet, in canonical spelling."""
    return nearness_of(ip) is Nearness.PUBLIC and plain_ip(ip) == ip


def may_dial_port(port: int) -> bool:
    """Return whether to dial a port that a peer named.

    System services use the ports below 1024. Of these, only HTTPS is allowed for peers.
    """
    return defaults.LOW_PORT <= port <= 65535 or port == defaults.HTTPS_PORT


def path_kind_to(ip: str) -> PathKind:
    """Return the path kind of a plain connection to an address; doubtful ones count as direct.

    A link-local address counts as LAN, because a peer connected from one is on the local network.
    """
    found = parse_ip(ip)
    if found is None:
        return PathKind.DIRECT
    if found.is_loopback:
        return PathKind.LOOPBACK
    return PathKind.LAN if found.is_private and not found.is_unspecified else PathKind.DIRECT


class Network(NamedTuple):
    """A network that contains an address."""

    name: str
    share: int
    """How many times the bound of the smallest network applies to this one."""


THIS_MACHINE: Final = Network("loopback", 1)
_UNKNOWN: Final = Network("unknown", 1)
_LOOPBACK_SIX: Final = bytes(15) + b"\1"
_MAPPED_FOUR: Final = bytes(10) + b"\xff\xff"


@lru_cache(4096)
def targets(ip: str) -> tuple[Network, ...]:
    """Return the networks that may belong to one victim, smallest first.

    These are the address and its /24 (IPv4), or the /64, /56 and /48 (IPv6). A dial or datagram
    that a peer asked for counts against each of them. Invalid addresses share one network.
    """
    packed = _packed(ip)
    if packed is None:
        return (_UNKNOWN,)
    return _around(packed, defaults.TARGETS_FOUR, defaults.TARGETS_SIX)


@lru_cache(4096)
def networks(ip: str) -> tuple[Network, ...]:
    """Return the networks that may belong to one owner, smallest first.

    These are the /24 and /16 (IPv4), or the /64, /56, /48 and /32 (IPv6). Whatever is limited by
    source counts against each of them, because one owner may have many small networks. All
    loopback addresses share one network, and so do all invalid ones.
    """
    packed = _packed(ip)
    if packed is None:
        return (_UNKNOWN,)
    if packed == _LOOPBACK_SIX or (len(packed) == 4 and packed[0] == 127):
        return (THIS_MACHINE,)
    return _around(packed, defaults.NETWORKS_FOUR, defaults.NETWORKS_SIX)


def _packed(ip: str) -> bytes | None:
    """Return the address that `parse_ip` finds, as bytes.

    Every connection of a flood comes through here from a new address, and `ipaddress` would take
    several times as long. The functions of `trio.socket` used here only convert text.
    """
    if len(ip) > _LETTERS or "%" in ip:
        return None
    try:
        if ":" not in ip:
            return inet_pton(AF_INET, ip)
        packed = inet_pton(AF_INET6, ip)
    except (OSError, ValueError):  # ValueError: a null character or a surrogate
        return None
    return packed[12:] if packed.startswith(_MAPPED_FOUR) else packed


def _around(packed: bytes, four: Levels, six: Levels) -> tuple[Network, ...]:
    family, levels = (AF_INET, four) if len(packed) == 4 else (AF_INET6, six)
    found = []
    for bits, share in levels:
        whole = bits // 8
        name = inet_ntop(family, packed[:whole] + bytes(len(packed) - whole))
        found.append(Network(f"{name}/{bits}", share))
    return tuple(found)


@lru_cache(4096)
def network(ip: str, four: int, six: int) -> str:
    """Return the network of the first `four` bits (IPv4) or `six` bits (IPv6) of an address.

    Invalid addresses share the network `unknown`.
    """
    found = parse_ip(ip)
    if found is None:
        return _UNKNOWN.name
    return str(ip_network((found, four if found.version == 4 else six), strict=False))


def owner(ip: str) -> str:
    """Return the largest network that one customer of a provider usually gets.

    This is the /24 (IPv4) or /48 (IPv6). Peers of one owner do not count as independent.
    """
    return network(ip, 24, 48)


def region(ip: str) -> str:
    """Return the /16 (IPv4) or /32 (IPv6): addresses in one probably have the same provider."""
    return network(ip, 16, 32)
