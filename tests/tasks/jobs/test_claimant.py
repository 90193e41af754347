"""When a node takes a job, retries, yields and continues, by its own clock only."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from shoal.state import defaults
from shoal.state.errors import FeedFull
from shoal.state.feeds.entry import FeedName
from shoal.state.views.jobs import (
    Claim,
    Job,
    Jobs,
    JobState,
    claim_fact,
    claim_hash,
    job_fact,
    job_id,
    new_claim,
)
from shoal.tasks.jobs.claimant import Claimant, JobHandling
from shoal.tasks.jobs.crew import WorkerRing, patience
from shoal.tasks.jobs.defaults import HEDGE_LEAST, HEDGE_TIMES
from shoal.transport.identity import Identity, PeerId

PEERS = [Identity.from_seed(bytes([n]) * 32).peer for n in range(1, 5)]
AUTHOR, ME, OTHER, THIRD = PEERS
LEASE = 100.0
BRIEF, PATIENCE = defaults.CLAIM_PATIENCE


class Desk:
    """A node's view of jobs and its claimant; `now` is its monotonic clock."""

    def __init__(self, *workers: PeerId) -> None:
        self.jobs = Jobs()
        self.now = 5e6
        self.silence: dict[PeerId, float] = {}
        self.patience_s = PATIENCE
        self.unwilling: set[str] = set()
        self.shares = WorkerRing()
        for peer in workers or (ME,):
            self.shares.add(peer)
        self.boot()

    def boot(self, willing: Callable[[Job], bool] | None = None) -> None:
        self.claimant = Claimant(
            ME, self.jobs, self, JobHandling(willing or (lambda job: job.id not in self.unwilling))
        )

    def silent(self, peer: PeerId) -> float:
        return self.silence.get(peer, 0.0)

    def patience(self) -> float:
        return self.patience_s

    def submit(self, nonce: int = 0, author: PeerId = AUTHOR, **fields: Any) -> str:
        """Submit a job, or replace it."""
        named = nonce.to_bytes(4)
        job = Job(job_id(author, named), author, "sum", **{"lease": LEASE, **fields})
        name = FeedName(author, "jobs", 0)
        self.jobs.changed(name, job.id, job_fact(job, named))
        self.claimant.noticed(job.id, self.now)
        return job.id

    def delete(self, job: str) -> bool:
        self.jobs.changed(FeedName(AUTHOR, "jobs", 0), job, None)
        return self.claimant.noticed(job, self.now)

    def hear(self, claim: Claim, *, gone: bool = False) -> bool:
        """Add or remove a claim. Return whether this node must stop."""
        self.jobs.changed(claim.feed, claim.job, None if gone else claim_fact(claim))
        return self.claimant.noticed(claim.job, self.now)

    def notice_all(self) -> list[str]:
        """Return the jobs that this node must stop working on."""
        return [job for job in self.claimant.known() if self.claimant.noticed(job, self.now)]

    def next(self) -> Claim | None:
        return self.claimant.next(self.now)

    def begin(self) -> Claim:
        """Return the next claim, including jobs in other workers' shares."""
        claim = self.next()
        if claim is None:
            self.now += 2 * defaults.CLAIM_COURTESY
            claim = self.next()
        assert claim is not None and not self.hear(claim)
        return claim


def test_an_open_job_is_claimed_once() -> None:
    desk = Desk()
    job = desk.submit()
    claim = desk.next()
    assert claim == new_claim(ME, job, 1) and desk.claimant.running == [job]
    assert desk.next() is None  # its own claim may not be in its view yet
    assert not desk.hear(claim) and desk.next() is None


def test_a_finished_job_is_not_begun_again_before_the_view_has_it() -> None:
    desk = Desk()
    job = desk.submit()
    desk.begin()
    done = desk.claimant.finish(job, b"3")
    assert done == new_claim(ME, job, 1, done=True, result=b"3")
    assert desk.claimant.running == [] and desk.next() is None
    assert not desk.hear(done) and desk.next() is None
    assert job in desk.jobs.all_in(JobState.DONE) and not desk.claimant._runs


def test_a_result_that_is_too_large_is_refused() -> None:
    desk = Desk()
    job = desk.submit()
    desk.begin()
    with pytest.raises(FeedFull):
        desk.claimant.finish(job, bytes(defaults.JOB_RESULT_BYTES + 1))
    assert desk.claimant.running == [job]


