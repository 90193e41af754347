"""What port mapping is about: a protocol, a port that was granted, a refusal, a mapping."""

from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network
from typing import Final, Protocol

from ..place import CARRIER


class Proto(StrEnum):
    """What a port is of."""

    TCP = "tcp"
    UDP = "udp"


NUMBERS: Final = {Proto.TCP: 6, Proto.UDP: 17}
"""IANA protocol numbers."""


class Scope(StrEnum):
    """From where an IPv4 address can be reached."""

    PUBLIC = "public"
    CARRIER = "carrier"  # 100.64.0.0/10: behind a carrier's NAT (RFC 6598)
    PRIVATE = "private"  # RFC 1918, RFC 3927: behind another home router
    NOWHERE = "nowhere"  # no address of a gateway's outer side


_PRIVATE: Final = tuple(
    map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"))
)
_NOWHERE: Final = tuple(map(IPv4Network, ("0.0.0.0/8", "127.0.0.0/8", "224.0.0.0/3")))


def scope_of(address: str) -> Scope:
    """The scope of an address in text; what is no IPv4 address leads nowhere."""
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
    """One outer port that leads to us. `seconds` from now; infinite where it has no end."""

    proto: Proto
    inside: int
    port: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Refused:
    """A gateway's no, in our words. `silent`: it was not a no, but nothing at all."""

    words: str
    silent: bool = False


SILENT: Final = Refused("no answer", silent=True)


class Health(StrEnum):
    """What a look at a mapping found."""

    GOOD = "good"
    LOST = "lost"  # the gateway does not know it, or has another outer address
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a protocol said when it was first asked; `words` are for people."""

    works: bool
    words: str


class Client(Protocol):
    """One protocol, spoken with one gateway."""

    @property
    def name(self) -> str:
        """`pcp`, `nat-pmp` or `upnp`."""
        ...

    async def probe(self) -> Answer:
        """Whether the gateway speaks it; changes nothing there."""
        ...

    async def map(self, proto: Proto, inside: int, wish: int) -> Granted | Refused:
        """Make or renew a mapping to our port `inside`, at the outer port `wish` if possible."""
        ...

    async def unmap(self, granted: Granted) -> None:
        """Remove one; best effort."""
        ...

    async def address(self) -> str | None:
        """The gateway's outer address, as it told; None without an answer."""
        ...

    async def check(self, held: list[Granted]) -> Health:
        """Whether the gateway still has them, as far as can be seen without renewing."""
        ...


@dataclass(frozen=True, slots=True)
class Mapping:
    """Ports of the gateway's outer `address` that lead to this computer.

    A port of 0 is not mapped. `expires` is on the host's clock (`Host.now`), infinite for a
    mapping without an end. The address is what the gateway says, which may be wrong: peers
    that dial back find out.
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

    @property
    def double_nat(self) -> bool:
        """Whether the mapped address is itself behind a NAT, so that the mapping opens the way
        from there only."""
        return self.scope is not Scope.PUBLIC

    def same_place(self, other: "Mapping | None") -> bool:
        """Whether both are reached by the same address and ports."""
        return other is not None and (
            (self.address, self.tcp_port, self.udp_port, self.protocol, self.gateway)
            == (other.address, other.tcp_port, other.udp_port, other.protocol, other.gateway)
        )


def lease_of(told: float, asked: int) -> float:
    """A lease in seconds as it is believed: never longer than what was asked for."""
    return float(min(max(told, 1), asked))
