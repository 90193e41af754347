"""Manages the jobs of this node's owner: submits and watches them, and stores their results.

A job is removed from the feed some time after its result is on this disk. Until then, the result of
an earlier attempt may still arrive and replace it. Spec: docs/spec/jobs.md.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from weakref import WeakValueDictionary

import trio

from ...dht.errors import ModelError
from ...state import defaults as state_defaults
from ...state.claims.rule import Claim
from ...state.errors import FeedFull
from ...state.views.jobs import Job, Standing, job_fact, job_id
from ...state.views.jobs import State as Stand
from ...transport.identity import PeerId
from ...transport.shortid import meant
from . import defaults
from .errors import BadOutcome, BadSpec, JobError
from .local import LocalNode
from .outcome import Outcome, failed, read_outcome
from .prompt import KIND, PromptSpec, pack_spec, read_spec
from .results import Result, Results
from .shelf import Shelves

_NONCE_BYTES = 8
"""Random bytes of a job's nonce. They follow 8 bytes with the microsecond of submission, by which
the author orders its own jobs. Other nodes do not read that time."""
_DAY = 86_400_000_000
"""Microseconds. Jobs of earlier versions have a random nonce, which looks like another time."""
_OWN_DISK = ("disk-full", "quota-full", "unwritable", "unreadable")
"""Codes of errors that are not the claimant's fault, however often they prevent a fetch."""


