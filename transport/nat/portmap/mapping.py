"""Types that all parts of port mapping share, and the interface of its clients."""

from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network
from typing import Final, Protocol

from ...networks import CARRIER


class Proto(StrEnum):
    """The transport protocol of a port."""

    TCP = "tcp"
    UDP = "udp"


NUMBERS: Final = {Proto.TCP: 6, Proto.UDP: 17}
"""IANA protocol numbers."""


class Scope(StrEnum):
    """Range from which an IPv4 address can be reached."""

    PUBLIC = "public"  # from everywhere
    CARRIER = "carrier"  # 100.64.0.0/10: only from behind the same carrier's NAT (RFC 6598)
    PRIVATE = "private"  # RFC 1918, RFC 3927: only from behind the same router
    NOWHERE = "nowhere"  # cannot be a gateway's outer address


_PRIVATE: Final = tuple(
    map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"))
)
_NOWHERE: Final = tuple(map(IPv4Network, ("0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/3")))


def scope_of(address: str) -> Scope:
    """Return the scope of an address given as text. It is NOWHERE for all but IPv4 addresses."""
    try:
        found = IPv4Address(address)
    except ValueError:
        return Scope.NOWHERE
    if any(found in net for net in _NOWHERE):
        return Scope.NOWHERE
    if found in CARRIER:
        return Scope.CARRIER
    return Scope.PRIVATE if any(found in net for net in _PRIVATE) else Scope.PUBLIC


@dataclass(frozen=True, slots=True)
class Granted:
    """A granted mapping of one outer port to a port of ours."""

    proto: Proto
    inside: int  # our port
    port: int  # the outer port
    seconds: float  # the lease from now on; infinite if the mapping has no end


@dataclass(frozen=True, slots=True)
class MappingRefused:
    """A gateway's refusal."""

    words: str  # the reason for the user, in our own words
    silent: bool = False  # whether there was no usable reply at all


SILENT: Final = MappingRefused("no answer", silent=True)


class MappingHealth(StrEnum):
    """Result of checking that the gateway still has a mapping."""

    GOOD = "good"
    LOST = "lost"  # the gateway has dropped it, or has another outer address
    SILENT = "silent"  # the gateway has not replied


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """Result of probing a gateway for a protocol."""

    works: bool
    words: str  # the result for the user, to follow the name of the protocol


class Client(Protocol):
    """Client of one port mapping protocol and one gateway."""

    @property
    def name(self) -> str:
        """The protocol: `pcp`, `nat-pmp` or `upnp`."""
        ...

    async def probe(self) -> ProbeAnswer:
        """Find out whether the gateway supports the protocol, without changing anything there."""
        ...

    async def map(self, proto: Proto, inside: int, wish: int) -> Granted | MappingRefused:
        """Create or renew a mapping to our port `inside`, at the outer port `wish` if possible."""
        ...

    async def unmap(self, granted: Granted) -> None:
        """Ask the gateway to remove a mapping. A failure is not reported."""
        ...

    async def address(self) -> str | None:
        """Return the outer IP address that the gateway reports; None if it reports no usable
        one."""
        ...

    async def check(self, held: list[Granted]) -> MappingHealth:
        """Check whether the gateway still has the mappings.

        The mappings are not renewed, so the check may miss a loss.
        """
        ...


@dataclass(frozen=True, slots=True)
class PortMapping:
    """Ports of the gateway's outer IP address that lead to this computer.

    The gateway may report a wrong address. Dial-backs by peers (`reach/`) detect that.
    """

    address: str  # the gateway's outer IP address
    tcp_port: int  # outer port for TCP; 0: not mapped
    udp_port: int  # outer port for UDP; 0: not mapped
    protocol: str  # `pcp`, `nat-pmp` or `upnp`
    expires: float  # seconds on the host's clock; infinite if the mapping has no end
    gateway: str  # the gateway's inner IP address

    @property
    def scope(self) -> Scope:
        """The range from which the outer address can be reached."""
        return scope_of(self.address)

    def same_place(self, other: "PortMapping | None") -> bool:
        """Return whether `other` has the same address, ports, protocol and gateway."""
        return other is not None and (
            (self.address, self.tcp_port, self.udp_port, self.protocol, self.gateway)
            == (other.address, other.tcp_port, other.udp_port, other.protocol, other.gateway)
        )


def lease_of(told: float, asked: int) -> float:
    """Return the lease to rely on, in seconds, if the gateway states a lease of `told` seconds.

    The result is at least 1 s, and at most the requested lease `asked`.
    """
    return float(min(max(told, 1), asked))