def test_dependencies_come_first() -> None:
    desk = Desk()
    first = desk.submit(0)
    second = desk.submit(1, needs=(first, "f" * 64))
    assert desk.begin().job == first
    desk.hear(desk.claimant.finish(first, b""))
    assert desk.next() is None  # a job that it needs is missing
    desk.submit(1, needs=(first,))
    claim = desk.next()
    assert claim is not None and claim.job == second


def test_a_node_claims_only_jobs_that_it_can_and_may_do() -> None:
    desk = Desk()
    job = desk.submit()
    desk.unwilling.add(job)
    assert desk.next() is None
    desk.unwilling.clear()
    desk.submit(refused=frozenset([ME]))
    assert desk.next() is None
    desk.submit()
    desk.begin()
    desk.submit(refused=frozenset([OTHER]))
    assert desk.claimant.running == [job]
    name = FeedName(AUTHOR, "jobs", 0)
    refusing = Job(job, AUTHOR, "sum", refused=frozenset([ME]))
    desk.jobs.changed(name, job, job_fact(refusing, bytes([0])))
    assert desk.claimant.noticed(job, desk.now) and desk.claimant.running == []


# Claims of others.


def test_a_held_job_is_left_alone_while_it_progresses() -> None:
    desk = Desk(ME, OTHER)
    job = desk.submit()
    for step in range(1, 6):
        desk.hear(new_claim(OTHER, job, 1, step=step, saved=blob(step)))
        desk.now += LEASE - 1
        if (claim := desk.next()) is not None:
            doubted = desk.claimant.doubted(claim.job)
            assert doubted is not None and doubted.step == step
            assert desk.claimant.judge(job, step, desk.now) and not desk.claimant.running
            assert desk.next() is None
    desk.now += LEASE
    assert desk.next() is not None and desk.claimant.judge(job, 5, desk.now)
    desk.now += LEASE
    assert desk.next() is not None and desk.claimant.doubted(job) is not None
    assert not desk.claimant.judge(job, 5, desk.now), "no more than before"
    assert desk.claimant.running == [job] and desk.claimant.doubted(job) is None


def test_progress_without_the_work_does_not_keep_a_job() -> None:
    """A claimant that only counts has the job for one lease."""
    desk = Desk(ME, OTHER)
    job = desk.submit()
    for step in range(1, 11):
        desk.hear(new_claim(OTHER, job, 1, step=step))
        desk.now += LEASE / 10 - 0.01
        assert desk.next() is None
    desk.now += 1
    assert desk.next() == new_claim(ME, job, 2) and desk.claimant.doubted(job) is None


def test_a_blob_without_the_work_does_not_keep_a_job() -> None:
    desk = Desk(ME, OTHER)
    job = desk.submit()
    for step in range(1, 11):
        desk.hear(new_claim(OTHER, job, 1, step=step, saved=blob(step)))
        desk.now += LEASE / 10 + 0.01
    assert desk.next() == new_claim(ME, job, 2) and desk.claimant.doubted(job) is not None
    assert not desk.claimant.judge(job, 0, desk.now), "no node has the blob"
    assert desk.claimant.running == [job]


def test_one_node_checks_and_the_others_believe() -> None:
    desk = Desk(ME, OTHER, THIRD)
    theirs = 0
    for nonce in range(20):
        job = desk.submit(nonce)
        desk.hear(new_claim(OTHER, job, 1))
        desk.now += LEASE - 1
        desk.hear(new_claim(OTHER, job, 1, step=1, saved=blob(nonce)))
        desk.now += 2
        found = desk.next()
        first = next(peer for peer in desk.shares.heirs(job) if peer != OTHER)
        assert (found is not None) == (first == ME)
        theirs += found is None
        desk.hear(new_claim(OTHER, job, 1, done=True))
    assert 0 < theirs < 20


