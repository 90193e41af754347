"""Collects the results of this node's jobs from the claims and stores them.

A job is removed from this node's feed some time after its result was stored on this disk. Until
then, a result of an earlier attempt may still arrive and replace the stored one. Spec:
docs/spec/jobs.md.
"""

from collections import Counter, OrderedDict
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from weakref import WeakValueDictionary

import trio

from ...dht.errors import ModelError
from ...state import defaults as state_defaults
from ...state.errors import FeedFull
from ...state.views.jobs import Claim, Job
from ...state.views.jobs import JobState as Stand
from ...transport.errors import ShoalError
from ...transport.identity import PeerId
from . import defaults
from .checking.checks import ResultChecks, Verdict
from .checking.fingerprint import without_fingerprints
from .desk import Desk, JobNode
from .errors import BadOutcome, JobError, Unsealable
from .kinds.rows import check_output, error_fields, lines_of, output_line
from .results import JobOutcome, StoredResult, failed, read_outcome
from .sealing.seals import JobSeals, piece_words, rows_of
from .shelf import Shelves
from .spec import JobSpec, seal_of
from .wholes import checked, first_text

_OWN_DISK = ("disk-full", "quota-full", "unwritable", "unreadable")
"""Error codes for which the claimant is not responsible, however often they prevent a fetch."""


