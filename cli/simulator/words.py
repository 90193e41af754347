"""Formats the results of `shoal sim` as text."""

import sys
from collections.abc import Iterator, Mapping
from typing import Final

from ...netsim.netns.calibrate import Calibration
from ...netsim.runs.replay import PacketComparison, Replay
from ...netsim.runs.summary import SweepSummary
from ...netsim.runs.sweep import SweepProgress
from ...netsim.scenario.format.metrics import Figure, shown
from ...netsim.scenario.result import RunResult
from .. import render

SHOWN_SEEDS: Final = 50  # most seeds in one line, and most lines about runs that ended early


def figures_of_time(virtual: float, real: float) -> str:
    """Format virtual and real time, both in seconds: `virtual 60.0 s, real 1.2 s, 50 times as
    fast`."""
    fast = virtual / real if real > 0 else 0.0
    ratio = f", {f'{fast:,.0f}' if fast >= 100 else f'{fast:.3g}'} times as fast" if fast else ""
    return f"virtual {virtual:.1f} s, real {real:.1f} s{ratio}"


def result(found: RunResult) -> str:
    """Format the figures of a run, and whether each expectation was met."""
    name = render.safe(found.name)
    if found.digest:
        times = figures_of_time(found.virtual, found.real)
        head = f"{name}, seed {found.seed}: {times}\n{found.records} records, digest {found.digest}"
    else:
        head = f"{name}: {found.real:.1f} s in this machine's kernel"
    figures = render.fields([(name, _figure(name, one)) for name, one in found.metrics.items()])
    lines = [head, "", figures, *([""] if found.verdicts else [])]
    for verdict in found.verdicts:
        word, colour = ("met", "green") if verdict.met else ("failed", "red")
        marked = render.coloured(f"{word:<6}", colour, sys.stdout)
        lines.append(f"{marked}  {verdict.text}  ({verdict.shown})")
    return "\n".join(lines)


def _figure(name: str, value: Figure) -> str:
    if not isinstance(value, Mapping):
        return shown(name, value)
    keys = tuple(value) if name == "drops" else ("count", "p5", "p50", "p95", "max")
    found = [f"{key} {shown(f'{name}.{key}', value[key])}" for key in keys if key in value]
    return "  ".join(found) or "none"


def progress(now: SweepProgress) -> str:
    """Format the progress of a sweep, with the result of the run that has just finished."""
    if now.line is None:
        return f"{now.done} of {now.total} seeds are already done"
    line = now.line
    failed = [item["text"] for item in line.get("verdicts", ()) if not item["met"]]
    ended = line["ended"].removeprefix("failed: ")
    why = "" if ended == "done" else render.safe(ended, 200)
    word = "met" if line["met"] else "failed"
    real = figures_of_time(line["virtual"], line["real"]) if "virtual" in line else ""
    parts = (f"{now.done}/{now.total}", f"seed {line['seed']}", word, real, ", ".join(failed), why)
    return "  ".join(filter(None, parts))


def summary(found: SweepSummary) -> str:
    """Format the summary of a sweep."""
    rows = [
        [name, *(shown(name, values[key]) for key in ("p5", "p50", "p95"))]
        for name, values in found.metrics.items()
    ]
    text = render.table(["over the seeds", "p5", "p50", "p95"], rows) + "\n\n" if rows else ""
    text += f"{found.seeds - len(found.failed)} of {found.seeds} seeds met every expectation"
    if found.failed:
        text += f"; failed: {' '.join(map(str, found.failed[:SHOWN_SEEDS]))}"
    return "\n".join((text, *_failures(found)))


def _failures(found: SweepSummary) -> Iterator[str]:
    """Yield one line for each expectation that was not met, with its seeds, and one for each run
    that ended early."""
    for item in found.unmet:
        where = f" (line {item.line})" if item.line else ""
        seeds = " ".join(map(str, item.seeds[:SHOWN_SEEDS]))
        more = f" and {len(item.seeds) - SHOWN_SEEDS} more" * (len(item.seeds) > SHOWN_SEEDS)
        plural = "seeds" if len(item.seeds) > 1 else "seed"
        first = f"seed {item.seeds[0]} has {item.found[0]}"
        yield f"failed  {item.expectation}{where}: {plural} {seeds}{more}; {first}"
    for one in found.ended[:SHOWN_SEEDS]:
        why = render.safe(one.why.removeprefix("failed: "), 200)
        yield f"failed  seed {one.seed}: {why}"


def comparison(found: PacketComparison) -> str:
    """Format the comparison of two runs."""
    lines = [found.message]
    if found.at is not None:
        lines.append(render.safe_text(found.at.difference))
    return "\n".join(lines)


def replay(found: Replay) -> str:
    """Format the comparison of a run with its repetition, and the versions that have changed
    since."""
    lines = [f"seed {found.seed}, digest {found.digest}", comparison(found.comparison)]
    for name, (old, new) in found.other_versions.items():
        lines.append(f"note: {name} was {old} then, and is {new} now")
    return "\n".join(lines)


def calibration(found: Calibration) -> str:
    """Format the comparison of simulated NATs with real ones."""
    lines = [render.safe(line, 300) for line in found.differences]
    lines.append(
        f"{len(found.differences)} differences in {found.probes} answers of "
        f"{len(found.kinds)} kinds; this machine's kernel: {found.kernel}"
    )
    return "\n".join(lines)