def test_work_that_was_left_stays_named_until_another_node_has_as_much() -> None:
    desk = Desk(ME, OTHER)
    job = desk.submit()
    desk.begin()
    desk.hear(desk.claimant.step(job, 7, blob(7)))
    left = desk.claimant.leave(job)
    desk.claimant.give_up(job, desk.now, failed=False)
    assert left is not None and not desk.hear(left)
    standing = desk.jobs.get(job)
    assert standing is not None and standing.state is JobState.OPEN and standing.claim is None
    assert [(claim.step, claim.saved) for claim in desk.jobs.saved_of(job)] == [(7, blob(7))]
    desk.hear(new_claim(OTHER, job, 1))
    assert desk.claimant.outdated(desk.now) == []
    desk.hear(new_claim(OTHER, job, 1, step=7, saved=blob(7)))
    assert desk.claimant.outdated(desk.now) == [job]


def blob(number: int) -> bytes:
    return number.to_bytes(defaults.CLAIM_SAVED_BYTES)


def test_a_dead_claimant_does_not_stop_a_job() -> None:
    desk = Desk(ME, OTHER)
    job = desk.submit(lease=1e4)
    desk.hear(new_claim(OTHER, job, 1))
    desk.silence[OTHER] = PATIENCE - 1
    assert desk.next() is None
    desk.silence[OTHER] = PATIENCE
    assert desk.next() == new_claim(ME, job, 2)


def test_jobs_of_few_silent_workers_are_retried_soon() -> None:
    desk = Desk(ME, OTHER)
    job = desk.submit(lease=1e4)
    desk.hear(new_claim(OTHER, job, 1))
    (fallen,) = jobs_of(desk, OTHER, 1)
    desk.silence[OTHER], desk.patience_s = BRIEF, PATIENCE
    assert desk.next() is None
    desk.patience_s = BRIEF
    assert {desk.begin().job for _ in range(2)} == {job, fallen}


@pytest.mark.parametrize(
    ("silent", "workers", "seconds"),
    [(0, 0, BRIEF), (1, 2, BRIEF), (2, 3, PATIENCE), (2, 20, BRIEF), (3, 20, PATIENCE)],
)
def test_many_silent_workers_may_be_behind_a_partition(
    silent: int, workers: int, seconds: float
) -> None:
    assert patience(silent, workers) == seconds


def test_without_attempts_a_dead_claimant_stops_a_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Claimant, "_is_stuck", lambda *_: False)
    desk = Desk(ME, OTHER)
    desk.hear(new_claim(OTHER, desk.submit(), 1))
    desk.silence[OTHER] = math.inf
    for _ in range(100):
        desk.now += 1e4
        assert desk.next() is None


def test_with_the_wall_clock_a_jump_ends_every_lease() -> None:
    """Control: if `now` could jump by an hour, jobs held by others would be begun again."""
    desk = Desk(ME, OTHER)
    desk.hear(new_claim(OTHER, desk.submit(), 1))
    desk.now += 1.0
    assert desk.next() is None
    desk.now += 3600.0
    assert desk.next() is not None


@pytest.mark.parametrize("done", [False, True])
def test_a_losing_claim_yields(done: bool) -> None:
    desk = Desk(ME, OTHER)
    job = desk.submit()
    desk.begin()
    ahead = new_claim(OTHER, job, 2, done=done)
    assert desk.hear(ahead) and desk.claimant.running == []


def test_of_two_concurrent_claims_exactly_one_yields() -> None:
    for nonce in range(20):
        desk = Desk(ME, OTHER)
        job = desk.submit(nonce)
        desk.begin()
        gave_way = desk.hear(new_claim(OTHER, job, 1))
        assert gave_way == (claim_hash(job, OTHER) < claim_hash(job, ME))


def test_work_on_a_deleted_job_stops() -> None:
    desk = Desk()
    job = desk.submit()
    desk.begin()
    assert desk.delete(job) and desk.claimant.running == []


def test_known_jobs_include_all_changes() -> None:
    desk = Desk(ME, OTHER)
    first, second = desk.submit(0), desk.submit(1)
    desk.begin()
    desk.begin()
    claim = new_claim(OTHER, first, 2)
    desk.jobs.changed(claim.feed, first, claim_fact(claim))
    assert desk.notice_all() == [first]
    assert desk.claimant.running == [second]


# Liars.


