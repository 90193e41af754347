"""IP addresses as text: one spelling for each, how near they are, which of them are one network.

Whoever decides by an address what may be sent there asks here, so that there is one list of those
to which nothing is ever sent.
"""

from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NamedTuple

from . import defaults
from .pipe import Way

Ip = IPv4Address | IPv6Address

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
            "64:ff9b::/96",  # these four stand for an IPv4 address that was not looked at:
            "64:ff9b:1::/48",  # RFC 6052, RFC 8215, RFC 4380, RFC 3056
            "2001::/32",
            "2002::/16",
            "fe80::/10",
            "fec0::/10",  # once of a site (RFC 3879)
            "ff00::/8",
        ),
    )
)
CARRIER: Final = IPv4Network("100.64.0.0/10")
"""Behind a carrier's NAT (RFC 6598)."""


class Nearness(IntEnum):
    """How near an address is to whoever can reach it."""

    PUBLIC = 0
    PRIVATE = 1
    LOOPBACK = 2


@lru_cache(4096)
def parse_ip(text: str) -> Ip | None:
    """An IP address, IPv4 within IPv6 as IPv4; None for what is none, or has a zone."""
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
    """An IP address in its one usual spelling; None for no address."""
    found = parse_ip(text)
    return None if found is None else str(found)


@lru_cache(4096)
def nearness_of(ip: str) -> Nearness | None:
    """How near an IP address is; None for what nobody should be told to dial: names (they resolve
    to anything), link-local and metadata addresses, those that stand for others, multicast."""
    found = parse_ip(ip)
    if found is None or any(found in net for net in _NEVER if net.version == found.version):
        return None
    if found.is_loopback:
        return Nearness.LOOPBACK
    if found.is_reserved:
        return None
    return Nearness.PUBLIC if found.is_global else Nearness.PRIVATE


def nearness_at(ip: str) -> Nearness:
    """How near a peer is that is seen at an IP address; the unclear counts as far."""
    return nearness_of(ip) or Nearness.PUBLIC


def is_public(ip: str) -> bool:
    """Whether a text is, in its usual spelling, the address of a single host on the internet."""
    return nearness_of(ip) is Nearness.PUBLIC and plain_ip(ip) == ip


def may_dial_port(port: int) -> bool:
    """Whether anything is sent to a port because a peer names it: those of a system's own services
    never are a peer's, but for that of the web, on which some listen."""
    return defaults.LOW_PORT <= port <= 65535 or port == defaults.HTTPS_PORT


def way_to(ip: str) -> Way:
    """The way by which a plain connection to an address goes; the unclear counts as far.

    Link-local addresses are near: who is connected there already is on the own network.
    """
    found = parse_ip(ip)
    if found is None:
        return Way.DIRECT
    if found.is_loopback:
        return Way.LOOPBACK
    return Way.LAN if found.is_private and not found.is_unspecified else Way.DIRECT


class Network(NamedTuple):
    """One of the networks that an address lies in. `share`: it may have so many times what the
    smallest of them may."""

    name: str
    share: int


@lru_cache(4096)
def targets(ip: str) -> tuple[Network, ...]:
    """The networks that may be one victim's, smallest first: the address and its /24, or of IPv6
    the /64, which has all of it, the /56 and the /48. What is sent at a peer's word is counted by
    all of them."""
    found = parse_ip(ip)
    if found is None:
        return (Network("unknown", 1),)
    levels = defaults.TARGETS_FOUR if found.version == 4 else defaults.TARGETS_SIX
    return tuple(Network(network(ip, bits, bits), share) for bits, share in levels)


@lru_cache(4096)
def networks(ip: str) -> tuple[Network, ...]:
    """The networks that may be one owner's, smallest first: a /24 and a /16, or of IPv6 a /64, the
    /56 that a home gets, a /48 and a /32. What is counted by source is counted by all of them, as
    an owner of many small networks is still one. This machine is one, and so is all nonsense."""
    found = parse_ip(ip)
    if found is None:
        return (Network("unknown", 1),)
    if nearness_of(ip) is Nearness.LOOPBACK:
        return (THIS_MACHINE,)
    levels = defaults.NETWORKS_FOUR if found.version == 4 else defaults.NETWORKS_SIX
    return tuple(Network(network(ip, bits, bits), share) for bits, share in levels)


THIS_MACHINE: Final = Network("loopback", 1)


def network(ip: str, four: int, six: int) -> str:
    """The network that counts as one: of IPv4 the first `four` bits, of IPv6 the first `six`. All
    nonsense is `unknown`."""
    found = parse_ip(ip)
    if found is None:
        return "unknown"
    return str(ip_network((found, four if found.version == 4 else six), strict=False))


def owner(ip: str) -> str:
    """The network within which addresses do not count as independent of each other: the /24, or of
    IPv6 the /48, the largest that a single customer of a provider usually gets."""
    return network(ip, 24, 48)


def region(ip: str) -> str:
    """The /16 (IPv4) or /32 (IPv6): addresses of one are likely one provider's."""
    return network(ip, 16, 32)
