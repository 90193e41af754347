"""Division of a job's rows into pieces. No I/O."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...state import defaults as state_defaults
from . import defaults
from .errors import JobError
from .kinds.rows import FileLine

_MOST = defaults.PIECE_BYTES - defaults.SEALED_MARGIN


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows that follow each other: the bytes `start` to `stop` - 1 of the file, which begin with
    line `first` and end with line `last`."""

    start: int
    stop: int
    first: int
    last: int
    rows: int


def divide(lines: Sequence[FileLine], seconds: Callable[[FileLine], float]) -> list[Piece]:
    """Divide lines into pieces of about PIECE_TIME.

    `seconds` returns the predicted time of a line. If there would be too many pieces, they are
    longer. Raises JobError `too-many-rows` if they cannot be long enough.
    """
    times = [seconds(line) for line in lines]
    target = max(defaults.PIECE_TIME, 1.1 * sum(times) / state_defaults.JOB_PARTS)
    found = _cut(lines, times, target, 1)
    if len(found) > state_defaults.JOB_PARTS:
        least = math.ceil(len(lines) / state_defaults.JOB_PARTS)
        found = _cut(lines, times, math.inf, min(least, state_defaults.JOB_ROWS))
    if len(found) > state_defaults.JOB_PARTS:
        most = state_defaults.JOB_PARTS * state_defaults.JOB_ROWS
        raise JobError(
            "too-many-rows",
            f"a job has at most {most:,} rows, this one has {len(lines):,}",
            hint=f"split the file: `split -l {most // 2} --additional-suffix=.jsonl FILE part`",
        )
    return found


def _cut(
    lines: Sequence[FileLine], times: Sequence[float], target: float, least: int
) -> list[Piece]:
    """Cut lines into pieces that take up to `target` seconds, or have `least` rows if `target` is
    infinite."""
    most = state_defaults.JOB_ROWS if target < math.inf else least
    found: list[Piece] = []
    start, rows, took = 0, 0, 0.0
    for number, line in enumerate(lines):
        too_large = line.stop - lines[start].start > _MOST
        if rows and (rows >= most or took + times[number] > target or too_large):
            found.append(_piece(lines[start:number]))
            start, rows, took = number, 0, 0.0
        rows, took = rows + 1, took + times[number]
    return [*found, _piece(lines[start:])] if rows else found


def _piece(lines: Sequence[FileLine]) -> Piece:
    return Piece(lines[0].start, lines[-1].stop, lines[0].number, lines[-1].number, len(lines))
