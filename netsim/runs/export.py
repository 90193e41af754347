"""Writes the figures of a run or a sweep as CSV files, for `shoal sim export`."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from ..scenario.format.metrics import unit_of
from ..scenario.result import RunResult
from .folder import HOSTS, METRICS, RESULT, SAMPLES, SERIES, RunFolder, write_text
from .summary import flat, reasons_of
from .sweepfile import LINES, SeedLine, lines_of

SWEEP: Final = "sweep.csv"
Row = Sequence[str | float | None]


def export(folder: Path) -> list[Path]:
    """Write the CSV files of a run or a sweep into its folder. Return their paths.

    Raises RunFailed if the folder has no readable result, or a file cannot be written.
    """
    if (folder / LINES).is_file() and not (folder / RESULT).is_file():
        return [_write(folder / SWEEP, _sweep(lines_of(folder / LINES)))]
    return export_run(RunFolder(folder).read()[0], folder)


def export_run(result: RunResult, folder: Path) -> list[Path]:
    """Write the CSV files of a run: metrics, series, samples and hosts. Return their paths.

    Raises RunFailed if a file cannot be written.
    """
    return [
        _write(folder / METRICS, _metrics(result)),
        _write(folder / SERIES, _series(result)),
        _write(folder / SAMPLES, _samples(result)),
        _write(folder / HOSTS, _hosts(result)),
    ]


def _write(path: Path, rows: Iterable[Row]) -> Path:
    """Write rows to a CSV file, and return its path."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    write_text(path, text.getvalue())
    return path


def _metrics(result: RunResult) -> Iterator[Row]:
    """Yield a header, then a row for each metric, or for each statistic of a distribution."""
    yield "metric", "unit", "value"
    for name, value in result.metrics.items():
        if isinstance(value, Mapping):
            for key, number in value.items():
                yield f"{name}.{key}", unit_of(f"{name}.{key}"), number
        else:
            yield name, unit_of(name), value


def _series(result: RunResult) -> Iterator[Row]:
    """Yield a header, then a row for each sample."""
    names = list(result.series)
    yield ["at_s" if name == "at" else name for name in names]
    yield from zip(*(result.series[name] for name in names), strict=True)


def _samples(result: RunResult) -> Iterator[Row]:
    """Yield a header, then a row for each single measurement behind the distributions."""
    yield "metric", "unit", "value"
    for name, values in result.samples.items():
        unit = unit_of(f"{name}.p50")
        yield from ((name, unit, value) for value in values)


def _hosts(result: RunResult) -> Iterator[Row]:
    """Yield a header, then a row for each host."""
    counters = list(result.hosts[0].counters) if result.hosts else []
    yield "host", "gateway", "program", "site", "up", *counters
    for host in result.hosts:
        counts = (host.counters[name] for name in counters)
        yield host.name, host.kind, host.program, host.site, host.up, *counts


def _sweep(lines: Sequence[SeedLine]) -> Iterator[Row]:
    """Yield a header, then a row for each seed, with the figures that a sweep's summary uses."""
    reasons = reasons_of(lines)
    rows = [dict(flat(line.get("metrics", {}), reasons)) for line in lines]
    names = list(dict.fromkeys(name for row in rows for name in row))
    yield "seed", "met", "ended", "virtual_s", "real_s", "digest", *names
    for line, row in zip(lines, rows, strict=True):
        yield (
            line["seed"], line["met"], line["ended"], line.get("virtual", ""), line.get("real", ""),
            line.get("digest", ""), *(row.get(name, "") for name in names),
        )  # fmt: skip
