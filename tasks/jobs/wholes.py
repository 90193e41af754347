"""Jobs as wholes: what is submitted, how far it is, and the results of its pieces together."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ...state import defaults as state_defaults
from ...state.views.jobs import Job
from .errors import BadSpec, JobError
from .kinds.kind import Fields
from .kinds.rows import check_output, lines_of
from .kinds.table import KINDS
from .results import JobOutcome, StoredResult
from .spec import JobSpec, read_spec


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to submit, with the spec and the number of rows of each piece.

    `nonce` is the beginning of the pieces' nonces, from `Submitter.nonce`, or b"" for a new one.
    """

    kind: str
    pieces: Sequence[tuple[JobSpec, int]]
    priority: int = state_defaults.JOB_PRIORITY
    deadline: int = 0  # seconds since 1970; 0: none
    nonce: bytes = b""


@dataclass(frozen=True, slots=True)
class JobProgressCount:
    """How far one of this node's jobs is, in pieces and rows."""

    parts: int
    parts_done: int
    rows: int
    rows_done: int
    rows_failed: int
    rows_checked: int

    @property
    def complete(self) -> bool:
        """Whether all pieces have a result here."""
        return self.parts_done == self.parts


def checked(job: Job, outcome: JobOutcome) -> JobOutcome:
    """Return the outcome of a piece if its text is the output of its rows, else raise
    BadOutcome."""
    with suppress(BadSpec):  # an own job is not invalid
        spec = read_spec(job.spec)
        check_output(outcome.text.encode(), job.rows, spec.first, spec.last)
    return replace(outcome, size=len(outcome.text.encode()))


def figures_of(kind: str, pieces: Sequence[bytes]) -> Fields:
    """Return what a kind sums up over the output of a job. Rows that failed do not count."""
    known = KINDS.get(kind)
    if known is None:
        return {}
    rows = (json.loads(line.data) for piece in pieces for line in lines_of(piece))
    return known.sum_up([row for row in rows if "error" not in row])


def first_text(job: Job, spec: JobSpec) -> str:
    """Return the text of the only row of a job, or the beginning of the first of several."""
    kind = KINDS.get(job.kind)
    if kind is None or job.parts * job.rows > 1 or spec.blob is not None:
        return spec.abstract
    with suppress(JobError):
        return kind.abstract(kind.read(spec.lines.strip()))
    return spec.abstract


def joined(job: str, pieces: Sequence[StoredResult]) -> StoredResult:
    """Return the results of all pieces of a job as one."""
    if len(pieces) == 1:
        return pieces[0]
    first, last = pieces[0], max(pieces, key=lambda each: each.came)
    text = "".join(each.outcome.text for each in pieces)
    return replace(
        first,
        job=job,
        came=last.came,
        read=min(each.read for each in pieces),
        rows=sum(each.rows for each in pieces),
        failed_rows=sum(each.failed_rows for each in pieces),
        checked_rows=sum(each.checked_rows for each in pieces),
        outcome=JobOutcome(
            text=text,
            size=sum(each.outcome.size for each in pieces),
            tokens=sum(each.outcome.tokens for each in pieces),
        ),
    )
