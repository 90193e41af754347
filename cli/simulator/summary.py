"""Summarises a sweep: quantiles of the figures over its seeds, and the failures by seed."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .. import render
from .run import figures_of_time

SHOWN_SEEDS = 50
Line = dict[str, Any]
"""Figures and verdicts of a seed, as `simworker.py` returns them."""


def summary(lines: Sequence[Line]) -> dict[str, Any]:
    """Return quantiles of each figure over the seeds, and the seeds that failed."""
    from ...netsim.scenario.format.metrics import summary as statistics

    reasons = reasons_of(lines)
    values: dict[str, list[float]] = {}
    for line in lines:
        for name, value in flat(line.get("metrics", {}), reasons):
            values.setdefault(name, []).append(value)
    failed = sorted(line["seed"] for line in lines if not line["met"])
    keys = ("count", "min", "p5", "p50", "p95", "max")
    return {
        "seeds": len(lines),
        "failed": failed,
        "unmet": _unmet(lines),
        "ended": [
            {"seed": line["seed"], "why": line["ended"]}
            for line in sorted(lines, key=lambda line: int(line["seed"]))
            if line["ended"] != "done"
        ],
        "metrics": {
            name: {key: found[key] for key in keys}
            for name, found in ((name, statistics(items)) for name, items in values.items())
        },
    }


def _unmet(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return each unmet expectation with its line, its seeds and the values found."""
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for line in sorted(lines, key=lambda line: int(line["seed"])):
        for item in line.get("verdicts", ()):
            if not item["met"]:
                key = item.get("line", 0), item["text"]
                empty = {"expectation": key[1], "line": key[0], "seeds": [], "found": []}
                entry = found.setdefault(key, empty)
                entry["seeds"].append(line["seed"])
                entry["found"].append(item.get("shown", item["found"]))
    return [found[key] for key in sorted(found)]


def reasons_of(lines: Sequence[Line]) -> list[str]:
    """Return the reasons for which packets were dropped in any of the seeds."""
    return sorted({key for line in lines for key in line.get("metrics", {}).get("drops", {})})


def flat(metrics: dict[str, Any], reasons: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yield figures by name; of distributions, the median and the 95th percentile."""
    for name, value in metrics.items():
        if name == "drops":
            yield from ((f"drops.{reason}", value.get(reason, 0)) for reason in reasons)
        elif isinstance(value, dict):
            yield from ((f"{name}.{key}", value[key]) for key in ("p50", "p95") if key in value)
        elif value is not None:
            yield name, value


def print_line(line: Line, done: int, total: int, say: Callable[[str], None]) -> None:
    """Print a line about a seed that has ended."""
    failed = [item["text"] for item in line.get("verdicts", ()) if not item["met"]]
    ended = line["ended"].removeprefix("failed: ")
    why = "" if ended == "done" else render.safe(ended, 200)
    word = "met" if line["met"] else "failed"
    real = figures_of_time(line["virtual"], line["real"]) if "virtual" in line else ""
    say("  ".join(filter(None, (f"{done}/{total}", f"seed {line['seed']}", word, real,
                                ", ".join(failed), why))))  # fmt: skip


def print_summary(found: dict[str, Any]) -> str:
    """Format the summary for a person."""
    from ...netsim.scenario.format.metrics import shown

    rows = [
        [name, *(shown(name, values[key]) for key in ("p5", "p50", "p95"))]
        for name, values in found["metrics"].items()
    ]
    text = render.table(["over the seeds", "p5", "p50", "p95"], rows) + "\n\n" if rows else ""
    met = found["seeds"] - len(found["failed"])
    text += f"{met} of {found['seeds']} seeds met every expectation"
    if found["failed"]:
        text += f"; failed: {' '.join(map(str, found['failed'][:SHOWN_SEEDS]))}"
    return "\n".join((text, *_failures(found)))


def _failures(found: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each unmet expectation with its seeds, and for each run that ended early."""
    for item in found["unmet"]:
        where = f" (line {item['line']})" if item["line"] else ""
        seeds = " ".join(map(str, item["seeds"][:SHOWN_SEEDS]))
        more = f" and {len(item['seeds']) - SHOWN_SEEDS} more" * (len(item["seeds"]) > SHOWN_SEEDS)
        plural = "seeds" if len(item["seeds"]) > 1 else "seed"
        first = f"seed {item['seeds'][0]} has {item['found'][0]}"
        yield f"failed  {item['expectation']}{where}: {plural} {seeds}{more}; {first}"
    for item in found["ended"][:SHOWN_SEEDS]:
        why = render.safe(item["why"].removeprefix("failed: "), 200)
        yield f"failed  seed {item['seed']}: {why}"
