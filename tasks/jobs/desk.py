"""The jobs of this node's owner and their results: which there are, how far each is, and what came.

`submitting.py` adds jobs, and `collecting.py` adds results. Spec: docs/spec/jobs.md.
"""

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field

import trio

from ...state.errors import FeedFull
from ...state.service import State
from ...state.views.jobs import Job, JobStanding
from ...transport.guard import Guard
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.shortid import meant
from . import defaults
from .errors import BadSpec, JobError
from .results import Results, StoredResult
from .sealing.seals import JobSeals
from .spec import JobSpec, read_spec
from .wholes import JobProgressCount, joined

_DAY = 86_400_000_000
"""Tolerance in microseconds for a submission time in the future.

Jobs of earlier versions have a random nonce, which looks like a time in the far future.
"""


@dataclass(frozen=True, slots=True)
class JobNode:
    """The node that submits these jobs and does jobs of other nodes. `State.run` must be running.

    `guard` surrounds all code that an entry of another node can trigger.
    """

    host: Host
    state: State
    peer: PeerId
    guard: Guard = field(default_factory=Guard)


class Desk:
    """The owner's jobs and their results. `seals` opens the specs of sealed jobs."""

    def __init__(self, node: JobNode, results: Results, seals: JobSeals | None = None) -> None:
        self.results = results
        self.cancelled: set[str] = set()
        """Cancelled pieces whose removal may not be visible yet, or whose result is fetched."""
        self._host, self._state, self._own = node.host, node.state, node.peer
        self._seals = seals
        self._jobs = node.state.views.jobs
        self._changed = trio.Event()
        self._made: dict[str, int] = {}  # submission time of this node's jobs, in microseconds
        self._groups: dict[str, list[str]] | None = None  # listed pieces by job, until a change

    @property
    def changed(self) -> trio.Event:
        """Event that is set when the state of one of this node's jobs changes. Then a new event
        replaces it."""
        return self._changed

    async def own(self) -> list[str]:
        """Return the ids of this node's jobs and results, in the order of submission.

        The pieces of a job are not listed.
        """
        found: dict[str, int] = {}
        results = (result.job for result in self.results)
        pieces = dict.fromkeys((*self._jobs.of(self._own), *results))
        for number, piece in enumerate(pieces, 1):
            job = self._whole(piece)
            if job not in found:
                found[job] = self.made(piece)
            if number % defaults.AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        return sorted(found, key=lambda job: (found[job], job))

    def unfinished(self) -> list[str]:
        """Return the ids of this node's jobs of which a piece is not done, in the order of
        submission."""
        jobs = {self._whole(piece) for piece in self._jobs.waiting.get(self._own, ())}
        return sorted(jobs, key=lambda job: (self.made(job), job))

    def _whole(self, piece: str) -> str:
        """Return the id of the job that a piece of this node belongs to."""
        if (held := self.results.about(piece)) is not None:
            return held.of
        standing = self.standing(piece)
        return piece if standing is None or standing.job is None else standing.job.whole

    def pieces(self, job: str) -> list[str]:
        """Return the ids of those pieces of one of this node's jobs that are listed or have a
        result."""
        held = dict.fromkeys(result.job for result in self.results.pieces_of(job))
        return list(held | dict.fromkeys(p for p in self._listed(job) if p not in held))

    def _listed(self, job: str) -> list[str]:
        """Return the ids of the pieces of a job that are in this node's feed."""
        if self._groups is None:
            self._groups = {}
            for piece in self._jobs.of(self._own):
                self._groups.setdefault(self._whole(piece), []).append(piece)
        return self._groups.get(job, [])

    def progress(self, job: str) -> JobProgressCount:
        """Return how far one of this node's jobs is."""
        held = self.results.pieces_of(job)
        have = {result.job for result in held}
        listed = [
            standing.job
            for piece in self._listed(job)
            if piece not in have
            and (standing := self.standing(piece)) is not None
            and standing.job is not None
        ]
        parts = max([result.parts for result in held] + [piece.parts for piece in listed] + [1])
        done = sum(result.rows for result in held)
        return JobProgressCount(
            parts=parts,
            parts_done=len(held),
            rows=done + sum(piece.rows for piece in listed),
            rows_done=done,
            rows_failed=sum(result.failed_rows for result in held),
            rows_checked=sum(result.checked_rows for result in held),
        )

    def made(self, job: str) -> int:
        """Return the submission time in microseconds of one of this node's jobs. 0 means
        unknown."""
        if (held := self.results.pieces_of(job)) and held[0].made:
            return held[0].made
        if (found := self.results.about(job)) is not None:
            return found.made
        if job not in self._made:
            nonce = (self._state.get("jobs", job) or {}).get("nonce", b"")
            made = int.from_bytes(nonce[:8]) if isinstance(nonce, bytes) else 0
            now = int(self._host.wall() * 1e6)
            self._made[job] = made if made <= now + _DAY else 0
        return self._made[job]

    def knows(self, job: str) -> bool:
        """Return whether this node has submitted the job or stores its result."""
        return bool(self.pieces(job))

    async def cancel(self, job: str) -> bool:
        """Cancel a job with all its pieces, and delete its result. Return whether either existed.

        Raises JobError `disk` if the result cannot be deleted.
        """
        pieces = self.pieces(job)
        self.cancelled.update(pieces)
        for piece in pieces:
            if self.standing(piece) is not None:
                self.remove(piece)
        for piece in pieces:
            await self.results.drop(piece)
        return bool(pieces)

    async def cancel_unfinished(self) -> list[str]:
        """Cancel all jobs whose results are not stored here, and return their ids.

        Waits until they are no longer listed, but at most STORE_TIME seconds. Raises JobError
        `disk` if a result cannot be deleted.
        """
        jobs = [job for job in await self.own() if not self.progress(job).complete]
        pieces = [piece for job in jobs for piece in self.pieces(job)]
        for job in jobs:
            await self.cancel(job)
        with trio.move_on_after(defaults.STORE_TIME):
            while any(self.standing(each) is not None for each in pieces):  # noqa: ASYNC110
                await trio.sleep(defaults.PAUSE / 5)
        return jobs

    async def complete(self, job: str, *, wait: bool) -> list[StoredResult]:
        """Return the results of all pieces of a job, without their texts.

        If `wait`, waits until there are all. Raises JobError `unknown-job` if this node has no such
        job, and `not-done` if a piece has no result yet.
        """
        while True:
            changed = self._changed
            if not self.pieces(job):
                raise _unknown(job[:16])
            found = self.progress(job)
            if found.complete:
                return self.results.pieces_of(job)
            if not wait:
                raise JobError(
                    "not-done",
                    f"job `{job[:16]}` has no result yet"
                    if found.parts == 1
                    else f"job `{job[:16]}` has done {found.rows_done} of {found.rows} rows",
                    hint=f"`shoal job result {job[:16]} --wait`",
                )
            await changed.wait()

    async def result(self, job: str, *, wait: bool) -> StoredResult:
        """Return the result of a job and mark it as read. The outputs of several pieces are joined.

        Raises the errors of `complete`, and JobError `too-large` if the output is too large for one
        message.
        """
        pieces = await self.complete(job, wait=wait)
        size = sum(result.outcome.size for result in pieces)
        if len(pieces) > 1 and size > defaults.SHOWN_BYTES:
            raise JobError(
                "too-large",
                f"the output of job `{job[:16]}` has {size} bytes",
                hint=f"write it to a file: `shoal job result {job[:16]} -o FILE`",
            )
        return joined(job, [await self._taken(result.job) for result in pieces])

    async def output(self, job: str, *, wait: bool) -> AsyncIterator[bytes]:
        """Yield the output of each piece of a job in the order of the rows, and mark it as read.

        Raises the errors of `complete`, and JobError `disk` if a result cannot be read.
        """
        for result in await self.complete(job, wait=wait):
            yield (await self._taken(result.job)).outcome.text.encode()

    def kind(self, job: str) -> str:
        """Return the kind of one of this node's own jobs that are done, or "" for others."""
        done = (each.kind for each in self.results if self._whole(each.job) == job)
        return next(done, "")

    async def _taken(self, piece: str) -> StoredResult:
        found = await self.results.take(piece)
        if found is None:
            raise JobError("disk", f"the result of job `{piece[:16]}` is unreadable")
        return found

    def find(self, start: str) -> str:
        """Return the id of this node's job that begins with `start`.

        Raises BadId if no job or more than one job matches.
        """
        pieces = (*self._jobs.of(self._own), *(result.job for result in self.results))
        known = dict.fromkeys(map(self._whole, pieces))
        return meant(start, known, "job", hint="`shoal job list --mine` shows this node's")

    def spec_of(self, job: Job) -> JobSpec | None:
        """Return the spec of a job, opened as far as this node can, or None if it is invalid."""
        try:
            spec = read_spec(job.spec)
        except BadSpec:
            return None
        with suppress(JobError):  # the group's secret may be forgotten
            if self._seals is not None and job.author == self._own:
                return self._seals.opened(job, spec)
        return spec

    def standing(self, job: str) -> JobStanding | None:
        """Return a job's standing if this node submitted the job, else None."""
        standing = self._jobs.get(job)
        own = standing is not None and standing.job is not None and standing.job.author == self._own
        return standing if own else None

    def wake(self) -> None:
        """Set `changed`, because a job or a result is new or gone."""
        self._groups = None
        self._changed.set()
        self._changed = trio.Event()

    def remove(self, job: str) -> None:
        """Remove one of this node's jobs from its feed."""
        self._made.pop(job, None)
        with suppress(FeedFull):  # if the feed has forked, its entries are ignored anyway
            self._state.set("jobs", job, None)
        self.wake()


def _unknown(job: str) -> JobError:
    return JobError(
        "unknown-job", f"this node has no job `{job}`", hint="`shoal job list --mine` shows them"
    )
