"""All jobs merged with all claims, which is equal at every node in any order of arrival."""

import random
from collections.abc import Mapping
from typing import Any

import pytest

from shoal.state import defaults
from shoal.state.feeds.entry import FeedName
from shoal.state.views.jobs import (
    KNOWN,
    Claim,
    Job,
    Jobs,
    JobStanding,
    JobState,
    claim_fact,
    claim_hash,
    job_fact,
    job_id,
    new_claim,
)
from shoal.transport.identity import Identity, PeerId

PEERS = [Identity.from_seed(bytes([n]) * 32).peer for n in range(1, 9)]
AUTHOR = PEERS[0]
Fact = tuple[FeedName, str, Mapping[str, Any] | None]


def job_of(nonce: int = 0, author: PeerId = AUTHOR, **fields: Any) -> Job:
    return Job(job_id(author, bytes([nonce])), author, "sum", **fields)


def a_job(nonce: int = 0, author: PeerId = AUTHOR, **fields: Any) -> Fact:
    job = job_of(nonce, author, **fields)
    return FeedName(author, "jobs", 0), job.id, job_fact(job, bytes([nonce]))


def a_claim(claim: Claim) -> Fact:
    return claim.feed, claim.job, claim_fact(claim)


def no_more(fact: Fact) -> Fact:
    return fact[0], fact[1], None


def standing(view: Jobs, job: str) -> JobStanding:
    found = view.get(job)
    assert found is not None
    return found


JOB = job_of()
LOW, HIGH = sorted(PEERS[1:3], key=lambda peer: claim_hash(JOB.id, peer))


def test_a_job_goes_from_open_to_done() -> None:
    view = Jobs()
    view.changed(*a_job())
    assert standing(view, JOB.id) == JobStanding(JOB.id, JOB, None)
    assert list(view.all_in(JobState.OPEN)) == [JOB.id] == view.of(AUTHOR)
    view.changed(*a_claim(new_claim(HIGH, JOB.id, 1)))
    found = standing(view, JOB.id)
    assert found.state is JobState.CLAIMED and found.attempt == 1
    assert found.claim is not None and found.claim.claimant == HIGH
    view.changed(*a_claim(new_claim(HIGH, JOB.id, 1, done=True, result=b"3")))
    found = standing(view, JOB.id)
    assert found.state is JobState.DONE and found.claim is not None and found.claim.result == b"3"
    assert list(view.all_in(JobState.DONE)) == [JOB.id] and not view.all_in(JobState.OPEN)
    assert not view.all_in(JobState.CLAIMED)


def test_the_next_claim_wins_when_the_winner_is_removed() -> None:
    view = Jobs()
    low, high = new_claim(LOW, JOB.id, 1), new_claim(HIGH, JOB.id, 1)
    for fact in (a_job(), a_claim(high), a_claim(low)):
        view.changed(*fact)
    assert standing(view, JOB.id).claim == low and view.claims_of(JOB.id) == [low, high]
    view.changed(*no_more(a_claim(low)))
    assert standing(view, JOB.id).claim == high == view.claim_by(HIGH, JOB.id)
    view.forgotten(high.feed)
    assert standing(view, JOB.id).state is JobState.OPEN and view.claims_of(JOB.id) == []


def test_claims_may_come_before_their_job_and_stay_after() -> None:
    view = Jobs()
    claim = new_claim(LOW, JOB.id, 1)
    view.changed(*a_claim(claim))
    assert standing(view, JOB.id).state is JobState.UNKNOWN
    view.changed(*a_job())
    assert standing(view, JOB.id).state is JobState.CLAIMED
    view.changed(*no_more(a_job()))
    assert standing(view, JOB.id).state is JobState.UNKNOWN
    assert list(view.claims_by(LOW)) == [claim]
    view.changed(*no_more(a_claim(claim)))
    assert view.get(JOB.id) is None and not view.entries
    assert not any(view.all_in(state) for state in KNOWN)


def test_no_author_writes_the_job_of_another() -> None:
    view = Jobs()
    _, key, value = a_job()
    view.changed(FeedName(HIGH, "jobs", 0), key, value)
    assert view.bad == 1 and view.get(JOB.id) is None


def test_without_the_check_any_author_could_write_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.state.views.jobs.job_id", lambda author, nonce: JOB.id)
    view = Jobs()
    _, key, value = a_job()
    view.changed(FeedName(HIGH, "jobs", 0), key, value)
    found = standing(view, JOB.id).job
    assert found is not None and found.author == HIGH


