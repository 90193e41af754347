"""Messages about one node as a whole: whether it runs, and its state."""

from dataclasses import dataclass
from typing import Never

from .encoding import Ask
from .machine import CapacityView, DiskView, MachineView, Memory
from .models import ModelEntry, OfferView
from .reach import DiagnosisView, HeldRelay, Relaying
from .serving import NO_ANSWERS, AnswersView, ServingView
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
class GroupPlace:
    """This node's role in its group, and the number of members. `role` is None if the node is not a
    member."""

    role: str | None
    members: int


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
    answers: AnswersView = NO_ANSWERS
    work: WorkView = WorkView(doing=(), jobs=0, rows=0, rows_done=0, tunings=(), tuned_for=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GetStatus(Ask[Status, Never]):
    """Request for the state of this node."""

    op = "status"