class Collector:
    """Fetches the results of the jobs at a desk, checks them, and refuses claimants that give none.

    Without `checks`, results are believed. `seals` opens sealed ones.
    """

    def __init__(
        self,
        node: JobNode,
        desk: Desk,
        shelf: Shelves,
        checks: ResultChecks | None = None,
        seals: JobSeals | None = None,
    ) -> None:
        self._host, self._state, self._own = node.host, node.state, node.peer
        self._guard = node.guard
        self._jobs = node.state.views.jobs
        self._desk = desk
        self._results = desk.results
        self._shelf = shelf
        self._checks = checks
        self._seals = seals
        self._removed: OrderedDict[str, dict[str, object]] = OrderedDict()  # the latest facts
        self._settled: dict[str, float] = {}  # time at which a stored result becomes final, by job
        self._later: dict[str, float] = {}  # earliest time for the next check of a finished job
        self._tries: Counter[tuple[str, PeerId]] = Counter()  # failed fetches by job and claimant
        self._fetching: set[str] = set()
        self._few = trio.CapacityLimiter(defaults.FETCHES)
        self._fewer: WeakValueDictionary[PeerId, trio.CapacityLimiter] = WeakValueDictionary()

    async def run(self) -> None:
        """Fetch and store the results of finished jobs, until cancelled."""
        await self._state.shown.wait()
        async with trio.open_nursery() as nursery:
            self._guard.start_repeated(nursery, "changes of jobs", self._watch)
            self._guard.start_repeated(nursery, "results of jobs", self._tidy)
            while True:
                changed, began = self._desk.changed, self._host.now()
                for job in self._jobs.of(self._own):
                    with self._guard.around(f"job {job}", partial(self._put_off, job)):
                        self._consider(job, nursery)
                took = self._host.now() - began  # a look at thousands of jobs takes long
                with trio.move_on_after(
                    defaults.COLLECT_PAUSE if self._jobs.of(self._own) else inf
                ):
                    await changed.wait()
                rest = max(defaults.PAUSE / 5, defaults.LOOK_PART * took)
                await trio.sleep(max(0.0, began + rest - self._host.now()))

    async def _watch(self) -> None:
        """Wake all waiting tasks whenever one of this node's jobs changes."""
        async for change in self._jobs.watch():
            gone = change.value is None or change.value.job is None
            if change.subject is None or gone or self._desk.standing(change.subject) is not None:
                self._desk.wake()

    def _consider(self, job: str, nursery: trio.Nursery) -> None:
        """If a job is finished, start to fetch its result. If its stored result is final, remove
        the job."""
        standing, now = self._desk.standing(job), self._host.now()
        if standing is None or standing.job is None or standing.claim is None:
            return
        if self._is_liar(standing.claim.claimant) and self._later.get(job, now) <= now:
            self._later[job] = now + defaults.COLLECT_PAUSE
            self._add_refusal(standing.job, standing.claim.claimant)
            return
        if standing.state is not Stand.DONE or self._later.get(job, now) > now:
            return
        if job in self._fetching or job in self._desk.cancelled:
            return
        held, claim = self._results.about(job), standing.claim
        if held is None or (held.claimant, held.attempt) != (claim.claimant, claim.attempt):
            self._fetching.add(job)
            later = partial(self._put_off, job)
            self._guard.start(nursery, claim.claimant, self._fetch, standing.job, claim, end=later)
            return
        if now >= self._settled.setdefault(job, now + defaults.SETTLE):
            if self._checks is not None and (fact := self._state.get("jobs", job)) is not None:
                self._removed[job] = dict(fact)
                if len(self._removed) > defaults.TAKEN_OUT:
                    self._removed.popitem(last=False)
            self._remove(job)

    async def _fetch(self, job: Job, claim: Claim) -> None:
        """Fetch a result and store it on disk. If that fails, retry later or refuse the
        claimant."""
        try:
            checked = await self._checked(job, claim)
            if checked is not None and self._desk.standing(job.id) is not None:
                result = await self._result_of(job, claim, *checked)
                await self._results.put(result)
                if job.id in self._desk.cancelled:  # meanwhile
                    await self._results.drop(job.id)
                # A claimant that keeps publishing new attempts must not delay the job's removal.
                self._settled.setdefault(job.id, self._host.now() + defaults.SETTLE)
        except OSError:  # the job and the claimant's result stay available
            self._put_off(job.id)
        finally:
            self._fetching.discard(job.id)
            self._desk.wake()

    def _put_off(self, job: str) -> None:
        """Do not check a finished job again before REFUSE_PAUSE has passed."""
        self._later[job] = self._host.now() + defaults.REFUSE_PAUSE

    async def _checked(self, job: Job, claim: Claim) -> tuple[JobOutcome, int] | None:
        """Return the complete result of a claim and the number of rows that were recomputed, or
        None if it cannot be fetched now.

        If the claimant is responsible, refuses it.
        """
        try:
            outcome = await self._outcome(job, claim)
            if self._checks is None:
                return outcome, 0
            verdict, rows = await self._checks.judge(job, claim, outcome)
            if verdict in (Verdict.WRONG, Verdict.LIE):
                if verdict is Verdict.LIE:
                    await self._disbelieve(claim.claimant)
                return self._refuse(job, claim, "other nodes compute another result")
            plain = without_fingerprints(outcome.text.encode())
            return replace(outcome, text=plain.decode(), size=len(plain)), rows
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

    def _refuse(self, job: Job, claim: Claim, why: str) -> tuple[JobOutcome, int] | None:
        """Refuse a claimant whose result is invalid, and return None.

        Its claims no longer count, and other nodes do the job. After too many refusals, or if the
        feed is full, returns an error as the job's result instead.
        """
        if len(job.refused) >= state_defaults.JOB_REFUSED:
            many = len(job.refused) + 1
            return failed("no-result", f"{many} nodes gave no result; the last error: {why}"), 0
        full = self._add_refusal(job, claim.claimant)
        if full is not None:
            return failed("no-result", f"{why}; {full.message}"), 0
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

    async def _disbelieve(self, liar: PeerId) -> None:
        """Delete the unread results of a claimant, and have their pieces done again.

        Jobs of which a piece was removed from the feed too long ago keep that piece's result.
        """
        for result in [each for each in self._results if each.claimant == liar and not each.read]:
            standing, fact = self._desk.standing(result.job), self._removed.get(result.job)
            with suppress(FeedFull, JobError):
                if standing is not None and standing.job is not None:
                    await self._results.drop(result.job)
                    self._settled.pop(result.job, None)
                    self._add_refusal(standing.job, liar)
                elif fact is not None:
                    refused = fact.get("refused")
                    listed = refused if isinstance(refused, list) else []
                    self._state.set("jobs", result.job, fact | {"refused": sorted({*listed, liar})})
                    await self._results.drop(result.job)
        self._desk.wake()

    async def _result_of(
        self, job: Job, claim: Claim, outcome: JobOutcome, checked_rows: int
    ) -> StoredResult:
        spec = self._desk.spec_of(job)
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
            made=self._desk.made(job.id),
            prompt="" if spec is None else first_text(job, spec),
            whole=job.of,
            part=job.part,
            parts=job.parts,
            rows=job.rows,
            failed_rows=failed_rows,
            checked_rows=checked_rows,
        )

    async def _error_lines(self, job: Job, spec: JobSpec, outcome: JobOutcome) -> JobOutcome:
        """Return the outcome of a piece of which all rows failed: one line for each row."""
        numbers = list(range(spec.first, spec.first + job.rows))
        with suppress(ShoalError):  # without the input, empty lines are not known
            data = await rows_of(job, spec, self._shelf, self._seals)
            numbers = [line.number for line in lines_of(data, spec.first)]
        fields = error_fields(outcome.error, outcome.message)
        text = b"".join(output_line(number, fields) for number in numbers).decode()
        return JobOutcome(text=text, size=len(text.encode()))

    def _remove(self, job: str) -> None:
        """Remove a job whose result is final from the feed, and all state about it."""
        self._settled.pop(job, None)
        self._later.pop(job, None)
        self._desk.remove(job)

    async def _tidy(self) -> None:
        """Periodically delete old results and the state of jobs that no longer exist."""
        while True:
            with suppress(JobError):  # retried in the next round
                await self._results.tidy()
            listed = {job for job in self._desk.cancelled if self._desk.standing(job) is not None}
            self._desk.cancelled = listed | (self._desk.cancelled & self._fetching)
            gone = [job for job in self._settled | self._later if self._desk.standing(job) is None]
            for job in gone:
                self._settled.pop(job, None)
                self._later.pop(job, None)
            self._tries = Counter(
                {key: count for key, count in self._tries.items() if self._desk.standing(key[0])}
            )
            await trio.sleep(defaults.TIDY)
