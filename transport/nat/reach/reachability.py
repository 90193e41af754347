"""Values that describe how others reach this node: NAT behaviour, dial-backs, addresses."""

from dataclasses import dataclass
from enum import StrEnum

from ...host.datagrams import Place
from ...identity import PeerId


class Behaviour(StrEnum):
    """Kind of a NAT's mapping or filtering (RFC 4787, 4.1 and 5; RFC 5780, 3).

    As a mapping, `NONE` says that addresses are not translated. As a filtering,
    `ENDPOINT_INDEPENDENT` says that any host may send to a mapping, or that nothing filters.
    """

    UNKNOWN = "unknown"
    NONE = "none"
    ENDPOINT_INDEPENDENT = "endpoint-independent"
    ADDRESS_DEPENDENT = "address-dependent"
    ADDRESS_AND_PORT_DEPENDENT = "address-and-port-dependent"

    @property
    def symmetric(self) -> bool:
        """Whether, as a mapping, each destination sees another port."""
        return self in (Behaviour.ADDRESS_DEPENDENT, Behaviour.ADDRESS_AND_PORT_DEPENDENT)


class Pattern(StrEnum):
    """A NAT's choice of the outer port of a new mapping."""

    UNKNOWN = "unknown"
    PRESERVING = "preserving"
    SEQUENTIAL = "sequential"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Allocation:
    """A NAT's port allocation. `delta` is the step of a sequential one, in ports."""

    pattern: Pattern = Pattern.UNKNOWN
    delta: int = 0


@dataclass(frozen=True, slots=True)
class UdpKind:
    """Result of the `Classifier`. `blocked` is None if no observer could tell. `asked` counts the
    observers with different IP addresses that were asked, `answered` those that replied. `ports`
    are the outer ports of new mappings in order of creation. `dissenters` differ from the
    majority of at least three."""

    mapping: Behaviour = Behaviour.UNKNOWN
    filtering: Behaviour = Behaviour.UNKNOWN
    allocation: Allocation = Allocation()
    blocked: bool | None = None
    asked: int = 0
    answered: int = 0
    public_ip: str | None = None
    ports: tuple[int, ...] = ()
    dissenters: tuple[PeerId, ...] = ()


class Answer(StrEnum):
    """Result of the dial-backs to one address."""

    REACHED = "reached"
    REACHED_BY_KNOWN = "reached-by-known"
    """Only peers that this node had talked to got in, through a filter that accepts those."""
    NOT_REACHED = "not-reached"
    UNKNOWN = "unknown"
    """No peer could be asked."""


@dataclass(frozen=True, slots=True)
class Dialled:
    """An address of this node, and the result for the `asked` peers that dialled it."""

    transport: str  # "tcp" or "udp"
    place: Place
    answer: Answer
    asked: int


class Ipv6(StrEnum):
    """The state of this node's global IPv6 address."""

    NONE = "none"
    UNKNOWN = "unknown"
    """There is one, but no peer that could try it."""
    FILTERED = "filtered"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Reachability:
    """The ways in which others reach this node, as far as peers could tell.

    `udp_place` and `tcp_place` are where most observers see the node's own port (None: no
    observer sees it, or each sees it elsewhere). `udp_places` are all views of the UDP port, in
    the order in which the observers were asked. `cgn` says whether there is another NAT behind
    the router's own (None: unknown).
    """

    udp: UdpKind = UdpKind()
    udp_place: Place | None = None
    udp_places: tuple[Place, ...] = ()
    tcp_mapping: Behaviour = Behaviour.UNKNOWN
    tcp_preserves: bool | None = None
    tcp_place: Place | None = None
    dialled: tuple[Dialled, ...] = ()
    cgn: bool | None = None
    ipv6: Ipv6 = Ipv6.UNKNOWN
    measured_at: float | None = None  # on the host's monotonic clock

    @property
    def observers(self) -> int:
        """Number of observers at different IP addresses that replied."""
        return self.udp.answered

    @property
    def public(self) -> bool | None:
        """Whether strangers can dial this node at some address; None if no peer tried. Behind a
        symmetric NAT there is no address to try."""
        answers = {item.answer for item in self.dialled}
        if Answer.REACHED in answers:
            return True
        if answers & {Answer.NOT_REACHED, Answer.REACHED_BY_KNOWN}:
            return False
        return False if self.udp.mapping.symmetric and not answers else None

    def reached(self, transport: str) -> tuple[Place, ...]:
        """Return the addresses at which strangers got in, by "tcp" or "udp"."""
        return tuple(
            item.place
            for item in self.dialled
            if item.transport == transport and item.answer is Answer.REACHED
        )
