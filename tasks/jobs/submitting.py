"""Submission of jobs: checks the author's rows, divides them into pieces, and writes each piece as
a fact of this node's feed.

Broken rows are reported, and are part of the job: each gets an error as its output, in its place.
Spec: docs/spec/jobs.md.
"""

import json
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import trio

from ...state import defaults as state_defaults
from ...state.errors import FeedFull
from ...state.views.jobs import Job, job_fact, job_id
from ...transport.identity import PeerId
from ..costs.shardcosts import ShardCosts
from . import defaults
from .desk import Desk, JobNode
from .errors import JobError
from .kinds.kind import BadRow, Kind, RowSize
from .kinds.rows import TOO_LONG, FileLine, lines_of
from .spec import BlobPart, JobSpec, pack_spec, read_spec
from .speed import JobSpeed
from .wholes import NewJob

_NONCE_BYTES = 6
"""Random bytes of a job's nonce.

They follow 8 bytes with the time of submission in microseconds, by which the author orders its
jobs. Other nodes do not read that time. Two bytes with the number of the piece follow them.
"""
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


@dataclass(frozen=True, slots=True)
class BrokenLine:
    """A row that is malformed, by the number of its line."""

    number: int
    message: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job whose rows are checked and divided. `data` are the bytes of all rows."""

    data: bytes
    pieces: Sequence[Piece]
    broken: Sequence[BrokenLine]
    abstract: str

    @property
    def rows(self) -> int:
        """Number of rows, with the broken ones."""
        return sum(piece.rows for piece in self.pieces)

    @property
    def is_inline(self) -> bool:
        """Whether the rows fit into the spec of the job."""
        return len(self.data) <= defaults.INLINE_ROWS_BYTES

    @property
    def is_inline_sealed(self) -> bool:
        """Whether the sealed rows fit into the spec of the job."""
        return len(self.data) <= defaults.SEALED_INLINE_BYTES

    def specs(self, spec: JobSpec, blob: str) -> list[tuple[JobSpec, int]]:
        """Return the spec and the number of rows of each piece. `blob` is the root of the rows, or
        "" if they are inline."""
        found = []
        for piece in self.pieces:
            each = replace(spec, first=piece.first, last=piece.last, abstract=self.abstract)
            if not blob:
                each = replace(each, lines=self.data[piece.start : piece.stop])
            else:
                part = BlobPart(blob, len(self.data), piece.start, piece.stop)
                each = replace(each, blob=part)
            found.append((each, piece.rows))
        return found


def prepare(
    data: bytes, kind: Kind[Any], spec: JobSpec, speed: JobSpeed, costs: ShardCosts
) -> Prepared:
    """Check the rows in `data`, and divide them by their predicted run time. Blocking: it takes up
    to a second.

    Raises JobError `no-rows` if there is none, `bad-rows` if all are broken, `input-too-large`, and
    `too-many-rows`.
    """
    if len(data) > defaults.INPUT_BYTES:
        raise too_large(len(data))
    sizes = dict[int, RowSize]()
    broken = list[BrokenLine]()
    abstract, too_long = "", list[FileLine]()
    lines = list(lines_of(data))
    for line in lines:
        try:
            row = kind.read(line.data)
            sizes[line.number] = kind.size(row, spec)
            abstract = abstract or kind.abstract(row)[: defaults.ABSTRACT]
        except BadRow as error:
            broken.append(BrokenLine(line.number, error.message))
            too_long += [line] if error.code == "row-too-long" else []
    if not lines:
        raise JobError("no-rows", "the file has no rows", hint=_SHAPES[kind.name])
    if len(broken) == len(lines):
        first = broken[0]
        raise JobError(
            "bad-rows",
            f"no row is valid; line {first.number}: {first.message}",
            hint=_SHAPES[kind.name],
        )
    if too_long:
        data = _without(data, too_long)
        lines = list(lines_of(data))
    what, nothing = (spec.root, kind.name), RowSize(0)

    def seconds(line: FileLine) -> float:
        return speed.seconds(what, costs, [sizes.get(line.number, nothing)])

    return Prepared(data, divide(lines, seconds), broken, abstract)


def too_large(size: int) -> JobError:
    """Return the error for an input that is too large."""
    most = defaults.INPUT_BYTES // 2**20
    return JobError(
        "input-too-large",
        f"the rows of a job have at most {most} MiB, these have {size / 2**20:.1f} MiB",
        hint=f"split the file: `split -C {most // 2}M --additional-suffix=.jsonl FILE part`",
    )


def check_deadline(deadline: int, now: float) -> None:
    """Raise JobError `deadline-past` if a deadline has passed. Both are in seconds since 1970; a
    deadline of 0 is none."""
    if deadline and deadline <= now:
        raise JobError(
            "deadline-past",
            "the deadline has passed",
            hint="give a later one, such as `--deadline 2h`, or none",
        )


def row_of(kind: str, prompt: str) -> bytes:
    """Return the line of JSON with a prompt as the only row of a job."""
    field = "prompt" if kind == "generate" else "text"
    return json.dumps({field: prompt}, ensure_ascii=False).encode()


def _without(data: bytes, lines: Sequence[FileLine]) -> bytes:
    """Return the rows without the content of these lines, each of which becomes a short invalid
    row."""
    kept, at = list[bytes](), 0
    for line in lines:
        kept += [data[at : line.start], TOO_LONG + b"\n"]
        at = line.stop
    return b"".join((*kept, data[at:]))


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


class Submitter:
    """Submits the owner's jobs. `liars` returns the peers that no new job lets work on it."""

    def __init__(
        self,
        node: JobNode,
        desk: Desk,
        liars: Callable[[], Collection[PeerId]] = tuple,
    ) -> None:
        self._host, self._state, self._own = node.host, node.state, node.peer
        self._desk = desk
        self._liars = liars
        self._last_made = 0  # microseconds since 1970

    async def submit(self, jobs: Sequence[NewJob], *, lease: float) -> list[str]:
        """Submit all jobs or none, and return their ids. They are on disk when this returns.

        `lease` is in seconds. Raises JobError `bad-spec` if a job is invalid, `jobs-full` or
        `results-full` if there is no space, and `not-stored` if the jobs do not reach the disk in
        time.
        """
        if self._desk.results.unread + sum(len(job.pieces) for job in jobs) > defaults.RESULTS:
            raise JobError(
                "results-full",
                f"{self._desk.results.unread} results are unread",
                hint="`shoal job result --all -o FILE` reads all, `shoal job cancel ID` drops one",
            )
        facts = [fact for job in jobs for fact in self._new(job, lease)]
        await self._write(facts)
        return [job.id for job, _ in facts if not job.of]

    def drafted(self, kind: str, priority: int, deadline: int) -> tuple[Job, bytes]:
        """Return a job of one piece without a spec, and its nonce, for `submit_packed`."""
        nonce = self.nonce() + bytes(2)
        job = Job(job_id(self._own, nonce), self._own, kind, priority=priority, deadline=deadline)
        return job, nonce

    async def submit_packed(self, draft: tuple[Job, bytes], spec: bytes, *, lease: float) -> str:
        """Submit a job of one piece whose spec is encoded and checked, and return its id. A claim
        on it lasts `lease` seconds. Raises the errors of `submit`."""
        job, nonce = draft
        await self._write([(replace(job, spec=spec, lease=lease), nonce)])
        return job.id

    def nonce(self) -> bytes:
        """Return the beginning of the nonces of a new job's pieces."""
        self._last_made = max(self._last_made + 1, int(self._host.wall() * 1e6))
        return self._last_made.to_bytes(8) + self._host.entropy(_NONCE_BYTES)

    async def _write(self, facts: Sequence[tuple[Job, bytes]]) -> None:
        """Write all jobs or none, and wait until they are on disk. Raises the errors of
        `submit`."""
        written: list[str] = []
        try:
            for job, nonce in facts:
                self._state.set("jobs", job.id, job_fact(job, nonce))
                written.append(job.id)
            await self._stored(written)
        except BaseException as error:
            self._undo(written)
            if isinstance(error, FeedFull):
                raise _full(error) from None
            raise
        self._desk.wake()

    def _new(self, new: NewJob, lease: float) -> Iterator[tuple[Job, bytes]]:
        """Yield the pieces of a job with their nonces. Raises BadSpec if one is too large or
        invalid."""
        nonce = new.nonce or self.nonce()
        first = job_id(self._own, nonce + bytes(2))
        liars = tuple(self._liars())
        for part, (spec, rows) in enumerate(new.pieces):
            packed, number = pack_spec(spec), nonce + part.to_bytes(2)
            read_spec(packed)
            yield (
                Job(
                    id=job_id(self._own, number),
                    author=self._own,
                    kind=new.kind,
                    spec=packed,
                    lease=lease,
                    refused=liars,
                    of=first if part else "",
                    part=part,
                    parts=len(new.pieces),
                    rows=rows,
                    priority=new.priority,
                    deadline=new.deadline,
                ),
                number,
            )

    async def _stored(self, jobs: Sequence[str]) -> None:
        """Wait until the jobs are on disk. Raises JobError `not-stored` if that takes too long."""
        with trio.move_on_after(defaults.STORE_TIME):
            while any(self._desk.standing(job) is None for job in jobs):  # noqa: ASYNC110
                await trio.sleep(defaults.PAUSE / 5)
            return
        raise JobError(
            "not-stored",
            "the job was not stored: the disk or this node's feed of jobs refused it",
            hint="`shoal status` says what is wrong",
        )

    def _undo(self, jobs: Sequence[str]) -> None:
        """Remove jobs from the feed whose submission failed."""
        with suppress(FeedFull):
            for job in jobs:
                self._state.set("jobs", job, None)


def _full(error: FeedFull) -> JobError:
    if error.code != "feed-full":
        return JobError(error.code, error.message)
    return JobError(
        "jobs-full",
        "this node's feed has no room for these jobs; none was submitted",
        hint="wait until some are done, or take some out: `shoal job cancel ID`",
    )


_SHAPES = {
    "generate": 'each line is an object: {"prompt": "…"} or {"messages": [{"role": "user", '
    '"content": "…"}]}',
    "embed": 'each line is an object: {"text": "…"}',
    "evaluate": 'each line is an object: {"text": "…"}, or {"prompt": "…", "choices": ["…", "…"], '
    '"answer": 0}',
}
