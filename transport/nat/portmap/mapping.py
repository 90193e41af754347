"""Types of port mapping: protocol, granted port, refusal, mapping."""

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
    """The part of the Internet from which an IPv4 address can be reached."""

    PUBLIC = "public"
    CARRIER = "carrier"  # 100.64.0.0/10: behind a carrier's NAT (RFC 6598)
    PRIVATE = "private"  # RFC 1918, RFC 3927: behind another home router
    NOWHERE = "nowhere"  # cannot be a gateway's outer address


_PRIVATE: Final = tuple(
    map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"))
)
_NOWHERE: Final = tuple(map(IPv4Network, ("0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/3")))


def scope_of(address: str) -> Scope:
    """Return the scope of an address in text form; NOWHERE for anything but an IPv4 address."""
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
    """One outer port that leads to us. `seconds` is its lease from now, infinite without an end."""

    proto: Proto
    inside: int
    port: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Refused:
    """A gateway's refusal, in our words. `silent` means that there was no reply at all."""

    words: str
    silent: bool = False


SILENT: Final = Refused("no answer", silent=True)


class Health(StrEnum):
    """The result of a check of a mapping."""

    GOOD = "good"
    LOST = "lost"  # the gateway dropped it, or has another outer address
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of the first probe of a protocol; `words` is text for the user."""

    works: bool
    words: str


class Client(Protocol):
    """A client of one protocol for one gateway."""

    @property
    def name(self) -> str:
        """`pcp`, `nat-pmp` or `upnp`."""
        ...

    async def probe(self) -> Answer:
        """Find out whether the gateway speaks the protocol; change nothing there."""
        ...

    async def map(self, proto: Proto, inside: int, wish: int) -> Granted | Refused:
        """Make or renew a mapping to our port `inside`, at the outer port `wish` if possible."""
        ...

    async def unmap(self, granted: Granted) -> None:
        """Remove a mapping; best effort."""
        ...

    async def address(self) -> str | None:
        """Return the outer address that the gateway reports; None without a reply."""
        ...

    async def check(self, held: list[Granted]) -> Health:
        """Check whether the gateway still has the mappings, as far as possible without renewing."""
        ...


@dataclass(frozen=True, slots=True)
class Mapping:
    """Ports of the gateway's outer `address` that lead to this computer.

    A port of 0 is not mapped. `expires` is a time on the host's clock in seconds (`Host.now`),
    infinite for a mapping without an end. The gateway may report a wrong address: dial-backs by
    other peers find that out.
    """

    address: str
    tcp_port: int
    udp_port: int
    protocol: str
    expires: float
    gateway: str

    @property
    def scope(self) -> Scope:
        return scope_of(self.address)

    def same_place(self, other: "Mapping | None") -> bool:
        """Return whether both have the same address, ports, protocol and gateway."""
        return other is not None and (
            (self.address, self.tcp_port, self.udp_port, self.protocol, self.gateway)
            == (other.address, other.tcp_port, other.udp_port, other.protocol, other.gateway)
        )


def lease_of(told: float, asked: int) -> float:
    """Return the lease to rely on, in seconds: at least 1, and never longer than requested."""
    return float(min(max(told, 1), asked))
