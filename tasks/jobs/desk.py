"""Manages the jobs of this node's owner: submits and watches them, and stores their results.

A job is removed from this node's feed some time after its result was stored on this disk. Until
then, a result of an earlier attempt may still arrive and replace the stored one. Spec:
docs/spec/jobs.md.
"""

from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from weakref import WeakValueDictionary

import trio

from ...dht.errors import ModelError
from ...state import defaults as state_defaults
from ...state.errors import FeedFull
from ...state.service import State
from ...state.views.jobs import Claim, Job, JobStanding, job_fact, job_id
from ...state.views.jobs import JobState as Stand
from ...transport.errors import ShoalError
from ...transport.guard import Guard
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.shortid import meant
from . import defaults
from .checking.checks import ResultChecks, Verdict
from .checking.fingerprint import without_fingerprints
from .errors import BadOutcome, BadSpec, JobError, Unsealable
from .kinds.rows import check_output, error_fields, lines_of, output_line
from .results import JobOutcome, Results, StoredResult, failed, read_outcome
from .sealing.seals import JobSeals, piece_words, rows_of
from .shelf import Shelves
from .spec import JobSpec, pack_spec, read_spec, seal_of
from .wholes import JobProgressCount, NewJob, asked, checked, joined

_NONCE_BYTES = 6
"""Random bytes of a job's nonce.

They follow 8 bytes with the time of submission in microseconds, by which the author orders its
jobs. Other nodes do not read that time. Two bytes with the number of the piece follow them.
"""
_DAY = 86_400_000_000
"""Tolerance in microseconds for a submission time in the future.

Jobs of earlier versions have a random nonce, which looks like a time in the far future.
"""
_OWN_DISK = ("disk-full", "quota-full", "unwritable", "unreadable")
"""Error codes for which the claimant is not responsible, however often they prevent a fetch."""


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
    """Submission of the owner's jobs, and collection of their results."""

    def __init__(
        self,
        node: JobNode,
        results: Results,
        shelf: Shelves,
        checks: ResultChecks | None = None,
        seals: JobSeals | None = None,
    ) -> None:
        """Create a desk. Without `checks`, results are believed. `seals` opens sealed jobs."""
        self._seals = seals
        self.results = results
        self._checks = checks
        self._taken_out: OrderedDict[str, dict[str, object]] = OrderedDict()  # the latest facts
        self._host, self._state, self._own = node.host, node.state, node.peer
        self._guard = node.guard
        self._shelf = shelf
        self._jobs = node.state.views.jobs
        self._settled: dict[str, float] = {}  # time at which a stored result becomes final, by job
        self._later: dict[str, float] = {}  # earliest time for the next check of a finished job
        self._tries: Counter[tuple[str, PeerId]] = Counter()  # failed fetches by job and claimant
        self._fetching: set[str] = set()
        self._cancelled: set[str] = set()  # pieces whose removal may not be visible yet
        self._few = trio.CapacityLimiter(defaults.FETCHES)
        self._fewer: WeakValueDictionary[PeerId, trio.CapacityLimiter] = WeakValueDictionary()
        self._changed = trio.Event()
        self._made: dict[str, int] = {}  # submission time of this node's jobs, in microseconds
        self._last_made = 0
        self._groups: dict[str, list[str]] | None = None  # listed pieces by job, until a change

    @property
    def changed(self) -> trio.Event:
        """Event that is set when the state of one of this node's jobs changes. Then a new event
        replaces it."""
        return self._changed

    async def submit(self, jobs: Sequence[NewJob], *, lease: float) -> list[str]:
        """Submit all jobs or none, and return their ids. They are on disk when this returns.

        `lease` is in seconds. Raises JobError `bad-spec` if a job is invalid, `jobs-full` or
        `results-full` if there is no space, and `not-stored` if the jobs do not reach the disk in
        time.
        """
        if self.results.unread + sum(len(job.pieces) for job in jobs) > defaults.RESULTS:
            raise JobError(
                "results-full",
                f"{self.results.unread} results are unread",
                hint="`shoal job result --all -o FILE` reads all, `shoal job cancel ID` drops one",
            )
        facts = [fact for job in jobs for fact in self._new(job, lease)]
        await self._write(facts)
        return [job.id for job, _ in facts if not job.of]

    def drafted(self, kind: str) -> tuple[Job, bytes]:
        """Return a job of one piece without a spec, and its nonce, for `submit_packed`."""
        nonce = self.nonce() + bytes(2)
        return Job(job_id(self._own, nonce), self._own, kind), nonce

    async def submit_packed(self, draft: tuple[Job, bytes], spec: bytes, *, lease: float) -> str:
        """Submit a job of one piece whose spec is encoded and checked, and return its id. Raises
        the errors of `submit`."""
        job, nonce = draft
        await self._write([(replace(job, spec=spec, lease=lease), nonce)])
        return job.id

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
        self._groups = None

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

    def _whole(self, piece: str) -> str:
        """Return the id of the job that a piece of this node belongs to."""
        if (held := self.results.about(piece)) is not None:
            return held.of
        standing = self._of_own(piece)
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
            and (standing := self._of_own(piece)) is not None
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
        self._cancelled.update(pieces)
        for piece in pieces:
            if self._of_own(piece) is not None:
                self._take_out(piece)
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
            while any(self._of_own(each) is not None for each in pieces):  # noqa: ASYNC110
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

    async def run(self) -> None:
        """Fetch and store the results of finished jobs, until cancelled."""
        await self._state.shown.wait()
        async with trio.open_nursery() as nursery:
            self._guard.start_repeated(nursery, "changes of jobs", self._watch)
            self._guard.start_repeated(nursery, "results of jobs", self._tidy)
            while True:
                changed = self._changed
                for job in self._jobs.of(self._own):
                    with self._guard.around(f"job {job}", partial(self._rest, job)):
                        self._look(job, nursery)
                with trio.move_on_after(defaults.COLLECT_PAUSE):
                    await changed.wait()
                await trio.sleep(defaults.PAUSE)

    # Writing.

    def nonce(self) -> bytes:
        """Return the beginning of the nonces of a new job's pieces."""
        self._last_made = max(self._last_made + 1, int(self._host.wall() * 1e6))
        return self._last_made.to_bytes(8) + self._host.entropy(_NONCE_BYTES)

    def _new(self, new: NewJob, lease: float) -> Iterator[tuple[Job, bytes]]:
        """Yield the pieces of a job with their nonces. Raises BadSpec if one is too large or
        invalid."""
        nonce = new.nonce or self.nonce()
        first = job_id(self._own, nonce + bytes(2))
        liars = () if self._checks is None else self._checks.trust.liars()
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
            while any(self._of_own(job) is None for job in jobs):  # noqa: ASYNC110
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

    # Collecting.

    def _of_own(self, job: str) -> JobStanding | None:
        """Return a job's standing if this node submitted the job, else None."""
        standing = self._jobs.get(job)
        own = standing is not None and standing.job is not None and standing.job.author == self._own
        return standing if own else None

    async def _watch(self) -> None:
        """Wake the collector and waiting callers whenever one of this node's jobs changes."""
        async for change in self._jobs.watch():
            gone = change.value is None or change.value.job is None
            if change.subject is None or gone or self._of_own(change.subject) is not None:
                self._wake()

    def _wake(self) -> None:
        self._groups = None
        self._changed.set()
        self._changed = trio.Event()

    def _look(self, job: str, nursery: trio.Nursery) -> None:
        """If a job is finished, start to fetch its result. If its stored result is final, remove
        the job."""
        standing, now = self._of_own(job), self._host.now()
        if standing is None or standing.job is None or standing.claim is None:
            return
        if self._is_liar(standing.claim.claimant) and self._later.get(job, now) <= now:
            self._later[job] = now + defaults.COLLECT_PAUSE
            self._add_refusal(standing.job, standing.claim.claimant)
            return
        if standing.state is not Stand.DONE or self._later.get(job, now) > now:
            return
        if job in self._fetching or job in self._cancelled:
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
            if self._checks is not None and (fact := self._state.get("jobs", job)) is not None:
                self._taken_out[job] = dict(fact)
                if len(self._taken_out) > defaults.TAKEN_OUT:
                    self._taken_out.popitem(last=False)
            self._take_out(job)

    async def _collect(self, job: Job, claim: Claim) -> None:
        """Fetch a result and store it on disk. If that fails, retry later or refuse the
        claimant."""
        try:
            outcome = await self._had(job, claim)
            if outcome is not None and self._of_own(job.id) is not None:
                result = await self._result_of(job, claim, outcome)
                await self.results.put(result)
                if job.id in self._cancelled:  # meanwhile
                    await self.results.drop(job.id)
                # A claimant that keeps publishing new attempts must not delay the job's removal.
                self._settled.setdefault(job.id, self._host.now() + defaults.SETTLE)
        except OSError:  # the job and the claimant's result stay available
            self._rest(job.id)
        finally:
            self._fetching.discard(job.id)
            self._wake()

    def _rest(self, job: str) -> None:
        """Do not check a finished job again before REFUSE_PAUSE has passed."""
        self._later[job] = self._host.now() + defaults.REFUSE_PAUSE

    async def _had(self, job: Job, claim: Claim) -> JobOutcome | None:
        """Return the complete result of a claim, or None if it cannot be fetched now.

        If the claimant is responsible, refuses it.
        """
        try:
            outcome = await self._outcome(job, claim)
            if self._checks is None:
                return outcome
            verdict = await self._checks.judge(job, claim, outcome)
            if verdict in (Verdict.WRONG, Verdict.LIE):
                if verdict is Verdict.LIE:
                    await self._undo_results_of(claim.claimant)
                return self._refuse(job, claim, "other nodes compute another result")
            plain = without_fingerprints(outcome.text.encode())
            return replace(outcome, text=plain.decode(), size=len(plain))
        except BadOutcome as error:
            return self._refuse(job, claim, error.message)
        except ModelError as error:
            self._tries[job.id, claim.claimant] += error.code not in _OWN_DISK
            if self._tries[job.id, claim.claimant] >= defaults.FETCH_TRIES:
                return self._refuse(job, claim, error.message)
            self._later[job.id] = self._host.now() + defaults.REFUSE_PAUSE
            return None

    async def _outcome(self, job: Job, claim: Claim) -> JobOutcome:
        """Return the result of a claim with its text, fetching the text if it is a blob.

        Raises BadOutcome if the result is invalid, and ModelError if the fetch fails.
        """
        said = read_outcome(claim.result)
        sealed = seal_of(job.spec) is not None
        if sealed and not said.sealed and not said.blob:
            raise Unsealable(f"the output of {piece_words(job)} is not sealed")
        data = said.sealed
        if said.blob:
            line = self._fewer.setdefault(
                claim.claimant, trio.CapacityLimiter(defaults.FETCHES_OF_ONE)
            )
            async with line, self._few:  # one claimant's missing blobs must not delay others
                data = await self._shelf.get(said.blob, said.size)
        if sealed:
            assert self._seals is not None  # only a node with seals submits sealed jobs
            said = await self._host.offload(self._seals.open_outcome, job, claim.claimant, data)
        elif said.sealed:
            raise BadOutcome("the result of a job is sealed, and the job is not")
        elif said.blob:
            try:
                said = replace(said, text=data.decode(), blob="")
            except UnicodeDecodeError:
                raise BadOutcome("the result of a job is no text") from None
        return said if said.error else checked(job, said)

    def _refuse(self, job: Job, claim: Claim, why: str) -> JobOutcome | None:
        """Refuse a claimant whose result is invalid, and return None.

        Its claims no longer count, and other nodes do the job. After too many refusals, or if the
        feed is full, returns an error as the job's result instead.
        """
        if len(job.refused) >= state_defaults.JOB_REFUSED:
            return failed(
                "no-result", f"{len(job.refused) + 1} nodes gave no result; the last error: {why}"
            )
        full = self._add_refusal(job, claim.claimant)
        if full is not None:
            return failed("no-result", f"{why}; {full.message}")
        self._later[job.id] = self._host.now() + defaults.COLLECT_PAUSE
        return None

    def _add_refusal(self, job: Job, claimant: PeerId) -> FeedFull | None:
        """Publish that a claimant is refused. Returns the error if the feed is full."""
        fact: dict[str, object] = dict(self._state.get("jobs", job.id) or {})
        fact["refused"] = sorted({*job.refused, claimant})
        try:
            self._state.set("jobs", job.id, fact)
        except FeedFull as full:
            return full
        return None

    def _is_liar(self, claimant: PeerId) -> bool:
        return self._checks is not None and self._checks.trust.is_liar(claimant)

    async def _undo_results_of(self, liar: PeerId) -> None:
        """Delete the unread results of a claimant, and have their pieces done again.

        Jobs of which a piece was removed from the feed too long ago keep that piece's result.
        """
        for result in [each for each in self.results if each.claimant == liar and not each.read]:
            standing, fact = self._of_own(result.job), self._taken_out.get(result.job)
            with suppress(FeedFull, JobError):
                if standing is not None and standing.job is not None:
                    await self.results.drop(result.job)
                    self._settled.pop(result.job, None)
                    self._add_refusal(standing.job, liar)
                elif fact is not None:
                    refused = fact.get("refused")
                    listed = refused if isinstance(refused, list) else []
                    self._state.set("jobs", result.job, fact | {"refused": sorted({*listed, liar})})
                    await self.results.drop(result.job)
        self._wake()

    async def _result_of(self, job: Job, claim: Claim, outcome: JobOutcome) -> StoredResult:
        spec = self.spec_of(job)
        if outcome.error and spec is not None and job.parts * job.rows > 1:
            outcome = await self._error_lines(job, spec, outcome)
        failed_rows = int(bool(outcome.error))
        if spec is not None and not outcome.error:
            heads = check_output(outcome.text.encode(), job.rows, spec.first, spec.last)
            failed_rows = sum(head.error is not None for head in heads)
        return StoredResult(
            job=job.id,
            kind=job.kind,
            model="" if spec is None else spec.name or spec.root,
            abstract="" if spec is None else spec.abstract,
            claimant=claim.claimant,
            attempt=claim.attempt,
            outcome=outcome,
            came=self._host.wall(),
            made=self.made(job.id),
            prompt="" if spec is None else asked(job, spec),
            whole=job.of,
            part=job.part,
            parts=job.parts,
            rows=job.rows,
            failed_rows=failed_rows,
        )

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

    async def _error_lines(self, job: Job, spec: JobSpec, outcome: JobOutcome) -> JobOutcome:
        """Return the outcome of a piece of which all rows failed: one line for each row."""
        numbers = list(range(spec.first, spec.first + job.rows))
        with suppress(ShoalError):  # without the input, empty lines are not known
            data = await rows_of(job, spec, self._shelf, self._seals)
            numbers = [line.number for line in lines_of(data, spec.first)]
        fields = error_fields(outcome.error, outcome.message)
        text = b"".join(output_line(number, fields) for number in numbers).decode()
        return JobOutcome(text=text, size=len(text.encode()))

    def _take_out(self, job: str) -> None:
        """Remove a job from the feed, and all state about it."""
        self._settled.pop(job, None)
        self._later.pop(job, None)
        self._made.pop(job, None)
        with suppress(FeedFull):  # if the feed has forked, its entries are ignored anyway
            self._state.set("jobs", job, None)
        self._wake()

    async def _tidy(self) -> None:
        """Periodically delete old results and the state of jobs that no longer exist."""
        while True:
            with suppress(JobError):  # retried in the next round
                await self.results.tidy()
            listed = {job for job in self._cancelled if self._of_own(job) is not None}
            self._cancelled = listed | (self._cancelled & self._fetching)
            gone = [job for job in self._settled | self._later if self._of_own(job) is None]
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
