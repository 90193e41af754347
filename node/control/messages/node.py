"""Messages about one node as a whole: its state, what it serves, and how peers reach it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Never

from ... import defaults
from .encoding import Ask, TextBound, Whole
from .group import RoleName
from .models import ModelEntry, OfferView
from .sharing import ShareView


@dataclass(frozen=True, slots=True)
class Process:
    """Process id and version of the daemon."""

    pid: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping(Ask[Process, Never]):
    """Request that tests whether the daemon replies."""

    op = "ping"


@dataclass(frozen=True, slots=True)
class Stopped:
    """Id of the daemon's process, which ends within 10 seconds."""

    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop(Ask[Stopped, Never]):
    """Request to stop the daemon."""

    op = "stop"


@dataclass(frozen=True, slots=True)
class DiagnosisView:
    """One result of the diagnosis. `hint` says what the owner can change, or is None."""

    code: str
    sentence: str
    hint: str | None


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """This node's role in its group, and the number of members. `role` is None if the node is not a
    member."""

    role: str | None
    members: int


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


@dataclass(frozen=True, slots=True)
class ShardView:
    """Layers that a node serves.

    `layers` has the form `A:B`, where B is exclusive. `embedding` and `head` say whether the node
    also computes the embedding and the output head. `kv_tokens_free` is the number of tokens for
    which it has free KV memory. Shards of one `exactness` compute the same bits from the same
    input.
    """

    model: str
    root: str
    layers: str
    embedding: bool
    head: bool
    dtype: str
    kv_tokens_free: int
    exactness: str


@dataclass(frozen=True, slots=True)
class PredictionView:
    """How fast a node predicts to be, and how far its predictions are from what it measures.

    `tokens_per_s` is for one request with a short text. `error` is the mean of |predicted -
    measured| / measured of steps, and `samples` the number of measured ones.
    """

    tokens_per_s: float
    error: float
    samples: int


@dataclass(frozen=True, slots=True)
class AnswersView:
    """How far predictions about this node's answers are from what it measures: the mean of
    |predicted - measured| / measured, for the time until the first token and for each further
    one, and the number of measured answers."""

    first_error: float
    first_samples: int
    token_error: float
    token_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingView:
    """The layers that a node serves, or its progress until it serves some.

    `why` explains the choice of the layers. `room_tokens` is the number of tokens, of prompt and
    answer together, that one more request of this node can have now. `predicted` is None if the
    node serves nothing, or could not measure its speed. `further` are the parts of the model that
    further devices have, and `predicted` is for `shard` alone.
    """

    phase: str
    state: str
    why: str | None = None
    done_bytes: int
    total_bytes: int
    room_tokens: int | None = None
    shard: ShardView | None
    further: tuple[ShardView, ...] = ()
    predicted: PredictionView | None = None


@dataclass(frozen=True, slots=True)
class SpeedView:
    """Measured speed of a device. Rates are in bytes per second (`bandwidth`) and operations per
    second. `batch` is the number of rows up to which a step takes hardly longer than with one."""

    bandwidth: float
    float32: float
    bfloat16: float
    batch: int


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """A device on which a node computes. `speed` is None if it is unknown."""

    name: str
    instructions: str
    memory_bytes: int
    speed: SpeedView | None


@dataclass(frozen=True, slots=True)
class CapacityView:
    """The capacity that a node publishes. `load_rate` is the rate at which its disk reads, in bytes
    per second, or None if unknown. `engine` says whether the machine can compute layers."""

    cores: int
    memory_bytes: int
    engine: bool
    load_rate: float | None
    devices: tuple[PublishedDevice, ...]


@dataclass(frozen=True, slots=True)
class DeviceView:
    """A device of this machine. `name` is torch's, or None for a graphics card that torch does not
    see. `used` says whether the engine computes on it. `unused` says why it cannot, and `hint` what
    its owner can do; both are None if it can. `speed` is None if it is unknown."""

    name: str | None
    label: str
    instructions: str
    memory_bytes: int
    used: bool
    unused: str | None
    hint: str | None
    speed: SpeedView | None