def test_refused_claims_do_not_count() -> None:
    """Otherwise a liar that says a job is done would have it for good."""
    view = Jobs()
    lie, work = new_claim(LOW, JOB.id, 1, done=True), new_claim(HIGH, JOB.id, 2)
    for fact in (a_job(), a_claim(lie), a_claim(work)):
        view.changed(*fact)
    assert standing(view, JOB.id).claim == lie
    view.changed(*a_job(refused=frozenset([LOW])))
    assert standing(view, JOB.id).claim == work and view.claims_of(JOB.id) == [lie, work]
    again = new_claim(LOW, JOB.id, 1, done=True, result=b"other")
    view.changed(*a_claim(again))
    assert standing(view, JOB.id).claim == work
    view.changed(*a_job())
    assert standing(view, JOB.id).claim == again


@pytest.mark.parametrize(
    "change",
    [
        {"kind": None},
        {"kind": "k" * 33},
        {"nonce": b"other"},
        {"nonce": b"n" * 17},
        {"spec": b"s" * (defaults.JOB_SPEC_BYTES + 1)},
        {"needs": ["x"]},
        {"needs": [JOB.id] * 17},
        {"lease": "long"},
        {"refused": [AUTHOR] * 65},
        {"refused": [b"k" * 32]},
    ],
)
def test_malformed_jobs_are_refused(change: dict[str, Any]) -> None:
    name, key, value = a_job()
    view = Jobs()
    view.changed(name, key, {**(value or {}), **change})
    assert view.bad == 1 and view.get(key) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (JOB.id, {}),
        (JOB.id, {"attempt": "1"}),
        (JOB.id, {"attempt": True}),
        (JOB.id, {"attempt": 1, "step": 1.5}),
        (JOB.id, {"attempt": 1, "done": True, "result": "text"}),
        (JOB.id, {"attempt": 1, "done": True, "result": b"r" * 1025}),
        (JOB.id[1:], {"attempt": 1}),
    ],
)
def test_malformed_claims_are_refused(key: str, value: dict[str, Any]) -> None:
    view = Jobs()
    view.changed(FeedName(LOW, "claims", 0), key, value)
    assert view.bad == 1 and not view.entries


def test_numbers_are_clamped() -> None:
    view = Jobs()
    view.changed(*a_job())
    view.changed(FeedName(LOW, "claims", 0), JOB.id, {"attempt": 2**60, "step": -1, "done": 1})
    claim = standing(view, JOB.id).claim
    assert claim is not None
    assert (claim.attempt, claim.step, claim.done) == (defaults.MAX_ATTEMPT, 0, False)
    name, key, value = a_job(1)
    view.changed(name, key, {**(value or {}), "lease": 10**9})
    job = standing(view, key).job
    assert job is not None and job.lease == defaults.JOB_LEASE[2]


def shown(view: Jobs) -> dict[str, tuple[JobState, PeerId | None, int]]:
    """Return the state of all jobs in a view, after checking that its indexes agree."""
    found = {}
    for job in view.entries:
        one = standing(view, job)
        assert [state for state in KNOWN if job in view.all_in(state)] == (
            [one.state] if one.job else []
        )
        found[job] = (one.state, one.claim.claimant if one.claim else None, one.attempt)
    assert all(job in found for state in KNOWN for job in view.all_in(state))
    return found


def derived_anew(facts: Mapping[tuple[FeedName, str], Mapping[str, Any]]) -> Jobs:
    view = Jobs()
    for (name, key), value in facts.items():
        view.changed(name, key, value)
    return view


def random_fact(rng: random.Random) -> Fact:
    nonce, peer = rng.randrange(6), rng.choice(PEERS)
    if rng.random() < 0.15:
        refused = frozenset(rng.sample(PEERS, rng.randrange(3)))
        fact = a_job(nonce, refused=refused)
    else:
        attempt, done = rng.randrange(1, 4), rng.random() < 0.2
        fact = a_claim(new_claim(peer, job_of(nonce).id, attempt, done=done))
    return no_more(fact) if rng.random() < 0.3 else fact


def test_views_are_equal_in_any_order_of_arrival() -> None:
    """Each author's changes are in order, and authors are mixed at random, with forgotten feeds."""
    for seed in range(30):
        rng = random.Random(seed)
        facts = [random_fact(rng) for _ in range(300)]
        views = [Jobs() for _ in range(3)]
        for view in views:
            queues: dict[FeedName, list[Fact]] = {}
            for fact in facts:
                queues.setdefault(fact[0], []).append(fact)
            while queues:
                name = rng.choice(sorted(queues))
                view.changed(*queues[name].pop(0))
                if not queues[name]:
                    del queues[name]
            view.forgotten(FeedName(PEERS[5], "claims", 0))
        held = {(name, key): value for name, key, value in facts if name.author != PEERS[5]}
        expected = derived_anew({at: value for at, value in held.items() if value is not None})
        assert shown(views[0]) == shown(views[1]) == shown(views[2]) == shown(expected)
        for job in shown(expected):
            assert standing(expected, job).claim == least(expected, job)


def least(view: Jobs, job: str) -> Claim | None:
    """Return the first valid claim by the rule."""
    one = standing(view, job).job
    refused = one.refused if one else frozenset()
    counting = [claim for claim in view.claims_of(job) if claim.claimant not in refused]
    return min(counting, default=None)


