"""Metrics of a run: their names and units, and the statistics of distributions.

The name of a count or a share stands alone (`packets.sent`, `punch.success_rate`). The name of a
distribution is followed by a statistic (`rtt.p95`).
"""

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from . import units


@dataclass(frozen=True, slots=True)
class Measure:
    """Description of one metric: a single figure, or a distribution (`spread`) of measurements.

    `read` is the reader in `units.py` for values of this unit. `says` describes the metric.
    `programs` are the programs that yield it. If `programs` is empty, the metric is about the
    network itself.
    """

    read: Callable[[object], float]
    says: str
    programs: tuple[str, ...] = ()
    spread: bool = False


Figure = float | Mapping[str, float] | None
"""A count or a share, or the statistics of a distribution by name. None: nothing was measured."""
Metrics = dict[str, Figure]
"""The figures of a run by metric. `drops` has the number of lost packets for each of `REASONS`."""
_DAEMON = ("daemon",)
MEASURES: Final[dict[str, Measure]] = {
    "packets.sent": Measure(units.whole, "packets put on a wire, by hosts and by gateways"),
    "packets.delivered": Measure(units.whole, "packets that reached a host"),
    "packets.dropped": Measure(units.whole, "packets lost for any reason"),
    "packets.loss": Measure(units.share, "share dropped, of the packets delivered or dropped"),
    "hosts.up": Measure(units.whole, "hosts switched on at the end"),
    "rtt": Measure(units.duration, "round trip of an echo", ("udp-echo",), True),
    "echo.sent": Measure(units.whole, "datagrams to be echoed", ("udp-echo",)),
    "echo.answered": Measure(units.whole, "echoes that came back", ("udp-echo",)),
    "echo.answered_rate": Measure(
        units.share, "share of the datagrams that came back", ("udp-echo",)
    ),
    "throughput": Measure(units.rate, "rate of one transfer", ("tcp-transfer",), True),
    "transfers.finished": Measure(units.whole, "transfers acknowledged", ("tcp-transfer",)),
    "transfers.failed": Measure(units.whole, "transfers cut or refused", ("tcp-transfer",)),
    "punch.attempts": Measure(units.whole, "pairs that tried", ("punch",)),
    "punch.success_rate": Measure(
        units.share, "share of the pairs that heard each other", ("punch",)
    ),
    "punch.time": Measure(units.duration, "time until a pair hears each other", ("punch",), True),
    "boot": Measure(units.duration, "time until a daemon serves its socket", _DAEMON, True),
    "links.count": Measure(units.whole, "pairs of daemons with a link at the end", _DAEMON),
    "links.pairs": Measure(
        units.share, "share of the pairs of running daemons that are linked", _DAEMON
    ),
    "members.known": Measure(
        units.share, "share of the other running daemons that each one knows", _DAEMON
    ),
    "generate.latency": Measure(
        units.duration, "time until a whole answer is generated", _DAEMON, True
    ),
    "generate.success_rate": Measure(
        units.share, "share of the requests that were answered", _DAEMON
    ),
}
INVARIANTS: Final[dict[str, tuple[str, str]]] = {  # (description, program to which it applies)
    "answered": ("every running udp-echo host hears its targets again", "udp-echo"),
    "connected": ("the running daemons' links form one connected graph", "daemon"),
    "linked": ("every running daemon has a link to every other", "daemon"),
    "members": ("every running daemon knows every other", "daemon"),
}
STATISTICS: Final = ("count", "min", "mean", "p5", "p50", "p90", "p95", "p99", "max")
OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
REASONS: Final = {
    "lost": "by chance, on a link with loss",
    "queue": "the queue of a link was full",
    "mtu": "too large for a link",
    "cut": "by a partition or another fault, or a link that was cut",
    "no-route": "for an address that no host has",
    "down": "for a host that was off",
    "buffer": "the buffer of the socket was full",
    "ttl": "passed too many gateways",
    "nat": "a NAT had no mapping for it, or does not let it in",
    "nat-full": "a NAT's table of mappings was full",
    "firewall": "a firewall does not let it pass",
    "closed": "for a port of the gateway that is closed",
}
"""Reasons for which links, faults, subnets, hosts and gateways drop packets, with descriptions."""