def test_a_claim_with_the_highest_attempt_does_not_hold_a_job_for_long() -> None:
    desk = Desk(ME, OTHER)
    job = desk.submit()
    lie = new_claim(OTHER, job, defaults.MAX_ATTEMPT)
    desk.hear(lie)
    desk.now += LEASE
    claim = desk.begin()
    assert claim.attempt == defaults.MAX_ATTEMPT
    assert not desk.hear(new_claim(OTHER, job, defaults.MAX_ATTEMPT, step=1))
    done = desk.claimant.finish(job, b"3")
    desk.hear(done)
    standing = desk.jobs.get(job)
    assert standing is not None and standing.claim == done


def test_after_several_attempts_claimants_do_not_yield_to_open_claims() -> None:
    desk = Desk(ME, OTHER)
    job = desk.submit()
    desk.hear(new_claim(OTHER, job, defaults.CLAIM_STUBBORN - 1))
    desk.now += LEASE
    desk.begin()
    assert not desk.hear(new_claim(THIRD, job, 1000))
    assert desk.hear(new_claim(THIRD, job, 1000, done=True))


def hold_for_ever(desk: Desk, job: str) -> float | None:
    """Let liars take turns and always show progress; return the seconds until this node
    continues."""
    began = desk.now
    for turn in range(200):
        desk.hear(new_claim((OTHER, THIRD)[turn % 2], job, 1 + turn, step=turn))
        desk.now += LEASE / 2
        if desk.next() is not None:
            return desk.now - began
    return None


def test_liars_that_show_progress_hold_a_job_only_for_a_while() -> None:
    desk = Desk(ME)
    job = desk.submit()
    seconds = hold_for_ever(desk, job)
    most = defaults.CLAIM_LEASES * LEASE
    assert seconds is not None and most <= seconds <= 2 * most + LEASE
    assert not desk.hear(new_claim(OTHER, job, 10**4))  # and it does not yield


def test_not_all_nodes_continue_at_once() -> None:
    found: set[float | None] = set()
    for number in range(10):
        desk = Desk()
        desk.claimant._own = Identity.from_seed(bytes([100 + number]) * 32).peer
        found.add(hold_for_ever(desk, desk.submit()))
    assert None not in found and len(found) > 5


def test_without_a_limit_liars_hold_a_job_indefinitely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Claimant, "_is_overdue", lambda *_: False)
    desk = Desk(ME)
    assert hold_for_ever(desk, desk.submit()) is None


def test_each_call_looks_at_the_next_few_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(defaults, "CLAIM_SCANNED", 10)
    desk = Desk()
    asked: list[str] = []
    jobs = [desk.submit(nonce) for nonce in range(25)]

    def willing(job: Job) -> bool:
        asked.append(job.id)
        return False

    desk.boot(willing)
    for _ in range(3):
        before = len(asked)
        assert desk.next() is None and len(asked) - before <= 10
    assert sorted(asked) == sorted(jobs)


# Order of jobs.


def first_of(desk: Desk, job: str) -> PeerId:
    return next(desk.shares.heirs(job))


def jobs_of(desk: Desk, peer: PeerId, count: int) -> list[str]:
    """Return jobs in a worker's share."""
    found: list[str] = []
    for nonce in range(256):
        job = job_id(AUTHOR, bytes([nonce]))
        if first_of(desk, job) == peer and len(found) < count:
            found.append(desk.submit(nonce))
    assert len(found) == count
    return found


def test_own_share_comes_before_other_shares() -> None:
    desk = Desk(ME, OTHER)
    others, own = jobs_of(desk, OTHER, 2), jobs_of(desk, ME, 2)
    assert {desk.begin().job for _ in range(2)} == set(own)
    assert {desk.begin().job for _ in range(2)} == set(others)


def test_the_share_of_a_partitioned_worker_is_left_to_it_for_a_while() -> None:
    desk = Desk(ME, OTHER)
    (job,) = jobs_of(desk, OTHER, 1)
    desk.silence[OTHER] = 1.0
    assert desk.next() is None
    desk.silence[OTHER] = PATIENCE
    assert desk.begin().job == job


def test_the_next_worker_inherits_and_is_left_alone_too() -> None:
    desk = Desk(ME, OTHER, THIRD)
    desk.silence = {OTHER: math.inf, THIRD: 1.0}
    mine: list[str] = []
    theirs: list[str] = []
    for job in jobs_of(desk, OTHER, 20):
        heir = next(peer for peer in desk.shares.heirs(job) if peer != OTHER)
        (mine if heir == ME else theirs).append(job)
    assert mine and theirs
    assert {desk.begin().job for _ in mine} == set(mine) and desk.next() is None
    desk.silence[THIRD] = 0.0
    assert {desk.begin().job for _ in theirs} == set(theirs)


