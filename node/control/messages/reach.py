"""Messages about the links of a node to its peers: how they reach it, and how it invites them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Never

from ... import defaults
from .encoding import Ask, TextBound, Whole
from .group import RoleName
from .machine import CapacityView, MachineView
from .serving import ShardView
from .sharing import ShareView


@dataclass(frozen=True, slots=True)
class DiagnosisView:
    """One result of the diagnosis. `hint` says what the owner can change, or is None."""

    code: str
    sentence: str
    hint: str | None


@dataclass(frozen=True, slots=True)
class HeldRelay:
    """A relay at which this node has a reservation, which ends in `expires_s` seconds."""

    peer: str
    rtt_ms: float
    expires_s: float


@dataclass(frozen=True, slots=True)
class Relaying:
    """Circuits that this node relays for other nodes.

    `on` says whether it relays now, and `allowed` whether its owner permits it. `rate` is the limit
    in bytes per second. `places` is the number of reservations, `circuits` the number of open
    circuits, and `strangers` the number of those circuits of which one end is not a member. `bytes`
    counts the relayed bytes since the start. `refused` counts the refused requests by error code.
    """

    on: bool
    allowed: bool
    rate: float
    places: int
    circuits: int
    strangers: int
    bytes: int
    refused: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerView:
    """View of another node of the swarm, as described by its own record and by the link to it.

    `address` is IP:PORT or only an IP address, or None if unknown. `path`, `rtt_ms` and `linked_s`
    are None if there is no link. `token_error` is the mean of |predicted - measured| / measured of
    the seconds that its stages take for a token, over `token_samples` answers of this node.
    """

    peer: str
    version: str
    address: str | None
    path: str | None
    rtt_ms: float | None
    bytes_in: int
    bytes_out: int
    linked_s: float | None
    shards: tuple[ShardView, ...]
    capacity: CapacityView
    token_error: float = 0.0
    token_samples: int = 0


@dataclass(frozen=True, slots=True)
class Peers:
    """Peers that this node knows. `may_invite` says whether this node is allowed to
    invite nodes."""

    peers: tuple[PeerView, ...]
    may_invite: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GetPeers(Ask[Peers, Never]):
    """Request for the other nodes that this node knows."""

    op = "peers"


@dataclass(frozen=True, slots=True)
class PathView:
    """One path of a link. `used` says whether the link sends over this path now."""

    path: str
    medium: str | None
    address: str | None
    rtt_ms: float | None
    used: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkView:
    """A link to a peer.

    `path` is the kind of the path in use, or `none` while the link has no path. Rates are in bytes
    per second, and None if the link is too young for a measurement. `why_relayed` explains why the
    link goes through a relay, and is None if it does not.
    """

    peer: str
    path: str
    medium: str | None
    rtt_ms: float | None
    rate_in: float | None
    rate_out: float | None
    bytes_in: int
    bytes_out: int
    linked_s: float
    paths: tuple[PathView, ...]
    why_relayed: str | None


@dataclass(frozen=True, slots=True)
class LinksView:
    """All links of this node. Their rates are the averages over `span_s` seconds."""

    links: tuple[LinkView, ...]
    span_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GetLinks(Ask[LinksView, Never]):
    """Request for all links of this node. The reply takes a second, in which the rates are
    measured."""

    op = "links"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachabilityView:
    """How peers reach this node, and what it computes with.

    `measured_s` is the time since the latest measurement, in seconds, or None if there was none.
    `observers` is the number of peers that helped, where peers with the same address count once.
    `links` is the number of links. `shares` are the models of other engines that it shares.
    """

    peer: str
    port: int
    verdict: DiagnosisView
    findings: tuple[DiagnosisView, ...]
    measured_s: float | None
    observers: int
    links: int
    machine: MachineView
    shares: tuple[ShareView, ...] = ()
    audience: str = ""


@dataclass(frozen=True, slots=True)
class Measuring:
    """Event that says that a measurement has begun."""

    event: Literal["measuring"] = "measuring"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnose(Ask[ReachabilityView, Measuring]):
    """Request for the reachability and the hardware of this node. With `again`, the reachability is
    measured again."""

    op = "doctor"
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InvitationView:
    """An invitation code for `uses` joins.

    `expires` is in seconds since 1970. `role` is None in an open swarm. `near` says which machines
    can reach `address`: `public` (all), `private` (those on the same network) or `loopback` (this
    machine only).
    """

    code: str
    expires: float
    uses: int
    role: str | None
    address: str
    near: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Invite(Ask[InvitationView, Never]):
    """Request to make an invitation code. If `address` is None, the code has the first address that
    this node publishes."""

    op = "invite"
    uses: Annotated[int, Whole(1, 1000)] = defaults.INVITE_USES
    role: RoleName | None = None
    address: Annotated[str, TextBound(400)] | None = None
