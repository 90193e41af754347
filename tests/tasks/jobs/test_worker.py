"""Tests of doing jobs: the claim, the work, the result, and failures."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
import trio

from shoal.dht.errors import NotEnoughDisk
from shoal.state import defaults as state_defaults
from shoal.state.views.jobs import Claim, Job, Jobs, JobStanding, JobState, claim_fact, new_claim
from shoal.state.views.members import JOBS, jobs_fact
from shoal.tasks.errors import SessionError
from shoal.tasks.jobs import defaults
from shoal.tasks.jobs.claims import ROOM
from shoal.tasks.jobs.crew import Crew, IdleTime, WorkTerms, does_jobs
from shoal.tasks.jobs.desk import JobNode
from shoal.tasks.jobs.kinds.kind import Declared
from shoal.tasks.jobs.kinds.table import KINDS
from shoal.tasks.jobs.results import JobOutcome, read_outcome
from shoal.tasks.jobs.runner import ReportProgress
from shoal.tasks.jobs.worker import OutputStores, Replicate, Worker
from shoal.transport.guard import Guard
from shoal.transport.host.seam import Host
from shoal.transport.identity import Identity, PeerId
from tests.tasks.jobs.fake_state import AUTHOR, ME, OTHER, STORE, FakeHost, FakeShelf, FakeState

pytestmark = pytest.mark.trio
WORK = 10.0  # seconds of a job


class Runner:
    """Runner that takes time."""

    kind = "sum"
    declares: Declared = KINDS["generate"]
    moves = False
    run_time = defaults.RUN_TIME

    def __init__(self) -> None:
        self.began: list[str] = []
        self.ended: list[str] = []
        self.errors: list[Exception] = []  # of the next tries
        self.text = "3"
        self.predicted = defaults.PIECE_TIME
        self.provable = 0  # steps that the blob of another node's claim proves
        self.is_full = False  # whether this node has no room for that blob
        self.claimed: Callable[[str], object] = lambda job: True

    def able(self, job: Job) -> bool:
        return True

    def seconds(self, job: Job) -> float:
        return self.predicted

    def longest(self, job: Job) -> float:
        return 0.0

    def measured(self, job: Job, predicted: float, took: float) -> None:
        pass

    async def proven(self, job: Job, claim: Claim) -> int:
        await trio.sleep(1)
        if self.is_full:
            raise NotEnoughDisk(Path("/jobs"), 1, 0)
        return self.provable

    async def run(self, job: Job, progress: ReportProgress) -> JobOutcome:
        assert self.claimed(job.id), "the claim is on disk before the work begins"
        self.began.append(job.id)
        for second in range(int(WORK)):
            await trio.sleep(1)
            progress(second + 1)
        if self.errors:
            raise self.errors.pop(0)
        self.ended.append(job.id)
        return JobOutcome(text=self.text, tokens=1)


class Desk:
    """A node that does jobs."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.state = FakeState(nursery)
        self.runner, self.shelf, self.guard = Runner(), FakeShelf(), Guard()
        self.replicate: Replicate | None = None
        self.live: set[PeerId] = {ME, OTHER}
        self.waited_for = 0
        self.ready = True
        self.looks = 0  # for jobs
        self.host, self.look_s = FakeHost(), 0.0
        self.out: set[PeerId] = set()
        self.troubles: list[str | None] = []
        self.runner.claimed = lambda job: self.state.views.jobs.claim_by(ME, job)
        self.boot()

    def boot(self) -> None:
        host = cast(Host, self.host)
        crew = Crew(self.state.views.members, ["sum"], live=lambda: self.live, now=host.now)
        self.worker = Worker(
            JobNode(host, self.state.state, ME, self.guard),
            WorkTerms(
                IdleTime(lambda: self.waited_for),
                ready=self._look,
                accepts=lambda author: author not in self.out,
            ),
            {"sum": self.runner},
            crew,
            OutputStores(self.shelf, self._replicate),
            health=self.troubles.append,
        )

    def _look(self) -> bool:
        self.looks += 1
        self.host.computed += self.look_s
        return self.ready

    async def _replicate(self, job: str, blob: str, size: int) -> bool:
        return self.replicate is not None and await self.replicate(job, blob, size)

    def claim(self, peer: PeerId, job: str, attempt: int = 1, **more: object) -> None:
        claim = new_claim(peer, job, attempt, **more)  # type: ignore[arg-type]
        self.state.hear(peer, "claims", job, claim_fact(claim))

    def stands(self, job: str) -> JobState | None:
        standing = self.state.views.jobs.get(job)
        return None if standing is None else standing.state

    def outcome(self, job: str) -> JobOutcome:
        standing = self.state.views.jobs.get(job)
        assert standing is not None and standing.claim is not None
        return read_outcome(standing.claim.result)