def test_inherited_jobs_come_after_own_ones() -> None:
    desk = Desk(ME, OTHER)
    desk.silence[OTHER] = math.inf
    left, own = jobs_of(desk, OTHER, 3), jobs_of(desk, ME, 3)
    assert {desk.begin().job for _ in own} == set(own)
    assert {desk.begin().job for _ in left} == set(left)


def test_jobs_begun_by_others_come_last() -> None:
    desk = Desk(ME, OTHER)
    begun, fresh = jobs_of(desk, ME, 1), jobs_of(desk, OTHER, 1)
    desk.hear(new_claim(OTHER, begun[0], 1))
    desk.now += LEASE
    assert [desk.begin().job, desk.begin().job] == [*fresh, *begun]


def test_two_sides_of_a_partition_take_different_jobs() -> None:
    """Neither side sees the other's claims, and no job is done twice until one side has
    finished."""
    sides = [(ME, OTHER), (OTHER, ME)]
    taken: list[set[str]] = []
    for own, other in sides:
        desk = Desk(ME, OTHER)
        desk.claimant._own = own
        desk.silence[other] = 10.0
        for nonce in range(40):
            desk.submit(nonce)
        mine: set[str] = set()
        while (claim := desk.next()) is not None:
            mine.add(claim.job)
        taken.append(mine)
    assert not taken[0] & taken[1] and len(taken[0] | taken[1]) == 40


def test_without_shares_both_sides_take_the_same_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkerRing, "heirs", lambda self, job: iter(()))
    with pytest.raises(AssertionError):
        test_two_sides_of_a_partition_take_different_jobs()


# Failures and restarts.


def test_a_failed_job_is_left_to_others_for_a_lease() -> None:
    desk = Desk(ME, OTHER)
    job = desk.submit()
    claim = desk.begin()
    desk.claimant.give_up(job, desk.now)
    desk.hear(claim, gone=True)
    assert desk.next() is None
    desk.now += LEASE
    assert desk.next() == new_claim(ME, job, 1)


def test_a_job_without_capacity_is_retried_with_growing_pauses() -> None:
    desk = Desk(ME, OTHER)
    job = desk.submit()
    claim: Claim | None = desk.begin()
    pauses = []
    for _ in range(7):
        assert claim is not None
        desk.claimant.give_up(job, desk.now, failed=False)
        desk.hear(claim, gone=True)
        since = desk.now
        while (claim := desk.next()) is None:
            desk.now += 1
        desk.hear(claim)
        pauses.append(desk.now - since)
    assert pauses == [min(LEASE, defaults.CLAIM_PAUSE * 2**number) for number in range(7)]


def test_own_claims_are_resumed_after_a_start() -> None:
    desk = Desk(ME, OTHER)
    job, other = desk.submit(0), desk.submit(1)
    for _ in range(2):
        desk.begin()
    desk.jobs.changed(*_heard(new_claim(OTHER, other, 2)))
    desk.boot()
    desk.notice_all()
    assert desk.claimant.outdated(desk.now) == [other]
    assert desk.begin() == new_claim(ME, job, 1) and desk.next() is None


def _heard(claim: Claim) -> tuple[FeedName, str, Any]:
    return claim.feed, claim.job, claim_fact(claim)


def test_done_claims_stay_until_their_job_has_been_missing_for_long() -> None:
    """A view that lacks an author for a while must not lose the results for it."""
    desk = Desk()
    job = desk.submit()
    desk.begin()
    desk.hear(desk.claimant.finish(job, b"3"))
    assert desk.claimant.outdated(desk.now) == []
    desk.delete(job)
    assert desk.claimant.outdated(desk.now) == []
    desk.now += defaults.CLAIM_KEPT - 1
    assert desk.claimant.outdated(desk.now) == []
    desk.submit()
    assert desk.claimant.outdated(desk.now) == []
    desk.delete(job)
    desk.now += 2
    assert desk.claimant.outdated(desk.now) == []
    desk.now += defaults.CLAIM_KEPT
    assert desk.claimant.outdated(desk.now) == [job]


