"""Results of a measurement: the NAT's behaviour, and how peers reach this node's addresses."""

from dataclasses import dataclass
from enum import StrEnum

from ...host.datagrams import Place
from ...identity import PeerId


class Behaviour(StrEnum):
    """Kind of a NAT's mapping or of its filtering, in the terms of RFC 4787 and RFC 5780.

    As a filtering, `ENDPOINT_INDEPENDENT` means that any host may send to an existing mapping. It
    also stands for the absence of a filter. (RFC 4787, sections 4.1 and 5; RFC 5780, section 3.)
    """

    UNKNOWN = "unknown"
    NONE = "none"  # only as a mapping: addresses are not translated
    ENDPOINT_INDEPENDENT = "endpoint-independent"
    ADDRESS_DEPENDENT = "address-dependent"
    ADDRESS_AND_PORT_DEPENDENT = "address-and-port-dependent"

    @property
    def symmetric(self) -> bool:
        """Whether a NAT with this mapping is symmetric: each destination sees another port."""
        return self in (Behaviour.ADDRESS_DEPENDENT, Behaviour.ADDRESS_AND_PORT_DEPENDENT)


class Pattern(StrEnum):
    """Rule by which a NAT chooses the outer port of a new mapping."""

    UNKNOWN = "unknown"
    PRESERVING = "preserving"  # the same as the inner port, if that is free
    SEQUENTIAL = "sequential"  # the previous one plus a fixed step
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Allocation:
    """A NAT's allocation of outer ports."""

    pattern: Pattern = Pattern.UNKNOWN
    delta: int = 0  # step between successive ports; 0 if the pattern is not sequential


@dataclass(frozen=True, slots=True)
class UdpKind:
    """Behaviour of this node's NAT towards UDP over IPv4, as found by the `Classifier`."""

    mapping: Behaviour = Behaviour.UNKNOWN
    filtering: Behaviour = Behaviour.UNKNOWN
    allocation: Allocation = Allocation()
    blocked: bool | None = None  # whether UDP is blocked; None if there is no evidence
    asked: int = 0  # observers at different IP addresses that were asked
    answered: int = 0  # those of them that replied
    public_ip: str | None = None  # the IP address at which most observers see this node
    ports: tuple[int, ...] = ()  # outer ports of new mappings, in order of creation
    dissenters: tuple[PeerId, ...] = ()  # observers that contradict a majority


class DialBackResult(StrEnum):
    """Result of the dial-backs to one address."""

    REACHED = "reached"
    REACHED_BY_KNOWN = "reached-by-known"
    """A dial-back arrived, but perhaps only because this node had sent to that peer before: the
    NAT's filter accepts such peers."""
    NOT_REACHED = "not-reached"
    UNKNOWN = "unknown"
    """No peer has dialled the address."""


@dataclass(frozen=True, slots=True)
class Dialled:
    """An address of this node that peers were asked to dial, and the result."""

    transport: str  # "tcp" or "udp"
    place: Place
    answer: DialBackResult
    asked: int  # peers that dialled it, a count


class Ipv6(StrEnum):
    """Reachability of this node over IPv6."""

    NONE = "none"
    """This machine has no public IPv6 address."""
    UNKNOWN = "unknown"
    """This machine has a public IPv6 address, but no peer has dialled it."""
    FILTERED = "filtered"
    """Peers have dialled the public IPv6 address, but no dial-back arrived."""
    OPEN = "open"
    """A dial-back over IPv6 arrived."""


@dataclass(frozen=True, slots=True)
class Reachability:
    """Result of a measurement of how peers can reach this node.

    `udp_place` and `tcp_place` are the addresses at which most observers see the node's own ports.
    They are None if no address has a majority. `udp_places` are all addresses at which observers
    see the UDP port, in the order in which the observers were asked. `cgn` says whether another
    NAT, such as a carrier-grade NAT, lies between the router and the internet. None means unknown.
    """

    udp: UdpKind = UdpKind()
    udp_place: Place | None = None
    udp_places: tuple[Place, ...] = ()
    tcp_mapping: Behaviour = Behaviour.UNKNOWN
    tcp_preserves: bool | None = None  # whether the outer TCP port equals the inner one
    tcp_place: Place | None = None
    dialled: tuple[Dialled, ...] = ()
    cgn: bool | None = None
    ipv6: Ipv6 = Ipv6.UNKNOWN
    measured_at: float | None = None  # seconds on the host's monotonic clock; None: not yet

    @property
    def observers(self) -> int:
        """Number of observers at different IP addresses that replied."""
        return self.udp.answered

    @property
    def public(self) -> bool | None:
        """Whether any peer can dial this node at some address, even one it has never sent to.

        None means that this is unknown, because no peer has dialled an address. Behind a symmetric
        NAT there may be no address to dial; the result is then False.
        """
        answers = {item.answer for item in self.dialled}
        if DialBackResult.REACHED in answers:
            return True
        if answers & {DialBackResult.NOT_REACHED, DialBackResult.REACHED_BY_KNOWN}:
            return False
        return False if self.udp.mapping.symmetric and not answers else None

    def reached(self, transport: str) -> tuple[Place, ...]:
        """Return the addresses at which any peer can reach this node over "tcp" or "udp"."""
        return tuple(
            item.place
            for item in self.dialled
            if item.transport == transport and item.answer is DialBackResult.REACHED
        )