@dataclass(frozen=True, slots=True)
class KernelsView:
    """Native kernels of the CPU for one set of instructions. `unused` says why they are not in use,
    and `beside` which products torch computes beside them and why; each is None if there is
    nothing to say."""

    name: str
    unused: str | None
    beside: str | None


@dataclass(frozen=True, slots=True)
class MachineView:
    """The hardware of this node. `progress` is `measured`, `measuring`, `failed` or `off`, and
    `failure` says why it failed, or is None. `load_rate` is as in the capacity. `kernels` begin
    with those in use, and are empty until the machine is measured."""

    progress: str
    failure: str | None
    load_rate: float | None
    devices: tuple[DeviceView, ...]
    kernels: tuple[KernelsView, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Resident memory of one process, in bytes."""

    name: str
    pid: int
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory that the owner offers, and how much of that is reserved for layers and KV
    caches."""

    offered_bytes: int
    loaded_bytes: int
    processes: tuple[ProcessMemory, ...]


@dataclass(frozen=True, slots=True)
class DiskView:
    """Disk use of models and blobs, and its limit, in bytes.

    `set` says whether the owner chose the limit. `limit_bytes` is None if there is no limit.
    """

    used_bytes: int
    limit_bytes: int | None
    set: bool


@dataclass(frozen=True, slots=True)
class SessionsView:
    """Number of open sessions at this node's stage, and at its gateway."""

    stage: int
    gateway: int


@dataclass(frozen=True, slots=True)
class Stalls:
    """Number of steps of tasks that blocked the event loop for more than 50 ms. `worst_ms` and
    `task` describe the longest one, and are None if there was none."""

    count: int
    worst_ms: float | None
    task: str | None


@dataclass(frozen=True, slots=True)
class ConditionView:
    """A problem that the owner of the node should know of."""

    name: str
    sentence: str
    hint: str | None


@dataclass(frozen=True, slots=True)
class DoneHere:
    """A job of which this node does pieces now."""

    job: str
    kind: str
    author: str
    pieces: int


@dataclass(frozen=True, slots=True)
class TuningHere:
    """A fine-tuning of this node that is not over. `state` is `queued`, `running` or `waiting`."""

    id: str
    name: str
    state: str
    step: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkView:
    """Work at a node that goes on without its client.

    `doing` are the jobs of which it does pieces now. `jobs` of its own are not done; they have
    `rows`, of which `rows_done` have a result here. `tunings` are its own fine-tunings, and
    `tuned_for` is the number of fine-tunings that use its layers.
    """

    doing: tuple[DoneHere, ...]
    jobs: int
    rows: int
    rows_done: int
    tunings: tuple[TuningHere, ...]
    tuned_for: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """State of a node, as `shoal status` shows it. `peers` is the number of other live members.

    `beside` are models that the node serves in addition to the first one. `shares` are models of
    other engines that it shares with `audience`, and `shared` all those that live members share.
    """

    peer: str
    version: str
    data: str
    pid: int
    uptime_s: float
    addresses: tuple[str, ...]
    private: bool
    group: GroupPlace | None
    reach: DiagnosisView
    relays: tuple[HeldRelay, ...]
    relaying: Relaying
    peers: int
    serving: ServingView
    beside: tuple[ServingView, ...]
    models: tuple[ModelEntry, ...]
    capacity: CapacityView
    machine: MachineView
    memory: Memory
    disk: DiskView
    sessions: SessionsView
    stalls: Stalls
    health: tuple[ConditionView, ...]
    shares: tuple[ShareView, ...] = ()
    audience: str = ""
    shared: tuple[OfferView, ...] = ()
    answers: AnswersView = AnswersView(0.0, 0, 0.0, 0)
    work: WorkView = WorkView(doing=(), jobs=0, rows=0, rows_done=0, tunings=(), tuned_for=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GetStatus(Ask[Status, Never]):
    """Request for the state of this node."""

    op = "status"


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
