"""Access links by name, such as `link("cable")` or `link("dsl+bad-wifi")`.

The figures and their sources are in `links.toml`.
"""

from dataclasses import replace
from functools import cache
from typing import Literal, NotRequired, TypedDict

from ..errors import BadScenario
from ..network.link import Burst, Cycle, CyclePhase, LinkSpec, PipeSpec
from .data import table, unknown

_FILE = "links.toml"


class PhaseEntry(TypedDict):
    """A phase of a link's cycle, in the data file."""

    start_s: float
    length_s: float
    latency_ms: float
    loss_percent: NotRequired[float]
    fades: NotRequired[bool]


class CycleEntry(TypedDict):
    """The cycle of a link that changes periodically, in the data file."""

    period_s: float
    phases: list[PhaseEntry]


class LinkEntry(TypedDict):
    """A link profile in the data file."""

    latency_ms: float
    jitter_ms: float
    up_mbit: float
    down_mbit: float
    buffer_ms: float
    loss_percent: float
    burst: NotRequired[dict[str, float]]
    cycle: NotRequired[CycleEntry]
    overlay: NotRequired[bool]


def names() -> list[str]:
    """Return the names of the profiles that can be used alone."""
    return [name for name, entry in table(_FILE).items() if not entry.get("overlay")]


def overlays() -> list[str]:
    """Return the names of the overlays, which are added to another profile with a `+`."""
    return [name for name, entry in table(_FILE).items() if entry.get("overlay")]


@cache
def link(name: str) -> LinkSpec:
    """Return an access link by its name.

    Raises BadScenario, with a hint at the nearest name, if a profile or overlay is unknown.
    """
    base, *above = name.split("+")
    if base not in names():
        raise unknown("link profile", base, names())
    spec = _spec(table(_FILE)[base])
    for over in above:
        if over not in overlays():
            raise unknown("link overlay", over, overlays())
        top = _spec(table(_FILE)[over])
        spec = LinkSpec(_overlaid(spec.up, top.up), _overlaid(spec.down, top.down))
    return spec


def _spec(entry: LinkEntry) -> LinkSpec:
    """Convert an entry of the data file to a specification of both directions."""
    return LinkSpec(up=_pipe(entry, "up_mbit"), down=_pipe(entry, "down_mbit"))


def _pipe(entry: LinkEntry, rate: Literal["up_mbit", "down_mbit"]) -> PipeSpec:
    """Convert one direction of an entry. `rate` is the key of the direction's rate.

    Raises BadScenario if the jitter exceeds the latency.
    """
    latency, jitter = entry["latency_ms"] / 1000, entry["jitter_ms"] / 1000
    if jitter > latency:
        raise BadScenario(f"a jitter of {jitter:g} s is more than the latency {latency:g} s")
    return PipeSpec(
        delay=latency - jitter,
        jitter=2 * jitter,
        rate=entry[rate] * 1e6 / 8,
        queue=entry["buffer_ms"] / 1000,
        loss=entry["loss_percent"] / 100,
        burst=_burst(entry.get("burst")),
        cycle=_cycle(entry.get("cycle")),
    )


def _burst(entry: dict[str, float] | None) -> Burst | None:
    """Convert the loss in bursts of an entry, if it has any."""
    if entry is None:
        return None
    return Burst(entry["bad"], entry["good"], entry["loss_percent"] / 100)


def _cycle(entry: CycleEntry | None) -> Cycle | None:
    """Convert the cycle of an entry, if it has one."""
    if entry is None:
        return None
    phases = tuple(
        CyclePhase(
            phase["start_s"],
            phase["length_s"],
            phase["latency_ms"] / 1000,
            phase.get("loss_percent", 0) / 100,
            phase.get("fades", False),
        )
        for phase in entry["phases"]
    )
    return Cycle(entry["period_s"], phases)


def _overlaid(base: PipeSpec, over: PipeSpec) -> PipeSpec:
    """Combine two links in series into one, with the rate and the buffer of the slower link.

    If both links lose packets in bursts, the result has the bursts that lose more in the long run.
    """
    assert base.rate is not None and over.rate is not None
    slower = over if over.rate < base.rate else base
    return replace(
        base,
        delay=base.delay + over.delay,
        jitter=base.jitter + over.jitter,
        rate=slower.rate,
        queue=slower.queue,
        loss=1 - (1 - base.loss) * (1 - over.loss),
        burst=max((item for item in (base.burst, over.burst) if item), key=_weight, default=None),
    )


def _weight(burst: Burst) -> float:
    """Return the share of packets that the bursts lose in the long run."""
    return burst.loss


@cache
def overlay(name: str) -> LinkSpec:
    """Return an overlay alone: the Wi-Fi link between a host and its home gateway.

    Raises BadScenario if the overlay is unknown.
    """
    if name not in overlays():
        raise unknown("link overlay", name, overlays())
    return _spec(table(_FILE)[name])
