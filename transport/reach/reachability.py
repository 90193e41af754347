"""What is known of how others reach this node: the verdict, as values."""

from dataclasses import dataclass
from enum import StrEnum

from ..datagrams import Place
from ..identity import PeerId


class Behaviour(StrEnum):
    """On what a NAT's mapping or filtering depends (RFC 4787, 4.1 and 5; RFC 5780, 3).

    As a mapping, `NONE` says that addresses are not translated. As a filtering,
    `ENDPOINT_INDEPENDENT` says that anybody may send to a mapping, or that nothing filters.
    """

    UNKNOWN = "unknown"
    NONE = "none"
    ENDPOINT_INDEPENDENT = "endpoint-independent"
    ADDRESS_DEPENDENT = "address-dependent"
    ADDRESS_AND_PORT_DEPENDENT = "address-and-port-dependent"

    @property
    def symmetric(self) -> bool:
        """As a mapping: whether each destination sees another port."""
        return self in (Behaviour.ADDRESS_DEPENDENT, Behaviour.ADDRESS_AND_PORT_DEPENDENT)


class Pattern(StrEnum):
    """How a NAT chooses the outer port of a new mapping."""

    UNKNOWN = "unknown"
    PRESERVING = "preserving"
    SEQUENTIAL = "sequential"
    RANDOM = "random"


@dataclass(frozen=True, slots=True)
class Allocation:
    """The pattern, and for a sequential one the step from one mapping to the next, in ports."""

    pattern: Pattern = Pattern.UNKNOWN
    delta: int = 0


@dataclass(frozen=True, slots=True)
class UdpKind:
    """What the `Classifier` found. `blocked` None: nobody to tell; `answered` counts observers
    with different IP addresses that answered, `asked` those that were asked. `ports` are the
    outer ports of new mappings in the order of their making. `dissenters` said otherwise than the
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
    """What came of the dial-backs to one address."""

    REACHED = "reached"
    REACHED_BY_KNOWN = "reached-by-known"
    """Only who this node had talked to before got in, past a filter that lets those in."""
    NOT_REACHED = "not-reached"
    UNKNOWN = "unknown"
    """Nobody could be asked."""


@dataclass(frozen=True, slots=True)
class Dialled:
    """An address of this node, and whether peers that dialled it got here. `asked` counts them."""

    transport: str  # "tcp" or "udp"
    place: Place
    answer: Answer
    asked: int


class Ipv6(StrEnum):
    """The state of this node's global IPv6 address."""

    NONE = "none"
    UNKNOWN = "unknown"
    """There is one, and no peer that could try it."""
    FILTERED = "filtered"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Reachability:
    """How others reach this node, as far as peers could tell.

    `udp_place` and `tcp_place` are where the node's own port is seen from outside, by most
    observers (None: by nobody, or by each at another place). `udp_places` is every view of
    the UDP port, in the order in which the observers were asked. `cgn` says whether a further
    NAT stands behind the router's own (None: unknown).
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
        """Peers at different IP addresses that told what they see."""
        return self.udp.answered

    @property
    def public(self) -> bool | None:
        """Whether strangers can dial this node at some address; None where nobody tried. Behind a
        symmetric NAT there is no address to try."""
        answers = {item.answer for item in self.dialled}
        if Answer.REACHED in answers:
            return True
        if answers & {Answer.NOT_REACHED, Answer.REACHED_BY_KNOWN}:
            return False
        return False if self.udp.mapping.symmetric and not answers else None

    def reached(self, transport: str) -> tuple[Place, ...]:
        """Addresses at which strangers got in, by "tcp" or "udp"."""
        return tuple(
            item.place
            for item in self.dialled
            if item.transport == transport and item.answer is Answer.REACHED
        )