def test_a_losing_done_claim_stays() -> None:
    """The winning claim may be removed or refused. Then this one counts."""
    desk = Desk(ME, OTHER)
    job = desk.submit()
    desk.begin()
    desk.hear(desk.claimant.finish(job, b"3"))
    nearer = new_claim(OTHER, job, 1, done=True)
    if claim_hash(job, OTHER) > claim_hash(job, ME):
        desk.submit(refused=frozenset([ME]))
    desk.hear(nearer)
    standing = desk.jobs.get(job)
    assert standing is not None and standing.claim == nearer
    assert desk.claimant.outdated(desk.now) == []


def test_finished_jobs_are_forgotten() -> None:
    desk = Desk(ME, OTHER)
    for nonce in range(50):
        job = desk.submit(nonce)
        desk.hear(new_claim(OTHER, job, 1))
        desk.now += LEASE
        desk.begin()
        if nonce % 2:
            desk.claimant.give_up(job, desk.now)
        desk.hear(new_claim(OTHER, job, 9, done=True))
        if nonce % 3 == 0:
            desk.delete(job)
    held = desk.claimant
    assert not (held._runs or held._seen or held._paused)


# Between authors.

MANY = 10_000


def test_one_job_comes_before_ten_thousand_of_another_author() -> None:
    desk = Desk()
    for nonce in range(MANY):
        desk.submit(nonce)
    desk.begin()
    lone = desk.submit(0, THIRD)
    assert desk.begin().job == lone


