"""Summary of a sweep: quantiles of the figures over its seeds, and the failures by seed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ..scenario.format.metrics import Metrics, summary
from .sweepfile import SeedLine

# Statistics over the seeds that a summary has for each figure.
_STATISTICS: Final = ("count", "min", "p5", "p50", "p95", "max")


@dataclass(frozen=True, slots=True)
class Unmet:
    """An expectation that some seeds did not meet.

    `line` is its line in the scenario's file, or 0 if unknown. `found` has the value of each seed
    in `seeds`.
    """

    expectation: str
    line: int
    seeds: list[int] = field(default_factory=list)
    found: list[str | float | None] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EndedEarly:
    """A seed whose run ended early, with the reason."""

    seed: int
    why: str


@dataclass(frozen=True, slots=True)
class SweepSummary:
    """Figures over all seeds of a sweep, and its failures. These are the fields of sweep.json."""

    seeds: int
    failed: list[int]
    unmet: list[Unmet]
    ended: list[EndedEarly]
    metrics: dict[str, dict[str, float]]  # statistics over the seeds, by figure


def summarise(lines: Sequence[SeedLine]) -> SweepSummary:
    """Compute statistics of each figure over the seeds, and list the seeds that failed."""
    lines = sorted(lines, key=lambda line: line["seed"])
    reasons = reasons_of(lines)
    values: dict[str, list[float]] = {}
    for line in lines:
        for name, value in flat(line.get("metrics", {}), reasons):
            values.setdefault(name, []).append(value)
    statistics = {name: summary(items) for name, items in values.items()}
    return SweepSummary(
        seeds=len(lines),
        failed=[line["seed"] for line in lines if not line["met"]],
        unmet=_unmet(lines),
        ended=[
            EndedEarly(line["seed"], line["ended"]) for line in lines if line["ended"] != "done"
        ],
        metrics={
            name: {key: found[key] for key in _STATISTICS} for name, found in statistics.items()
        },
    )


def _unmet(lines: Sequence[SeedLine]) -> list[Unmet]:
    """List the expectations that any seed did not meet, in the order of their lines in the file."""
    found: dict[tuple[int, str], Unmet] = {}
    for line in lines:
        for item in line.get("verdicts", ()):
            if not item["met"]:
                key = item.get("line", 0), item["text"]
                entry = found.setdefault(key, Unmet(key[1], key[0]))
                entry.seeds.append(line["seed"])
                entry.found.append(item.get("shown", item["found"]))
    return [found[key] for key in sorted(found)]


def reasons_of(lines: Sequence[SeedLine]) -> list[str]:
    """Return the reasons for which packets were dropped with any of the seeds, sorted."""
    return sorted({key for line in lines for key in _drops(line.get("metrics", {}))})


def _drops(metrics: Metrics) -> Mapping[str, float]:
    """Return the number of dropped packets by reason; empty if unknown."""
    drops = metrics.get("drops")
    return drops if isinstance(drops, Mapping) else {}


def flat(metrics: Metrics, reasons: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yield (name, value) of each figure; for a distribution, its median and 95th percentile.

    The number of dropped packets is yielded for each of `reasons`, even if it is 0, so that all
    seeds have the same figures.
    """
    for name, value in metrics.items():
        if name == "drops":
            drops = _drops(metrics)
            yield from ((f"drops.{reason}", drops.get(reason, 0)) for reason in reasons)
        elif isinstance(value, Mapping):
            yield from ((f"{name}.{key}", value[key]) for key in ("p50", "p95") if key in value)
        elif value is not None:
            yield name, value