class Desk:
    """Jobs of one node's owner."""

    def __init__(self, node: LocalNode, results: Results, shelf: Shelves) -> None:
        self.results = results
        self._host, self._state, self._own = node.host, node.state, node.peer
        self._guard = node.guard
        self._shelf = shelf
        self._jobs = node.state.views.jobs
        self._settled: dict[str, float] = {}  # when a stored result becomes final
        self._later: dict[str, float] = {}  # until when a finished job is not checked again
        self._tries: Counter[tuple[str, PeerId]] = Counter()  # failed fetches by job and claimant
        self._fetching: set[str] = set()
        self._few = trio.CapacityLimiter(defaults.FETCHES)
        self._fewer: WeakValueDictionary[PeerId, trio.CapacityLimiter] = WeakValueDictionary()
        self._changed = trio.Event()
        self._made: dict[str, int] = {}  # when own jobs were submitted, in microseconds
        self._last_made = 0

    @property
    def changed(self) -> trio.Event:
        """The event that is set when the state of an own job changes."""
        return self._changed

    async def submit(self, specs: Sequence[PromptSpec], *, lease: float) -> list[str]:
        """Submit jobs, all or none, and return their ids. They are on disk when this returns.

        Raises JobError: `bad-spec`, `jobs-full`, `results-full`, `not-stored`.
        """
        if self.results.unread + len(specs) > defaults.RESULTS:
            raise JobError(
                "results-full",
                f"{self.results.unread} results are unread",
                hint="`shoal job result --all -o FILE` reads all, `shoal job cancel ID` drops one",
            )
        jobs = [self._new(spec, lease) for spec in specs]
        written: list[str] = []
        try:
            for job, nonce in jobs:
                self._state.set("jobs", job.id, job_fact(job, nonce))
                written.append(job.id)
            await self._stored(written)
        except BaseException as error:
            self._undo(written)
            if isinstance(error, FeedFull):
                raise _full(error) from None
            raise
        return written

    async def own(self) -> list[str]:
        """Return the ids of all own jobs and results, in the order in which they were submitted."""
        found: list[tuple[int, str]] = []
        for job in {*self._jobs.of(self._own), *(result.job for result in self.results)}:
            found.append((self.made(job), job))
            if len(found) % defaults.AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        return [job for _, job in sorted(found)]

    def made(self, job: str) -> int:
        """Return when an own job was submitted, in microseconds, or 0 if that is unknown."""
        if (held := self.results.about(job)) is not None:
            return held.made
        if job not in self._made:
            nonce = (self._state.get("jobs", job) or {}).get("nonce", b"")
            made = int.from_bytes(nonce[:8]) if isinstance(nonce, bytes) else 0
            now = int(self._host.wall() * 1e6)
            self._made[job] = made if made <= now + _DAY else 0
        return self._made[job]

    def knows(self, job: str) -> bool:
        """Return whether this is an own job, or one whose result is stored here."""
        return job in self.results or self._of_own(job) is not None

    async def cancel(self, job: str) -> bool:
        """Cancel a job and delete its result. Return whether either existed. Raises
        JobError."""
        had = self._of_own(job) is not None
        if had:
            self._take_out(job)
        return await self.results.drop(job) or had

    async def cancel_unfinished(self) -> list[str]:
        """Cancel all jobs without a result here, and return their ids. Most of them are no longer
        listed when this returns. Raises JobError."""
        jobs = [job for job in await self.own() if job not in self.results]
        for job in jobs:
            await self.cancel(job)
        with trio.move_on_after(defaults.STORE_TIME):
            while any(self._of_own(job) is not None for job in jobs):  # noqa: ASYNC110
                await trio.sleep(defaults.PAUSE / 5)
        return jobs

    async def result(self, job: str, *, wait: bool) -> Result:
        """Return a job's result and mark it as read. Raises JobError: `unknown-job`,
        `not-done`."""
        while True:
            changed = self._changed
            found = await self.results.take(job)
            if found is not None:
                return found
            if self._of_own(job) is None:
                raise _unknown(job[:16])
            if not wait:
                raise JobError(
                    "not-done",
                    f"job `{job[:16]}` has no result yet",
                    hint=f"`shoal job result {job[:16]} --wait`",
                )
            await changed.wait()

    def find(self, start: str) -> str:
        """Return the own job whose id begins with these characters. Raises BadId."""
        known = (*self._jobs.of(self._own), *(result.job for result in self.results))
        return meant(start, known, "job", hint="`shoal job list --mine` shows this node's")

    async def run(self) -> None:
        """Fetch and store results until cancelled."""
        await self._state.shown.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            nursery.start_soon(self._tidy)
            while True:
                changed = self._changed
                for job in self._jobs.of(self._own):
                    self._look(job, nursery)
                with trio.move_on_after(defaults.COLLECT_PAUSE):
                    await changed.wait()
                await trio.sleep(defaults.PAUSE)

    # Writing.

    def _new(self, spec: PromptSpec, lease: float) -> tuple[Job, bytes]:
        self._last_made = max(self._last_made + 1, int(self._host.wall() * 1e6))
        nonce = self._last_made.to_bytes(8) + self._host.entropy(_NONCE_BYTES)
        packed = pack_spec(spec)
        if len(packed) > state_defaults.JOB_SPEC_BYTES:
            raise BadSpec(
                f"a job has at most {state_defaults.JOB_SPEC_BYTES} bytes, this one {len(packed)}"
            )
        read_spec(packed)
        return Job(job_id(self._own, nonce), self._own, KIND, packed, lease=lease), nonce

    async def _stored(self, jobs: Sequence[str]) -> None:
        with trio.move_on_after(defaults.STORE_TIME):
            while any(self._of_own(job) is None for job in jobs):  # noqa: ASYNC110
                await trio.sleep(defaults.PAUSE / 5)
            return
        raise JobError(
            "not-stored",
            "the job was not stored: the disk or this node's feed of jobs refused it",
            hint="`shoal status` says what is wrong",
        )

    def _undo(self, jobs: Sequence[str]) -> None:
        with suppress(FeedFull):
            for job in jobs:
                self._state.set("jobs", job, None)

    # Collecting.

    def _of_own(self, job: str) -> Standing | None:
        standing = self._jobs.get(job)
        own = standing is not None and standing.job is not None and standing.job.author == self._own
        return standing if own else None

    async def _watch(self) -> None:
        async for change in self._jobs.watch():
            if change.subject is None or self._of_own(change.subject) is not None:
                self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _look(self, job: str, nursery: trio.Nursery) -> None:
        """Start to fetch the result of a finished job, or remove the job once that is final."""
        standing, now = self._of_own(job), self._host.now()
        if standing is None or standing.job is None or standing.claim is None:
            return
        if standing.state is not Stand.DONE or self._later.get(job, now) > now:
            return
        if job in self._fetching:
            return
        held, claim = self.results.about(job), standing.claim
        if held is None or (held.claimant, held.attempt) != (claim.claimant, claim.attempt):
            self._fetching.add(job)
            later = partial(self._rest, job)
            self._guard.start(
                nursery, claim.claimant, self._collect, standing.job, claim, end=later
            )
            return
        if now >= self._settled.setdefault(job, now + defaults.SETTLE):
            self._take_out(job)

    async def _collect(self, job: Job, claim: Claim) -> None:
        """Store a result on disk. If that fails, retry later or refuse the claimant."""
        try:
            outcome = await self._had(job, claim)
            if outcome is not None and self._of_own(job.id) is not None:
                await self.results.put(self._result_of(job, claim, outcome))
                # A claimant whose attempts keep changing must not delay the job's removal.
                self._settled.setdefault(job.id, self._host.now() + defaults.SETTLE)
        except OSError:  # the job stays in the feed, and its result with the claimant
            self._rest(job.id)
        finally:
            self._fetching.discard(job.id)
            self._wake()

    def _rest(self, job: str) -> None:
        self._later[job] = self._host.now() + defaults.REFUSE_PAUSE

    async def _had(self, job: Job, claim: Claim) -> Outcome | None:
        """Return the whole result, or None if it cannot be fetched now."""
        try:
            return await self._outcome(claim)
        except BadOutcome as error:
            return self._refuse(job, claim, error.message)
        except ModelError as error:
            self._tries[job.id, claim.claimant] += error.code not in _OWN_DISK
            if self._tries[job.id, claim.claimant] >= defaults.FETCH_TRIES:
                return self._refuse(job, claim, error.message)
            self._later[job.id] = self._host.now() + defaults.REFUSE_PAUSE
            return None

    async def _outcome(self, claim: Claim) -> Outcome:
        """Return a claim's result with all its text. Raises BadOutcome, ModelError."""
        said = read_outcome(claim.result)
        if not said.blob:
            return said
        line = self._fewer.setdefault(claim.claimant, trio.CapacityLimiter(defaults.FETCHES_OF_ONE))
        async with line, self._few:  # one claimant's missing blobs must not delay other results
            data = await self._shelf.get(said.blob, said.size)
        try:
            return replace(said, text=data.decode(), blob="")
        except UnicodeDecodeError:
            raise BadOutcome("the result of a job is no text") from None

    def _refuse(self, job: Job, claim: Claim, why: str) -> Outcome | None:
        """Refuse a claimant whose result is invalid: its claims no longer count, and other nodes do
        the job. After too many refusals, return an error as the result."""
        if len(job.refused) >= state_defaults.JOB_REFUSED:
            return failed(
                "no-result", f"{len(job.refused) + 1} nodes gave no result; the last error: {why}"
            )
        fact: dict[str, object] = dict(self._state.get("jobs", job.id) or {})
        fact["refused"] = sorted({*job.refused, claim.claimant})
        try:
            self._state.set("jobs", job.id, fact)
        except FeedFull as full:
            return failed("no-result", f"{why}; {full.message}")
        self._later[job.id] = self._host.now() + defaults.COLLECT_PAUSE
        return None

    def _result_of(self, job: Job, claim: Claim, outcome: Outcome) -> Result:
        spec = None
        with suppress(BadSpec):
            spec = read_spec(job.spec)
        return Result(
            job=job.id,
            kind=job.kind,
            model="" if spec is None else spec.name or spec.root,
            abstract="" if spec is None else spec.abstract,
            claimant=claim.claimant,
            attempt=claim.attempt,
            outcome=outcome,
            came=self._host.wall(),
            made=self.made(job.id),
            prompt="" if spec is None else spec.asked,
        )

    def _take_out(self, job: str) -> None:
        self._settled.pop(job, None)
        self._later.pop(job, None)
        self._made.pop(job, None)
        with suppress(FeedFull):  # a forked feed does not count anyway
            self._state.set("jobs", job, None)
        self._wake()

    async def _tidy(self) -> None:
        while True:
            with suppress(JobError):  # later, then
                await self.results.tidy()
            gone = [job for job in {*self._settled, *self._later} if self._of_own(job) is None]
            for job in gone:
                self._settled.pop(job, None)
                self._later.pop(job, None)
            self._tries = Counter(
                {key: count for key, count in self._tries.items() if self._of_own(key[0])}
            )
            await trio.sleep(defaults.TIDY)


def _unknown(job: str) -> JobError:
    return JobError(
        "unknown-job", f"this node has no job `{job}`", hint="`shoal job list --mine` shows them"
    )


def _full(error: FeedFull) -> JobError:
    if error.code != "feed-full":
        return JobError(error.code, error.message)
    return JobError(
        "jobs-full",
        "this node's feed has no room for these jobs; none was submitted",
        hint="wait until some are done, or take some out: `shoal job cancel ID`",
    )