def meaning(metric: str) -> str:
    """Return a description of a metric, or an empty text if the metric is unknown."""
    if metric.startswith("drops."):
        return f"packets dropped: {REASONS.get(metric.removeprefix('drops.'), 'another reason')}"
    measure = MEASURES.get(metric)
    return measure.says if measure is not None else ""


def known_metrics() -> list[str]:
    """Return every metric name that an expectation can use, including any statistic."""
    found = [f"drops.{reason}" for reason in REASONS]
    for name, measure in MEASURES.items():
        found += [f"{name}.{stat}" for stat in STATISTICS] if measure.spread else [name]
    return found


def measure_of(metric: str) -> Measure | None:
    """Return the description of a metric, given its full name with any statistic.

    Returns None if the name is unknown, or if it is that of a distribution without a statistic.
    """
    if metric in MEASURES:
        return None if MEASURES[metric].spread else MEASURES[metric]
    name, _, last = metric.rpartition(".")
    if name == "drops" and last in REASONS:
        return Measure(units.whole, f"packets dropped: {last}")
    spread = MEASURES.get(name)
    if spread is None or not spread.spread or last not in STATISTICS:
        return None
    return Measure(units.whole, "how many", spread.programs) if last == "count" else spread


def value_of(metric: str, metrics: Metrics) -> float | None:
    """Look up a metric by its full name, such as `rtt.p95`. Return None if nothing was measured.

    A `drops` metric is 0 if no packet was dropped for this reason.
    """
    name, _, stat = metric.rpartition(".")
    found = metrics[metric] if metric in metrics else metrics.get(name)
    if isinstance(found, Mapping):
        found = found.get(stat, 0 if name == "drops" else None)
    return None if found is None else float(found)


def shown(metric: str, value: float | None) -> str:
    """Format a metric's value with its unit: `41.2 ms`, `3.7 Mbit/s`, `70 %`; `-` for None.

    The value is in seconds, bytes per second, or a share of one, as in the results.
    """
    if value is None:
        return "-"
    measure = measure_of(metric)
    read = None if measure is None else measure.read
    if read is units.duration:
        return seconds(value)
    if read is units.rate:
        return _scaled(8 * value, (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3), ("bit/s", 1)))
    if read is units.share:
        return f"{100 * value:.4g} %"
    return f"{value:.0f}" if float(value).is_integer() or value >= 1000 else f"{value:.4g}"


def unit_of(metric: str) -> str:
    """Return the unit in which results store a metric: `s`, `B/s`, `share` (of one) or `count`.

    Returns an empty text if the metric is unknown.
    """
    measure = measure_of(metric)
    words: dict[object, str] = {units.duration: "s", units.rate: "B/s", units.share: "share"}
    return words.get(measure.read, "count") if measure is not None else ""


def seconds(value: float) -> str:
    """Format a time in seconds with a unit that suits its size: `1.5 s`, `41.2 ms`."""
    return _scaled(value, (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)))


def _scaled(value: float, steps: Sequence[tuple[str, float]]) -> str:
    """Format a value in the largest unit that does not exceed it.

    `steps` are pairs of a unit and its size, from the largest to the smallest.
    """
    fits = ((unit, one) for unit, one in steps if abs(value) >= one)
    unit, one = next(fits, steps[0] if not value else steps[-1])
    return f"{value / one:.4g} {unit}"


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile `share` (0 to 1) of ascending values.

    Interpolates linearly between neighbouring values.
    """
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summary(values: Collection[float]) -> dict[str, float]:
    """Return the statistics of a distribution by name.

    If there are no values, return only the count.
    """
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
