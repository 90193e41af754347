"""The names of what can be measured, their units, and the arithmetic of samples.

A name is a count or a share (`packets.sent`, `punch.success_rate`), or a distribution with a
statistic (`rtt.p95`).
"""

import math
import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from . import units


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure, or one distribution: its unit, and the programs that yield it."""

    read: Callable[[Any], float]
    says: str
    programs: tuple[str, ...] = ()  # none: the network itself
    spread: bool = False  # a distribution


_DAEMON = ("daemon",)
MEASURES: Final[dict[str, Measure]] = {
    "packets.sent": Measure(units.whole, "packets put on a wire"),
    "packets.delivered": Measure(units.whole, "packets that reached a host"),
    "packets.dropped": Measure(units.whole, "packets lost for any reason"),
    "packets.loss": Measure(units.share, "dropped of sent"),
    "hosts.up": Measure(units.whole, "hosts switched on at the end"),
    "rtt": Measure(units.duration, "there and back", ("udp-echo",), True),
    "echo.sent": Measure(units.whole, "datagrams to be echoed", ("udp-echo",)),
    "echo.answered": Measure(units.whole, "echoes that came back", ("udp-echo",)),
    "echo.answered_rate": Measure(units.share, "answered of sent", ("udp-echo",)),
    "throughput": Measure(units.rate, "of one transfer", ("tcp-transfer",), True),
    "transfers.finished": Measure(units.whole, "transfers acknowledged", ("tcp-transfer",)),
    "transfers.failed": Measure(units.whole, "transfers cut or refused", ("tcp-transfer",)),
    "punch.attempts": Measure(units.whole, "pairs that tried", ("punch",)),
    "punch.success_rate": Measure(units.share, "pairs that heard each other", ("punch",)),
    "punch.time": Measure(units.duration, "until a pair hears each other", ("punch",), True),
    "boot": Measure(units.duration, "until a daemon serves its socket", _DAEMON, True),
    "links.count": Measure(units.whole, "pairs linked at the end", _DAEMON),
    "links.pairs": Measure(units.share, "of the pairs of running daemons", _DAEMON),
    "members.known": Measure(units.share, "of whom each daemon should know", _DAEMON),
    "generate.latency": Measure(units.duration, "of a whole answer", _DAEMON, True),
    "generate.success_rate": Measure(units.share, "of the requests", _DAEMON),
}
INVARIANTS: Final[dict[str, tuple[str, str]]] = {  # what it says, which program it is of
    "answered": ("every running udp-echo host hears its targets again", "udp-echo"),
    "connected": ("the running daemons' links make one piece", "daemon"),
    "linked": ("every running daemon has a link to every other", "daemon"),
    "members": ("every running daemon knows every other", "daemon"),
}
STATISTICS: Final = ("count", "min", "mean", "p5", "p50", "p90", "p95", "p99", "max")
OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
REASONS: Final = (
    "lost", "queue", "mtu", "cut", "no-route", "down", "buffer", "ttl",
    "nat", "nat-full", "firewall", "closed",
)  # fmt: skip
"""Why packets are dropped: links and faults, segments and hosts, gateways."""


def known_metrics() -> list[str]:
    """Every name that an expectation can use."""
    found = [f"drops.{reason}" for reason in REASONS]
    for name, measure in MEASURES.items():
        found += [f"{name}.{stat}" for stat in STATISTICS] if measure.spread else [name]
    return found


def measure_of(metric: str) -> Measure | None:
    """What a metric's name means; None for one that is not known."""
    if metric in MEASURES:
        return None if MEASURES[metric].spread else MEASURES[metric]
    name, _, last = metric.rpartition(".")
    if name == "drops" and last in REASONS:
        return Measure(units.whole, f"packets dropped: {last}")
    spread = MEASURES.get(name)
    if spread is None or not spread.spread or last not in STATISTICS:
        return None
    return Measure(units.whole, "how many", spread.programs) if last == "count" else spread


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of ascending values, with linear interpolation between neighbours."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summary(values: Collection[float]) -> dict[str, float]:
    """The statistics of a distribution; of none, only that there is none."""
    if not values:
        return {"count": 0}
    ordered = sorted(values)
    found = {
        "count": len(ordered),
        "min": ordered[0],
        "mean": math.fsum(ordered) / len(ordered),
        "max": ordered[-1],
    }
    for stat in STATISTICS:
        if stat[1:].isdigit():
            found[stat] = quantile(ordered, int(stat[1:]) / 100)
    return found