def test_a_change_is_cheap_with_many_claims_on_one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands claim one job, and each winner is removed. No change reads all claims."""
    view, compared = Jobs(), [0]
    crowd = [new_claim(PeerId(f"liar {number}"), JOB.id, 1) for number in range(3_000)]
    for fact in (a_job(), *map(a_claim, crowd)):
        view.changed(*fact)

    def less(one: Claim, other: Claim) -> bool:
        compared[0] += 1
        return one.rank < other.rank

    monkeypatch.setattr(Claim, "__lt__", less)
    for claim in sorted(crowd, key=lambda claim: claim.rank)[:2_000]:
        assert standing(view, JOB.id).claim == claim
        view.changed(*no_more(a_claim(claim)))
    assert compared[0] < 2_000 * 40


def test_reading_all_claims_at_each_change_is_expensive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: with a minimum over all claims, the bound of the test above is far exceeded."""
    compared = [0]

    def less(one: Claim, other: Claim) -> bool:
        compared[0] += 1
        return one.rank < other.rank

    def ahead(self: Jobs, entry: Any, job: Job | None) -> Claim | None:
        entry.heap[:] = filter(self._lives, entry.heap)
        return min(entry.heap, default=None)

    monkeypatch.setattr(Claim, "__lt__", less)
    monkeypatch.setattr(Jobs, "ahead", ahead)
    view = Jobs()
    view.changed(*a_job())
    for number in range(200):
        view.changed(*a_claim(new_claim(PeerId(f"liar {number}"), JOB.id, 1)))
    assert compared[0] > 200 * 40


def test_frequent_changes_of_a_claim_take_no_memory() -> None:
    view = Jobs()
    view.changed(*a_job(refused=frozenset([HIGH])))
    for turn in range(5_000):
        for peer in (LOW, HIGH):
            view.changed(*a_claim(new_claim(peer, JOB.id, 1 + turn % 7, step=turn)))
    entry = view.entries[JOB.id]
    assert len(entry.heap) + len(entry.refused) <= 2 * 2 + 8 + 1


def test_only_changes_of_the_winning_claim_are_reported() -> None:
    view = Jobs()
    view.changed(*a_job())
    view.changed(*a_claim(new_claim(LOW, JOB.id, 1)))
    watch = view.watch()
    view.changed(*a_claim(new_claim(HIGH, JOB.id, 1)))
    assert watch.next_now() is None
    view.changed(*a_claim(new_claim(LOW, JOB.id, 1, step=2)))
    change = watch.next_now()
    assert change is not None and change.subject == JOB.id and change.value is view.get(JOB.id)


def test_waiting_jobs_are_listed_by_author() -> None:
    view, other = Jobs(), PEERS[7]
    mine = [a_job(nonce) for nonce in range(3)]
    theirs = a_job(0, other)
    for fact in (*mine, theirs):
        view.changed(*fact)
    assert set(view.waiting) == {AUTHOR, other} and list(view.waiting[other]) == [theirs[1]]
    first = mine[0][1]
    view.changed(*a_claim(new_claim(HIGH, first, 1)))
    assert (view.held(AUTHOR), view.held(other)) == (1, 0) and len(view.waiting[AUTHOR]) == 3
    view.changed(*a_claim(new_claim(HIGH, first, 1, done=True)))
    assert view.held(AUTHOR) == 0 and len(view.waiting[AUTHOR]) == 2
    view.changed(*a_claim(new_claim(HIGH, mine[1][1], 1)))
    for fact in mine:
        view.changed(*no_more(fact))
    assert set(view.waiting) == {other} and view.held(AUTHOR) == 0
    view.changed(*mine[1])
    assert view.held(AUTHOR) == 1, "its claim came before it"


@pytest.mark.parametrize("seed", range(20))
def test_waiting_jobs_are_those_not_done(seed: int) -> None:
    """Holds for any changes."""
    rng, view = random.Random(seed), Jobs()
    facts = [a_job(nonce, author) for nonce in range(6) for author in PEERS[:3]]
    jobs = [fact[1] for fact in facts]
    for _ in range(400):
        if rng.random() < 0.4:
            fact = rng.choice(facts)
            view.changed(*rng.choice([fact, no_more(fact)]))
        else:
            claim = new_claim(rng.choice(PEERS), rng.choice(jobs), 1, done=rng.random() < 0.3)
            view.changed(*rng.choice([a_claim(claim), no_more(a_claim(claim))]))
        waiting = {job for each in view.waiting.values() for job in each}
        assert waiting == {*view.all_in(JobState.OPEN), *view.all_in(JobState.CLAIMED)}
        assert all(view.waiting.values())
        assert sum(map(view.held, PEERS)) == len(view.all_in(JobState.CLAIMED))