@asynccontextmanager
async def desk() -> AsyncIterator[Desk]:
    async with trio.open_nursery() as nursery:
        made = Desk(nursery)
        nursery.start_soon(made.worker.run)
        await trio.sleep(2)
        yield made
        nursery.cancel_scope.cancel()


async def test_a_job_is_claimed_done_and_reported(autojump_clock: object) -> None:
    async with desk() as made:
        job = made.state.submit(0)
        await trio.sleep(5)
        assert made.stands(job) is JobState.CLAIMED and made.worker.current_job == job
        await trio.sleep(WORK)
        assert made.stands(job) is JobState.DONE and made.outcome(job).text == "3"
        assert made.worker.current_job is None and made.worker.done == 1


async def test_an_idle_node_begins_its_job_at_once(autojump_clock: object) -> None:
    """For a job that another node begins, it does not even search."""
    async with desk() as made:
        made.state.hear(OTHER, "member", JOBS, jobs_fact(["sum"]))
        await trio.sleep(0.1)
        heirs = made.worker.crew.shares.heirs
        for own in (ME, OTHER):
            await trio.sleep(0.5)  # in the middle between two searches
            mine = [n for n in range(99) if next(heirs(made.state.job(n))) == own]
            looks, job = made.looks, made.state.submit(mine[0])
            await trio.sleep(0.1)
            assert bool(made.state.said("claims", job)) == (made.looks > looks) == (own == ME)
            made.state.withdraw(job)
            await trio.sleep(2 * WORK)


async def test_many_new_jobs_have_a_node_search_a_few_times(autojump_clock: object) -> None:
    """A peer chooses how many jobs it makes, and a search looks at all of them."""
    async with desk() as made:
        made.out = {AUTHOR}
        made.looks = 0
        for number in range(500):
            made.state.submit(number)
            await trio.sleep(0.002)
        assert made.looks <= 22


async def test_a_search_that_takes_long_is_not_repeated_for_each_new_job(
    autojump_clock: object,
) -> None:
    async with desk() as made:
        made.out = {AUTHOR}
        made.looks, made.look_s = 0, 0.1
        for number in range(500):
            made.state.submit(number)
            await trio.sleep(0.02)
        assert made.looks * made.look_s < 0.15 * 10, "most of the time is for other tasks"


async def test_one_at_a_time_and_each_once(autojump_clock: object) -> None:
    async with desk() as made:
        jobs = [made.state.submit(number) for number in range(5)]
        await trio.sleep(5)
        assert len(made.runner.began) == 1
        await trio.sleep(5 * (WORK + 3))
        assert sorted(made.runner.ended) == sorted(jobs) == sorted(made.runner.began)


