"""Content of a scenario: one frozen dataclass for each table of the file.

Times are in seconds, rates in bytes per second, sizes in bytes and shares from 0 to 1, whatever
unit the file uses. docs/spec/scenario.md describes the format for users; a test compares the two.
"""

# ruff: noqa: RUF009  `knob` makes a field, as `dataclasses.field` does

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...population import latency
from ...population.latency import LatencyMatrix
from ..programs import ProgramSettings
from . import metrics, units
from .actions import Action
from .source import knob

PROGRAMS = ("daemon", "udp-echo", "tcp-transfer", "punch", "idle")


@dataclass(frozen=True, slots=True)
class Sim:
    """`[sim]`: the run."""

    name: str = knob(units.text, says="the name of the experiment")
    duration: float = knob(units.period, says="length of the run, in virtual time")
    seeds: tuple[int, ...] = knob(
        units.seeds, (1,), says='the seeds: 7, "1..50" or a list; `run` takes the first'
    )
    strict: bool = knob(
        units.switch, False, says="run with fixed hash seeds and addresses, in a fresh process"
    )
    trace: bool = knob(units.switch, False, says="keep every packet in trace.msgpack")
    sample: float = knob(units.period, 1.0, says="how often the metrics are sampled")


@dataclass(frozen=True, slots=True)
class WorldTable:
    """`[world]`: the internet, and hosts drawn from a population."""

    hosts: int = knob(units.whole, 0, says="how many hosts of the population")
    population: str = knob(units.text, "", says="the population they are drawn from")
    latency: str = knob(
        units.text, "20ms", says="between two sites: a time, a matrix, or FORM:FILE, below"
    )
    latency_unit: str = knob(
        units.text, "", says="unit of a `planetlab:FILE`: `ms` or `s`",
        known=lambda: latency.UNITS_MS,
    )  # fmt: skip
    relays: int = knob(units.whole, 0, says="public hosts where `punch` hosts meet")
    program: str = knob(
        units.text, "daemon", says="the program of the population's hosts", known=lambda: PROGRAMS
    )
    settings: ProgramSettings | None = knob(units.unread, None, says="settings of that program")
    spread: float = knob(
        units.duration, 0.0, says="programs start at random moments of this first stretch"
    )

    @property
    def latency_seconds(self) -> float | None:
        """Latency in seconds, one way, between any two sites; None if a matrix gives it."""
        return units.duration(self.latency) if self.latency[:1].isdigit() else None


@dataclass(frozen=True, slots=True)
class DirectionTable:
    """Properties of one direction of a `[[link]]`, or of both. None: not given in the file."""

    delay: float | None = knob(units.duration, None, says="one way")
    jitter: float | None = knob(units.duration, None, says="up to this much is added, per packet")
    rate: float | None = knob(units.rate, None, says="bits or bytes per second")
    queue: float | None = knob(
        units.duration, None, says="maximum that waits, as a time at `rate`; the excess is lost"
    )
    loss: float | None = knob(units.share, None, says="share of packets lost")
    burst: dict[str, object] | None = knob(
        units.table, None, says="loss that comes in bursts: {bad, good, loss_bad, loss_good}, below"
    )
    reorder: float | None = knob(
        units.share, None, says="share of packets that come late, after others"
    )
    reorder_delay: float | None = knob(units.period, None, says="so late")
    duplicate: float | None = knob(units.share, None, says="share of packets that come twice")
    mtu: int | None = knob(units.size, None, says="the largest packet")


@dataclass(frozen=True, slots=True)
class LinkTable:
    """`[[link]]`: a named access link.

    `both` applies to both directions. `up` and `down` override it for one direction. `profile` is
    the link profile on which the link is based, or empty.
    """

    id: str
    profile: str
    both: DirectionTable
    up: DirectionTable
    down: DirectionTable
    line: int


@dataclass(frozen=True, slots=True)
class NatTable:
    """`[[nat]]`: a gateway that several hosts can share."""

    id: str = knob(units.text, says="its name")
    kind: str = knob(units.text, says="the kind of gateway")
    behind: str = knob(units.text, "", says="another [[nat]] that it is behind")
    link: str = knob(units.text, "", says="its access link: a profile or a [[link]]")
    site: int = knob(units.whole, 0, says="its row of the latency matrix")
    extra: dict[str, object] = field(default_factory=dict)  # further keys, specific to the kind
    line: int = 0


