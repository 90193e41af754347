"""All nodes that see the same claims agree on the holder and the result of a job."""

import random
from itertools import permutations

from shoal.state import defaults
from shoal.state.views.fields import read_bytes, read_whole
from shoal.state.views.jobs import Claim, claim_fact, claim_hash, new_claim
from shoal.transport.identity import Identity

PEERS = [Identity.from_seed(bytes([n]) * 32).peer for n in range(1, 6)]
JOB = "5" * 64
LOW, HIGH = sorted(PEERS[:2], key=lambda peer: claim_hash(JOB, peer))


def ahead(*claims: Claim) -> Claim:
    """Return the winning claim, after checking that it wins in any order of arrival."""
    found = {min(order).rank: min(order) for order in permutations(claims)}
    assert len(found) == 1
    return next(iter(found.values()))


def test_the_highest_attempt_holds_a_job() -> None:
    first, second = new_claim(LOW, JOB, 1), new_claim(HIGH, JOB, 2)
    assert ahead(first, second) == second


def test_of_equal_attempts_the_lowest_hash_holds_the_job() -> None:
    low, high = new_claim(LOW, JOB, 1), new_claim(HIGH, JOB, 1)
    assert ahead(low, high) == low


def test_the_first_completed_attempt_wins() -> None:
    first = new_claim(HIGH, JOB, 1, done=True)
    second = new_claim(LOW, JOB, 2, done=True)
    third = new_claim(LOW, JOB, 3)
    assert ahead(first, second, third) == first
    assert ahead(second, third) == second


def test_of_equal_completed_attempts_the_lowest_hash_wins() -> None:
    low, high = (new_claim(peer, JOB, 1, done=True) for peer in (LOW, HIGH))
    assert ahead(low, high, new_claim(PEERS[3], JOB, 9)) == low


def test_no_claimant_wins_all_jobs() -> None:
    """A claimant can choose its rank only by making a new key for each job."""
    jobs = [f"{number:064x}" for number in range(500)]
    first = [min(PEERS, key=lambda peer, job=job: claim_hash(job, peer)) for job in jobs]  # type: ignore[misc]
    assert all(50 < first.count(peer) < 200 for peer in PEERS)


def test_without_the_rule_the_winner_depends_on_the_order() -> None:
    """Control: without the rule two nodes that saw the same claims show two winners."""
    claims = [new_claim(peer, JOB, 1, done=True) for peer in PEERS]
    rng = random.Random(1)
    by_rule, by_last_word = set(), set()
    for _ in range(20):
        heard = rng.sample(claims, len(claims))
        by_rule.add(min(heard).claimant)
        by_last_word.add(heard[-1].claimant)
    assert len(by_rule) == 1 and len(by_last_word) > 1


def test_a_claim_becomes_a_fact() -> None:
    assert claim_fact(new_claim(LOW, JOB, 3)) == {"attempt": 3}
    done = new_claim(LOW, JOB, 3, done=True, step=7, result=b"root")
    assert claim_fact(done) == {"attempt": 3, "step": 7, "done": True, "result": b"root"}
    assert read_bytes(done.result, defaults.JOB_RESULT_BYTES) == b"root"


def test_numbers_stay_within_the_bounds_of_views() -> None:
    claim = new_claim(LOW, JOB, 10**9, step=10**12)
    assert read_whole(claim.attempt, defaults.MAX_ATTEMPT, 1) == claim.attempt
    assert read_whole(claim.step, defaults.MAX_STEP) == claim.step
    assert new_claim(LOW, JOB, 0).attempt == 1 and new_claim(LOW, JOB, 1, result=b"x").result == b""
