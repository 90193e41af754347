"""Collects the results of many jobs with one request, which is repeated if the daemon restarts."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias

import click

from . import defaults, render
from .errors import CommandError
from .options import data_flag
from .progress import JobProgressDisplay

if TYPE_CHECKING:
    from ..node.control.messages.jobs import (
        ArrivedResult,
        ExpectedJobs,
        JobProgress,
        JobRecord,
        LackingRecord,
    )

GONE = ("not-running", "stopping")
"""Codes of the errors that mean that the daemon has ended during the request."""
LACKING = ("not-done", "unknown-job")
"""Codes in the records of jobs that have no result."""
Record: TypeAlias = "JobRecord | LackingRecord"
OnRecord: TypeAlias = "Callable[[Record], None]"


class Collection:
    """Collects the results of `jobs`, or of all jobs of this node if that is None.

    `on_record` is called with each record, in the order of the jobs.
    """

    def __init__(
        self,
        data: Path,
        jobs: Sequence[str] | None,
        on_record: OnRecord,
        *,
        before: "Sequence[Record]" = (),
        total: int = 0,
    ) -> None:
        """`before` has the records of earlier collections, and `total` is the number of records
        that all collections will have. Both only affect the progress that is shown."""
        self._before = list(before)
        self._total = total
        self._data = data
        self._on_record = on_record
        self.jobs: list[str] | None = None if jobs is None else list(jobs)
        self._came: dict[str, Record] = {}
        self.given = 0  # number of records that were passed to `on_record`
        self._answered = False  # whether the daemon has replied at all
        self._away = False  # whether the daemon has stopped and not replied since
        self.done = 0
        self._progress = JobProgressDisplay()

    def run(self, *, wait: bool) -> None:
        """Collect the results. With `wait`, wait for all of them, even if the daemon restarts
        meanwhile.

        Raises CommandError if the request fails.
        """
        with self._progress if wait else nullcontext():
            while True:
                try:
                    self._ask(wait)
                    return
                except CommandError as error:
                    if error.code not in GONE or not wait or not self._answered:
                        raise
                    if not self._away:
                        self._progress.say("the daemon stopped; waiting for it to run again")
                    self._away = True
                    time.sleep(defaults.JOBS_RESTART_LOOK)

    def _ask(self, wait: bool) -> None:
        from ..node.control.messages.jobs import GetJobResults
        from .client import request

        jobs = None
        if self.jobs is not None:
            jobs = tuple(job for job in dict.fromkeys(self.jobs) if job not in self._came)
        ask = GetJobResults(jobs=jobs, until_done=wait)
        request(self._data, ask, wait=True, on_event=self._hear)

    def give_rest(self) -> None:
        """Pass the remaining records to `on_record`, although results of jobs before them are
        missing."""
        for job in (self.jobs or ())[self.given :]:
            if (record := self._came.get(job)) is not None:
                self.given += 1
                self._on_record(record)

    def _hear(self, event: "ExpectedJobs | ArrivedResult | JobProgress") -> None:
        self._answered = True
        if self._away:
            self._away = False
            self._progress.say("the daemon runs again; waiting for results")
        if event.event == "jobs":
            self.jobs = list(event.jobs) if self.jobs is None else self.jobs
        elif event.event == "result":
            self._came[event.result.job] = event.result
            self._give()
        elif self.jobs is not None:
            self.done = sum(job in self._came for job in self.jobs)
            came = [*self._before, *self._came.values()]
            failed = sum(record.error is not None for record in came)
            total = self._total or len(self.jobs)
            self._progress.show(len(self._before) + self.done, total, failed)

    def _give(self) -> None:
        """Pass to `on_record` the records whose turn it is."""
        assert self.jobs is not None  # the daemon sends the list of jobs first
        while self.given < len(self.jobs) and (record := self._came.get(self.jobs[self.given])):
            self.given += 1
            self._on_record(record)


def collect_to(
    data: Path, jobs: Sequence[str] | None, output: Path, *, wait: bool, as_json: bool
) -> None:
    """Write the results of jobs to a file, one JSON object on each line. The file `-` is standard
    output.

    `jobs` has the ids; None means all jobs of this node. Raises CommandError if a job failed or has
    no result, or if there are no jobs.
    """
    records: list[Record] = []
    with _lines(output) as write:

        def on_record(record: Record) -> None:
            records.append(record)
            write(record)

        collection = Collection(data, jobs, on_record)
        try:
            collection.run(wait=wait)
        except KeyboardInterrupt:
            collection.give_rest()
            raise _interrupted(collection, output, data) from None
    if not records:
        raise CommandError(
            "failed", "this node has no jobs", hint="`shoal job submit MODEL PROMPT`"
        )
    lacking = sum(record.error in LACKING for record in records)
    failed = sum(record.error is not None for record in records) - lacking
    if str(output) != "-":
        written: dict[str, int | str] = {
            "jobs": len(records), "failed": failed, "lacking": lacking, "file": str(output),
        }  # fmt: skip
        lines = f"wrote {render.count(len(records), 'line')} to {output}"
        click.echo(render.as_json(written) if as_json else lines)
    _complain(len(records), failed, lacking)


def line_of(record: Record) -> str:
    """Format a record as one line of a results file."""
    return render.as_json(
        {
            "id": record.job,
            "prompt": record.prompt,
            "text": None if record.error else record.text,
            "node": record.node,
            "error": record.error,
            "message": record.message,
        }
    )


@contextmanager
def _lines(output: Path) -> Iterator[OnRecord]:
    """Yield a function that writes a record.

    It writes to FILE.part. When the block ends without an error, this file is renamed to FILE.
    """
    if str(output) == "-":
        yield lambda record: print(line_of(record), flush=True)
        return
    part = _part_of(output)
    try:
        with open(part, "w", encoding="ascii") as file:
            yield lambda record: print(line_of(record), file=file, flush=True)
        os.replace(part, output)
    finally:
        if part.exists() and not part.stat().st_size:
            part.unlink()


def _part_of(output: Path) -> Path:
    return output.with_name(output.name + ".part")


def _interrupted(collection: Collection, output: Path, data: Path) -> CommandError:
    where = "" if str(output) == "-" or not collection.given else f" to `{_part_of(output)}`"
    had = f"{collection.given} of {len(collection.jobs or ())} results were written{where}"
    return CommandError(
        "interrupted",
        f"interrupted; {had}; the jobs continue",
        hint=f"the same command starts again; `shoal job list --mine{data_flag(data)}` shows them",
    )


def _complain(jobs: int, failed: int, lacking: int) -> None:
    """Raise CommandError if any of the `jobs` failed or has no result (`lacking`). All three are
    numbers of jobs."""
    if lacking:
        raise CommandError(
            "not-done",
            f"{lacking} of {render.count(jobs, 'job')} have no result"
            + (f", {failed} failed" if failed else ""),
            hint="the field `error` says which: `--wait` waits for those that are not done; "
            "an unknown job was cancelled, or its result was read more than a day ago",
        )
    if failed:
        raise CommandError(
            "failed",
            f"{failed} of {render.count(jobs, 'job')} failed",
            hint="the fields `error` and `message` say why",
        )


def ids_in(name: Path) -> list[str]:
    """Return the job ids in a file, one on each line, as `shoal job submit` prints them.

    The file `-` is standard input. Raises CommandError if a line is not an id, or if there are
    none.
    """
    stream: AbstractContextManager[IO[bytes]] = (
        nullcontext(sys.stdin.buffer) if str(name) == "-" else open(name, "rb")  # noqa: SIM115
    )
    with stream as file:
        text = file.read(defaults.JOBS_IDS_LIMIT).decode(errors="replace")
    jobs = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        job = line.strip().lower()
        if len(job) != 64 or set(job) - set("0123456789abcdef"):
            raise CommandError(
                "failed",
                f"line {number} of `{name}` is not a job id: expected 64 hex digits",
                hint="keep the ids when you submit: `shoal job submit MODEL --file PROMPTS > IDS`",
            )
        jobs.append(job)
    if not jobs:
        raise CommandError("failed", f"`{name}` contains no ids", hint="`shoal job list --mine`")
    return jobs