@pytest.mark.parametrize("provable", [0, 2, 9])
async def test_a_claimant_has_to_prove_its_progress(autojump_clock: object, provable: int) -> None:
    """A job that it has not claimed does not count."""
    async with desk() as made:
        made.runner.provable = provable
        job = made.state.submit(0, lease=20.0)
        made.claim(OTHER, job, step=1)
        await trio.sleep(10)
        made.claim(OTHER, job, step=2, saved=bytes(40))
        await trio.sleep(16)
        assert (made.runner.began == [job]) == (provable == 0)
        if provable:
            assert made.state.said("claims", job) == [] and made.worker.current_job is None
            await trio.sleep(22)
            assert made.runner.began == [job], "no more than before"


async def test_a_full_disk_does_not_refute_a_claimant(autojump_clock: object) -> None:
    """The node that asks could not do the job either."""
    async with desk() as made:
        made.runner.is_full = True
        job = made.state.submit(0, lease=20.0)
        made.claim(OTHER, job, step=1)
        await trio.sleep(10)
        made.claim(OTHER, job, step=2, saved=bytes(40))
        await trio.sleep(16)
        assert made.runner.began == [] and made.state.said("claims", job) == []


async def test_progress_keeps_the_lease(autojump_clock: object) -> None:
    async with desk() as made:
        job = made.state.submit(0, lease=15.0)
        await trio.sleep(WORK + 4)
        said = [fact for fact in made.state.said("claims", job) if fact and "done" not in fact]
        steps = [fact.get("step", 0) for fact in said]
        assert steps == sorted(steps) and 2 <= len(set(steps)) <= 3
        assert made.stands(job) is JobState.DONE


async def test_a_lease_of_a_second_writes_no_more(autojump_clock: object) -> None:
    """Progress entries go to every node, so a job's author cannot choose how often."""
    async with desk() as made:
        job = made.state.submit(0, lease=1.0)
        await trio.sleep(WORK + 4)
        assert len(made.state.said("claims", job)) <= 2 + WORK / defaults.STEP_PAUSE


async def test_silence_during_a_job_counts_from_the_last_sighting(
    autojump_clock: object,
) -> None:
    """Otherwise its jobs would be taken over at once after a long job."""
    async with desk() as made:
        made.state.hear(OTHER, "member", JOBS, jobs_fact(["sum"]))
        made.state.submit(0)
        await trio.sleep(WORK)
        assert made.worker.current_job is not None
        made.live = {ME}
        await trio.sleep(3)
        assert made.worker.current_job is None and made.runner.ended
        assert 2 <= made.worker.crew.silent(OTHER) <= 3 + defaults.LOOK


async def test_no_job_begins_while_an_interactive_request_runs(autojump_clock: object) -> None:
    async with desk() as made:
        made.waited_for = 1
        job = made.state.submit(0)
        await trio.sleep(30)
        assert made.stands(job) is JobState.OPEN
        assert does_jobs(made.state.views.members, ME)
        made.waited_for = 0
        made.ready = False
        await trio.sleep(30)
        assert made.stands(job) is JobState.OPEN
        assert not does_jobs(made.state.views.members, ME), "or jobs would fall to it first"
        made.ready = True
        await trio.sleep(5)
        assert made.worker.current_job == job


async def test_jobs_of_excluded_authors_are_not_done(autojump_clock: object) -> None:
    async with desk() as made:
        made.out = {AUTHOR}
        job = made.state.submit(0)
        await trio.sleep(300)
        assert made.stands(job) is JobState.OPEN
        made.out.clear()
        await trio.sleep(5)
        assert made.worker.current_job == job


async def test_a_removed_job_is_stopped(autojump_clock: object) -> None:
    async with desk() as made:
        job = made.state.submit(0)
        await trio.sleep(5)
        made.state.withdraw(job)
        await trio.sleep(1)
        assert made.worker.current_job is None and not made.runner.ended
        assert made.state.views.jobs.claims_of(job) == []