@pytest.mark.ci
def test_without_turns_one_job_waits_for_thousands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: without turns the job with the lowest hash is next."""
    monkeypatch.setattr(
        "shoal.tasks.jobs.fairness.FairQueue.order", lambda *_, **__: (0.0, 0, 0.0, 0.0)
    )
    desk = Desk()
    for nonce in range(MANY):
        desk.submit(nonce)
    lone = desk.submit(0, THIRD)
    assert lone not in [desk.begin().job for _ in range(100)]


def test_authors_get_equal_turns_without_arrears_for_new_ones() -> None:
    desk = Desk()
    for nonce in range(200):
        desk.submit(nonce)
    for _ in range(50):
        desk.begin()
    late = {desk.submit(nonce, THIRD) for nonce in range(50)}
    turns = [desk.begin().job in late for _ in range(20)]
    assert 9 <= sum(turns) <= 11 and True in turns[:2] and False in turns[:3]


def test_another_workers_share_is_left_to_it_for_a_moment() -> None:
    desk = Desk(OTHER)
    desk.submit()
    assert desk.next() is None
    desk.now += defaults.CLAIM_COURTESY - 0.01
    assert desk.next() is None
    desk.now += defaults.CLAIM_COURTESY + 0.01
    assert desk.next() is not None


def test_an_author_that_waited_long_comes_before_the_own_share() -> None:
    """Its job is in the share of a live worker that does not do it; the other author's jobs are
    ours."""
    desk = Desk(ME, OTHER)
    nonces = iter(range(10**6))
    mine: list[str] = []
    while len(mine) < 500:
        job = desk.submit(next(nonces))
        (mine.append if next(desk.shares.heirs(job)) == ME else desk.delete)(job)
    while next(desk.shares.heirs(lone := desk.submit(next(nonces), THIRD))) == ME:
        desk.jobs.changed(FeedName(THIRD, "jobs", 0), lone, None)
    begun = [desk.begin().job for _ in range(50)]
    assert lone not in begun
    desk.now += 2 * defaults.CLAIM_WAITED
    assert desk.begin().job == lone


def test_an_author_with_workers_does_not_come_first() -> None:
    desk = Desk(ME, OTHER)
    nonces = iter(range(10**6))
    while next(desk.shares.heirs(own := desk.submit(next(nonces)))) != ME:
        desk.delete(own)
    theirs: list[str] = []
    while len(theirs) < 2:
        job = desk.submit(next(nonces), THIRD)
        if next(desk.shares.heirs(job)) == OTHER:
            theirs.append(job)
        else:
            desk.jobs.changed(FeedName(THIRD, "jobs", 0), job, None)
    desk.hear(new_claim(OTHER, theirs[0], 1))
    assert desk.next() is not None and desk.claimant.running == [own]
    desk.claimant.give_up(own, desk.now)
    desk.now += 2 * defaults.CLAIM_WAITED
    desk.hear(new_claim(OTHER, theirs[0], 1, step=1))
    desk.delete(own)
    own = desk.submit(next(nonces))
    while next(desk.shares.heirs(own)) != ME:
        desk.delete(own)
        own = desk.submit(next(nonces))
    claim = desk.next()
    assert claim is not None and claim.job == own


def test_claims_on_missing_jobs_are_removed_sooner_in_a_full_feed() -> None:
    desk = Desk()
    job = desk.submit()
    desk.begin()
    desk.hear(desk.claimant.finish(job, b"3"))
    desk.delete(job)
    assert desk.claimant.outdated(desk.now, kept=60.0) == []
    desk.now += 60
    assert desk.claimant.outdated(desk.now) == []
    assert desk.claimant.outdated(desk.now, kept=60.0) == [job]


def straggler(*, takes: int = 10) -> tuple[Desk, str]:
    """Return a node, and a job that another node has begun and expects to end in `takes` s."""
    desk = Desk(ME, OTHER)
    job = desk.submit()
    desk.hear(new_claim(OTHER, job, 1, takes=takes))
    assert desk.next() is None
    return desk, job


LATE = HEDGE_TIMES * 10 + HEDGE_LEAST


def test_a_straggler_is_hedged_once_it_is_much_later_than_it_expected() -> None:
    desk, job = straggler()
    desk.now += LATE - 1
    desk.hear(new_claim(OTHER, job, 1, step=3, takes=10))
    assert desk.next() is None
    desk.now += 1
    assert desk.next() is not None and desk.claimant.hedges(job), "its progress does not help"
    assert desk.next() is None, "once"
    assert not desk.hear(new_claim(OTHER, job, 1, step=4, takes=10)), "both continue"
    done = desk.claimant.finish(job, b"3")
    assert (done.attempt, done.done) == (2, True)


def test_a_hedge_stops_when_the_straggler_is_done() -> None:
    desk, job = straggler()
    desk.now += LATE
    assert desk.next() is not None
    assert desk.hear(new_claim(OTHER, job, 1, done=True, takes=10))
    assert desk.claimant.running == []


def test_a_claimant_that_expects_nothing_is_not_hedged() -> None:
    desk, job = straggler(takes=0)
    desk.now += LEASE - 1
    assert desk.next() is None
    desk.now += 1
    assert desk.next() is not None and not desk.claimant.hedges(job), "its lease has expired"


def test_only_one_other_node_hedges() -> None:
    hedging = 0
    for own in (ME, THIRD):
        desk = Desk(ME, OTHER, THIRD)
        desk.claimant._own = own
        job = desk.submit()
        desk.hear(new_claim(OTHER, job, 1, takes=10))
        desk.now += LATE
        hedging += desk.next() is not None
    assert hedging == 1


def test_an_expected_time_stays_in_the_claim() -> None:
    desk = Desk()
    job = desk.submit()
    assert desk.next() is not None
    assert desk.claimant.expect(job, 3.2).takes == 4
    assert desk.claimant.step(job, 1).takes == 4
    assert desk.claimant.finish(job, b"").takes == 4


def test_priorities_and_deadlines_order_the_jobs_of_one_author() -> None:
    desk = Desk()
    late = desk.submit(0, deadline=2000)
    desk.submit(1)
    soon = desk.submit(2, deadline=1000)
    first = desk.submit(3, priority=7)
    assert [desk.begin().job for _ in range(3)] == [first, soon, late]


def test_a_priority_wins_nothing_from_other_authors() -> None:
    desk = Desk()
    for nonce in range(50):
        desk.submit(nonce, priority=9, deadline=1)
    other = {desk.submit(nonce, THIRD, priority=0) for nonce in range(50)}
    assert 9 <= sum(desk.begin().job in other for _ in range(20)) <= 11


def test_a_small_job_does_not_wait_for_a_giant_one_of_the_same_author() -> None:
    desk = Desk()
    first = desk.submit(0, parts=200, rows=64)
    for nonce in range(1, 200):
        desk.submit(nonce, of=first, part=nonce, parts=200, rows=64)
    for _ in range(3):
        desk.begin()
    small = desk.submit(500, rows=3)
    assert small in [desk.begin().job for _ in range(2)]