@dataclass(frozen=True, slots=True)
class HostTable:
    """`[[host]]`: one host, or several with the same properties."""

    name: str = knob(units.text, says="its name; with `count`, a number is added")
    count: int = knob(units.positive, 1, says="how many of them")
    nat: str = knob(units.text, "", says="a kind of gateway for itself, or a [[nat]] to share")
    behind: str = knob(units.text, "", says="a [[nat]] in front of its own gateway")
    link: str = knob(units.text, "", says="its access link: a profile or a [[link]]")
    site: int = knob(units.whole, 0, says="its row of the latency matrix")
    clock: float = knob(units.span, 0.0, says="how far its wall clock is ahead")
    drift: float = knob(units.number, 0.0, says="seconds that its wall clock gains in a second")
    start: float = knob(units.duration, 0.0, says="when its program starts")
    program: str = knob(units.text, "daemon", says="what it runs", known=lambda: PROGRAMS)
    settings: ProgramSettings | None = knob(units.unread, None, says="settings of that program")
    line: int = 0

    def names(self) -> list[str]:
        """Return the names of the hosts that this table makes."""
        if self.count == 1:
            return [self.name]
        return [f"{self.name}{number}" for number in range(1, self.count + 1)]


@dataclass(frozen=True, slots=True)
class GroupTable:
    """`[[group]]`: a name for some of the hosts, which the seed draws."""

    name: str = knob(units.text, says="its name, for steps and other groups")
    of: tuple[str, ...] = knob(units.names, ("all",), says="the hosts that it is drawn from")
    without: tuple[str, ...] = knob(units.names, (), says="leaves these out")
    kind: tuple[str, ...] = knob(
        units.names, (), says="only hosts behind these kinds of gateway, or of these classes"
    )
    share: float | None = knob(units.share, None, says="this share of them, at least one host")
    count: int | None = knob(units.positive, None, says="this number of them")
    link: str = knob(units.text, "", says="replaces their access link: a profile or a [[link]]")
    settings: Mapping[str, object] | None = knob(  # by the name of the settings' field
        units.unread, None, says="replaces these settings of their program"
    )
    line: int = 0


@dataclass(frozen=True, slots=True)
class StepTable:
    """`[[step]]`: an action at a time.

    `at` is in virtual seconds. `name` is the action's name in the file, and `action` one of the
    dataclasses in `actions.py`. `lasts` is the `for` of the step in seconds, or None.
    """

    at: float
    name: str
    action: Action
    lasts: float | None
    line: int


@dataclass(frozen=True, slots=True)
class Churn:
    """`[churn]`: hosts of the population leave and return."""

    model: str = knob(units.text, says="the model of sessions and departures")


@dataclass(frozen=True, slots=True)
class Expect:
    """`[[expect]]`: a metric to compare at the end, or an invariant that has to hold in time.

    Either `metric` or `invariant` is empty. `within` is in seconds. If `after` is empty, it counts
    from the start of the run; otherwise from each step of that name.
    """

    metric: str = ""
    op: str = ""
    value: float = 0.0
    invariant: str = ""
    within: float = 0.0
    after: str = ""
    line: int = 0

    def __str__(self) -> str:
        if self.metric:
            return f"{self.metric} {self.op} {metrics.shown(self.metric, self.value)}"
        after = f" after {self.after}" if self.after else ""
        return f"{self.invariant} within {metrics.seconds(self.within)}{after}"

    def found(self, value: float | None) -> str:
        """Format the value that the run yielded: the metric, or the invariant's time in seconds."""
        if value is None:
            return "nothing measured" if self.metric else "never"
        return metrics.shown(self.metric, value) if self.metric else metrics.seconds(value)


@dataclass(frozen=True, slots=True)
class Scenario:
    """Content of a whole file. `text` is its unchanged text."""

    sim: Sim
    world: WorldTable
    nats: tuple[NatTable, ...]
    links: tuple[LinkTable, ...]
    hosts: tuple[HostTable, ...]
    groups: tuple[GroupTable, ...]
    steps: tuple[StepTable, ...]
    churn: Churn | None
    expects: tuple[Expect, ...]
    text: str
    matrix: LatencyMatrix | None = None  # latency matrix, if [world] names one
    files: dict[str, str] = field(default_factory=dict)  # texts of files in its folder, by name