async def test_only_the_claimant_with_precedence_continues(autojump_clock: object) -> None:
    async with desk() as made:
        job = made.state.submit(0)
        await trio.sleep(5)
        made.claim(OTHER, job, 2)
        await trio.sleep(20)
        assert made.runner.ended == [] and made.worker.current_job is None
        assert [claim.claimant for claim in made.state.views.jobs.claims_of(job)] == [OTHER]


async def test_failures_are_retried_and_then_left_to_others(autojump_clock: object) -> None:
    async with desk() as made:
        made.runner.errors = [SessionError("stage-lost", "gone")] * 2
        job = made.state.submit(0)
        await trio.sleep(3 * WORK + 25)
        assert made.stands(job) is JobState.DONE and made.runner.began == [job] * 3
        made.runner.errors = [SessionError("stage-lost", "gone")] * 3
        left = made.state.submit(1, lease=100.0)
        await trio.sleep(3 * WORK + 25)
        assert made.stands(left) is JobState.OPEN, "left to others for a while"
        await trio.sleep(120)
        assert made.stands(left) is JobState.DONE


async def test_a_job_that_always_fails_is_given_up(autojump_clock: object) -> None:
    async with desk() as made:
        made.runner.errors = [SessionError("worker-crashed", "the engine died")] * 1000
        job = made.state.submit(0, lease=50.0)
        await trio.sleep(600)
        assert made.stands(job) is JobState.DONE
        assert made.outcome(job).error == "worker-crashed"
        assert len(made.runner.began) == defaults.TRIES * defaults.FAILURES


@pytest.mark.parametrize("code", ["busy", "no-route"])
async def test_a_lack_of_capacity_is_not_a_failure(code: str, autojump_clock: object) -> None:
    async with desk() as made:
        made.runner.errors = [SessionError(code, "later")] * 20
        job = made.state.submit(0, lease=50.0)
        await trio.sleep(1000)
        assert made.stands(job) in (JobState.OPEN, JobState.CLAIMED)
        await trio.sleep(1000)
        assert made.stands(job) is JobState.DONE and made.outcome(job).text == "3"


@pytest.mark.parametrize("author_is_here", [True, False])
async def test_an_input_that_no_node_has_waits_for_its_author(
    autojump_clock: object, author_is_here: bool
) -> None:
    async with desk() as made:
        if author_is_here:
            made.live.add(AUTHOR)
        made.runner.errors = [SessionError("no-source", "no node has it") for _ in range(9)]
        job = made.state.submit(0, lease=20.0)
        await trio.sleep(300)
        assert made.stands(job) is JobState.DONE
        assert made.outcome(job).error == ("no-source" if author_is_here else "")


@pytest.mark.parametrize("code", ["busy", "moved"])
async def test_a_job_that_did_not_fail_may_come_back_before_its_lease(
    code: str, autojump_clock: object
) -> None:
    """A stage was busy, or a job went to another node, which may end soon."""
    async with desk() as made:
        made.runner.errors = [SessionError(code, "not now")]
        job = made.state.submit(0)
        await trio.sleep(WORK + 3)
        assert made.stands(job) is JobState.OPEN, "other nodes may take it now"
        await trio.sleep(2 * WORK + state_defaults.CLAIM_PAUSE + 8)
        assert made.stands(job) is JobState.DONE


async def test_a_long_result_is_a_blob_and_is_dropped_with_its_claim(
    autojump_clock: object,
) -> None:
    async with desk() as made:
        made.runner.text = "x" * 5000
        job = made.state.submit(0)
        await trio.sleep(WORK + 5)
        (root,) = made.shelf.blobs
        assert (made.outcome(job).blob, made.outcome(job).size) == (root, 5000)
        made.state.withdraw(job)
        await trio.sleep(state_defaults.CLAIM_KEPT - 10)
        assert made.shelf.blobs
        await trio.sleep(3 * defaults.TIDY)
        assert not made.shelf.blobs and made.state.views.jobs.claims_of(job) == []


