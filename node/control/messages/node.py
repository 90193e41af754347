"""Messages about this node as a whole: what it is, what it serves, and how peers reach it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Never

from ... import defaults
from .encoding import Ask, Text, Whole
from .group import RoleName
from .models import ModelEntry


@dataclass(frozen=True, slots=True)
class Process:
    """The daemon's process, and its version."""

    pid: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping(Ask[Process, Never]):
    """Ask whether the daemon answers."""

    op = "ping"


@dataclass(frozen=True, slots=True)
class Stopped:
    """The process that ends within 10 seconds."""

    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop(Ask[Stopped, Never]):
    """Stop the daemon."""

    op = "stop"


@dataclass(frozen=True, slots=True)
class Finding:
    """A result of the diagnosis. `hint`: what the owner could change, or None."""

    code: str
    sentence: str
    hint: str | None


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """The role of this node in its group, and the number of members."""

    role: str | None
    members: int


@dataclass(frozen=True, slots=True)
class HeldRelay:
    """A relay at which this node has a reservation."""

    peer: str
    rtt_ms: float
    expires_s: float


@dataclass(frozen=True, slots=True)
class Relaying:
    """Traffic that this node relays for others. `rate` is in bytes per second, `bytes` counts since
    the start, `strangers` counts circuits of strangers, `refused` counts by code."""

    on: bool
    allowed: bool
    rate: float
    places: int
    circuits: int
    strangers: int
    bytes: int
    refused: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ShardView:
    """Layers that a node serves. `layers` is `A:B`, B exclusive."""

    model: str
    root: str
    layers: str
    embedding: bool
    head: bool
    dtype: str
    kv_tokens_free: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingView:
    """The layers that a node serves, and its progress towards serving.

    `room_tokens`: tokens of prompt and answer that another request of this node can take now.
    """

    phase: str
    state: str
    why: str | None = None
    done_bytes: int
    total_bytes: int
    room_tokens: int | None = None
    shard: ShardView | None


@dataclass(frozen=True, slots=True)
class CapacityView:
    """A measured machine, in bytes, flop/s and byte/s."""

    cores: int
    memory_bytes: int
    engine: bool
    flops: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """The resident memory of one process."""

    name: str
    pid: int
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory that the owner offers, and how much of it layers and KV caches use."""

    offered_bytes: int
    loaded_bytes: int
    processes: tuple[ProcessMemory, ...]


@dataclass(frozen=True, slots=True)
class Disk:
    """The disk use and limit of models and blobs. `set`: the owner set the limit; None: none."""

    used_bytes: int
    limit_bytes: int | None
    set: bool


@dataclass(frozen=True, slots=True)
class Sessions:
    """Open sessions of this node's stage and of its gateway."""

    stage: int
    gateway: int


@dataclass(frozen=True, slots=True)
class Stalls:
    """Steps of a task that held the event loop for over 50 ms."""

    count: int
    worst_ms: float | None
    task: str | None


@dataclass(frozen=True, slots=True)
class ConditionView:
    """A problem that the owner should know."""

    name: str
    sentence: str
    hint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What `shoal status` shows. `peers` counts other nodes."""

    peer: str
    version: str
    data: str
    pid: int
    uptime_s: float
    addresses: tuple[str, ...]
    private: bool
    group: GroupPlace | None
    reach: Finding
    relays: tuple[HeldRelay, ...]
    relaying: Relaying
    peers: int
    serving: ServingView
    models: tuple[ModelEntry, ...]
    capacity: CapacityView
    memory: Memory
    disk: Disk
    sessions: Sessions
    stalls: Stalls
    health: tuple[ConditionView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GetStatus(Ask[Status, Never]):
    """Ask for the state of this node."""

    op = "status"


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerView:
    """A node of the swarm, by its own record and by the link to it.

    `address` is IP:PORT or only an IP address, None if it is unknown.
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


@dataclass(frozen=True, slots=True)
class Peers:
    """The nodes that this one knows. `may_invite`: this node may invite others."""

    peers: tuple[PeerView, ...]
    may_invite: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GetPeers(Ask[Peers, Never]):
    """Ask for the nodes that this one knows."""

    op = "peers"


@dataclass(frozen=True, slots=True)
class PathView:
    """One path of a link."""

    path: str
    medium: str | None
    address: str | None
    rtt_ms: float | None
    used: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkView:
    """A link. Rates are in bytes per second, None for a link that is too young to have one.

    `path` is `none` while no path carries the link. `why_relayed` is None unless it is relayed.
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
class Links:
    """Every link, with rates over `span_s` seconds."""

    links: tuple[LinkView, ...]
    span_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GetLinks(Ask[Links, Never]):
    """Ask for every link. The reply comes after a second."""

    op = "links"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reachability:
    """How peers reach this node. `measured_s`: seconds since the measurement, or None.

    `observers` counts the helping peers by address.
    """

    peer: str
    port: int
    verdict: Finding
    findings: tuple[Finding, ...]
    measured_s: float | None
    observers: int
    links: int


@dataclass(frozen=True, slots=True)
class Measuring:
    """A measurement has begun."""

    event: Literal["measuring"] = "measuring"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnose(Ask[Reachability, Measuring]):
    """Ask how peers reach this node. `again`: measure again."""

    op = "doctor"
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """A code for joining. `expires` is in seconds since 1970; `role` is None in an open swarm.

    `near` says which machines can reach `address`: `public`, `private` or `loopback`.
    """

    code: str
    expires: float
    uses: int
    role: str | None
    address: str
    near: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Invite(Ask[Invitation, Never]):
    """Ask for a code. Without an address, this node's first one counts."""

    op = "invite"
    uses: Annotated[int, Whole(1, 1000)] = defaults.INVITE_USES
    role: RoleName | None = None
    address: Annotated[str, Text(400)] | None = None