async def test_another_node_does_the_job_if_the_shelf_is_full(autojump_clock: object) -> None:
    async with desk() as made:
        made.runner.text, made.shelf.full = "x" * 5000, True
        job = made.state.submit(0)
        await trio.sleep(WORK + 5)
        assert made.stands(job) is JobState.OPEN and made.troubles[-1] is not None
        made.shelf.full = False
        await trio.sleep(state_defaults.JOB_LEASE[1] + WORK + 5)
        assert made.stands(job) is JobState.DONE and made.troubles[-1] is None


async def test_a_text_that_is_too_large_is_an_error(autojump_clock: object) -> None:
    async with desk() as made:
        made.runner.text = "x" * (defaults.RESULT_BYTES + 1)
        job = made.state.submit(0)
        await trio.sleep(WORK + 5)
        assert made.outcome(job).error == "too-large" and not made.shelf.blobs


async def test_a_feed_without_room_claims_nothing(autojump_clock: object) -> None:
    async with desk() as made:
        made.state.full = "claims"
        job = made.state.submit(0, lease=20.0)
        await trio.sleep(10)
        assert made.stands(job) is JobState.OPEN and not made.runner.began
        made.state.full = ""
        await trio.sleep(40)
        assert made.stands(job) is JobState.DONE


async def test_no_author_takes_all_the_space_for_claims(autojump_clock: object) -> None:
    """An author that never removes its jobs gets half of it; a second one half of the rest."""
    async with desk() as made:
        for number in range(ROOM // 1000):
            job = made.state.submit(number)
            made.claim(ME, job, done=True, result=bytes(800))
        more = made.state.submit(10_000)
        await trio.sleep(20)
        assert made.stands(more) is JobState.OPEN
        lone = made.state.submit(0, OTHER)
        await trio.sleep(20)
        assert made.stands(lone) is JobState.OPEN, "there is no room at all"
        for number in range(ROOM // 2000, ROOM // 1000):
            made.state.withdraw(made.state.submit(number))
        for claim in list(made.state.views.jobs.claims_by(ME)):
            standing = made.state.views.jobs.get(claim.job)
            if standing is not None and standing.job is None:
                made.state.hear(ME, "claims", claim.job, None)
        await trio.sleep(2 * WORK)
        assert made.stands(more) is JobState.OPEN, "it has half of it"
        assert made.stands(lone) is JobState.DONE


async def test_claims_are_removed_sooner_if_space_is_scarce(autojump_clock: object) -> None:
    async with desk() as made:
        jobs = [made.state.submit(number) for number in range(ROOM // 1600)]
        for job in jobs:
            made.claim(ME, job, done=True, result=bytes(800))
            made.state.withdraw(job)
        await trio.sleep(defaults.PRESSED_KEPT + 3 * defaults.TIDY)
        assert not list(made.state.views.jobs.claims_by(ME))


async def test_the_job_of_a_killed_run_is_resumed(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        made = Desk(nursery)
        job, done = made.state.submit(0), made.state.submit(1)
        made.claim(ME, job, 1)
        made.claim(ME, done, 1, done=True, result=b"x")
        made.shelf.blobs["ee" * 32] = b"nobody was told of it"
        nursery.start_soon(made.worker.run)
        await trio.sleep(WORK + 5)
        assert made.stands(job) is JobState.DONE and made.runner.began == [job]
        assert not made.shelf.blobs
        nursery.cancel_scope.cancel()


async def test_nothing_is_claimed_before_earlier_claims_are_known(autojump_clock: object) -> None:
    async with trio.open_nursery() as nursery:
        made = Desk(nursery)
        made.state.shown = trio.Event()
        job = made.state.submit(0)
        nursery.start_soon(made.worker.run)
        await trio.sleep(60)
        assert not made.runner.began and not made.state.log
        made.claim(ME, job, 1, done=True, result=b"")  # what was stored is shown
        made.state.shown.set()
        await trio.sleep(60)
        assert not made.runner.began
        nursery.cancel_scope.cancel()


async def test_a_stopping_node_withdraws_its_claim(autojump_clock: object) -> None:
    async with desk() as made:
        job = made.state.submit(0)
        await trio.sleep(5)
        began = trio.current_time()
        await made.worker.leave()
        assert trio.current_time() - began < 4 * STORE
        assert made.stands(job) is JobState.OPEN and made.state.facts == {}
        await trio.sleep(30)
        assert made.stands(job) is JobState.OPEN


async def test_no_work_begins_while_the_disk_refuses_claims(autojump_clock: object) -> None:
    async with desk() as made:
        made.state.stored = False
        job = made.state.submit(0)
        await trio.sleep(60)
        assert not made.runner.began and made.stands(job) is JobState.OPEN


async def test_jobs_of_an_unknown_kind_are_not_done(autojump_clock: object) -> None:
    async with desk() as made:
        job = made.state.submit(0, kind="training")
        await trio.sleep(60)
        assert made.stands(job) is JobState.OPEN
        assert AUTHOR not in made.worker.crew.shares


async def test_a_job_that_falls_to_another_node_is_delayed(autojump_clock: object) -> None:
    """Of two nodes that claim it at once, both see the other claim before either begins to work."""
    async with desk() as made:
        made.state.hear(OTHER, "member", JOBS, jobs_fact(["sum"]))
        await trio.sleep(1)
        shares = made.worker.crew.shares
        jobs = [made.state.submit(number) for number in range(40)]
        theirs = [job for job in jobs if next(shares.heirs(job)) == OTHER]
        for job in set(jobs) - set(theirs[:1]):
            made.state.withdraw(job)
        (job,) = theirs[:1]
        while made.worker.current_job is None:  # noqa: ASYNC110
            await trio.sleep(0.1)
        await trio.sleep(defaults.HESITATION / 2)
        made.claim(OTHER, job, 2)
        await trio.sleep(30)
        assert not made.runner.began and made.worker.current_job is None


async def test_many_changes_do_not_stall_the_loop(autojump_clock: object) -> None:
    """Strangers can create any number of jobs and claims at once, without a stalled loop."""
    async with desk() as node:
        node.ready = False
        looked = count_looks(node.state.views.jobs)
        for number in range(3 * state_defaults.WATCHED):
            node.claim(OTHER, node.state.submit(number))
        seen = list[int]()
        while not seen or looked[0] < 3 * state_defaults.WATCHED:
            await trio.lowlevel.checkpoint()
            seen.append(looked[0])
        assert max(after - before for before, after in pairwise(seen)) <= 2 * defaults.AT_ONCE


def count_looks(jobs: Jobs) -> list[int]:
    """Count the jobs that are examined from now on."""
    looked, get = [0], jobs.get

    def counted(subject: str) -> JobStanding | None:
        looked[0] += 1
        return get(subject)

    jobs.get = counted  # type: ignore[method-assign]
    return looked


async def test_many_members_do_not_stall_the_loop(autojump_clock: object) -> None:
    async with desk() as node:
        peers = [Identity.from_seed(number.to_bytes(32)).peer for number in range(10, 1210)]
        for peer in peers:
            node.state.hear(peer, "member", JOBS, jobs_fact(["sum"]))
        seen, shares = list[int](), node.worker.crew.shares
        while len(shares) <= len(peers):
            await trio.lowlevel.checkpoint()
            seen.append(len(shares))
        assert max(after - before for before, after in pairwise(seen)) <= 2 * defaults.AT_ONCE


async def test_several_short_pieces_are_done_at_once(autojump_clock: object) -> None:
    """Their claims are in the feed together, and not one after the other."""
    async with desk() as made:
        made.runner.predicted = defaults.PIECE_TIME / 5
        jobs = [made.state.submit(number) for number in range(12)]
        await trio.sleep(3)
        assert 3 <= len(made.runner.began) <= 6 and made.worker.pieces == len(made.runner.began)
        claims = [fact for kind, _, fact in made.state.log if kind == "claims" and fact]
        assert all(fact["takes"] for fact in claims)
        await trio.sleep(3 * (WORK + 3))
        assert sorted(made.runner.ended) == sorted(jobs), "each once"


async def test_a_hedge_is_claimed_only_when_it_is_done(autojump_clock: object) -> None:
    async with desk() as made:
        made.state.hear(OTHER, "member", JOBS, jobs_fact(["sum"]))
        job = made.state.submit(0)
        made.claim(OTHER, job, takes=5)
        made.runner.claimed = lambda job: True  # a hedge is claimed at the end
        late = 5 * defaults.HEDGE_TIMES + defaults.HEDGE_LEAST
        await trio.sleep(late + 3)
        assert made.worker.current_job == job and made.state.said("claims", job) == []
        await trio.sleep(WORK + 2)
        assert made.outcome(job).text == "3"
        (fact,) = made.state.said("claims", job)
        assert fact is not None and fact["done"] and fact["attempt"] == 2


async def test_a_hedge_leaves_nothing_if_the_straggler_was_faster(autojump_clock: object) -> None:
    async with desk() as made:
        made.state.hear(OTHER, "member", JOBS, jobs_fact(["sum"]))
        job = made.state.submit(0)
        made.claim(OTHER, job, takes=5)
        made.runner.claimed = lambda job: True  # a hedge is claimed at the end
        await trio.sleep(5 * defaults.HEDGE_TIMES + defaults.HEDGE_LEAST + 3)
        made.claim(OTHER, job, done=True)
        await trio.sleep(1)
        assert made.worker.current_job is None and made.state.said("claims", job) == []


async def test_the_output_of_a_hedge_is_replicated_after_its_claim(
    autojump_clock: object,
) -> None:
    """Other nodes keep an output only for a node with a claim, and a hedge has none before."""
    async with desk() as made:
        asked: list[tuple[str, int]] = []

        async def replicate(job: str, blob: str, size: int) -> bool:
            asked.append((job, size))
            (fact,) = made.state.said("claims", job)
            assert fact is not None and fact["done"]
            return True

        made.replicate = replicate
        made.runner.text = "x" * 5000
        made.runner.claimed = lambda job: True  # a hedge is claimed at the end
        made.state.hear(OTHER, "member", JOBS, jobs_fact(["sum"]))
        job = made.state.submit(0)
        made.claim(OTHER, job, takes=5)
        await trio.sleep(5 * defaults.HEDGE_TIMES + defaults.HEDGE_LEAST + WORK + 6)
        assert asked == [(job, 5000)] and made.outcome(job).blob


@pytest.mark.parametrize("code", ["jobs-disk-full", "quota-full", "disk-full"])
async def test_a_full_disk_is_no_failure_of_a_job(autojump_clock: object, code: str) -> None:
    async with desk() as made:
        made.runner.errors = [SessionError(code, "no room")] * 12
        job = made.state.submit(0)
        await trio.sleep(12 * 620)
        assert made.outcome(job).text == "3" and len(made.runner.began) == 13


async def test_a_large_result_is_replicated_before_it_is_claimed(autojump_clock: object) -> None:
    async with desk() as made:
        asked: list[tuple[str, str, int]] = []

        async def replicate(job: str, blob: str, size: int) -> bool:
            asked.append((job, blob, size))
            assert made.stands(job) is JobState.CLAIMED
            await trio.sleep(1)
            return False

        made.replicate = replicate
        made.runner.text = "x" * 5000
        job = made.state.submit(0)
        await trio.sleep(WORK + 6)
        assert [(each[0], each[2]) for each in asked] == [(job, 5000)]
        assert made.outcome(job).blob, "a job is not lost for want of a second node"
