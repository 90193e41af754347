"""One rate, shared."""

import random

import pytest

from shoal.transport.relay.defaults import BURST_S, LIGHT_BYTES
from shoal.transport.relay.limiter import CircuitShare, RelayLimiter

RATE = 1_000_000


def drive(
    limiter: RelayLimiter, wants: dict[CircuitShare, float], seconds: float, *, step: float = 0.005
) -> dict[CircuitShare, int]:
    """Each share takes what it may, up to its wish in bytes per second; what it got."""
    got = dict.fromkeys(wants, 0)
    for turn in range(1, int(seconds / step) + 1):
        now = turn * step
        for share, wish in wants.items():
            size = min(share.room(now), max(0, int(wish * now) - got[share]))
            share.spend(size)
            got[share] += size
    return got


def test_the_rate_is_kept_and_used() -> None:
    limiter = RelayLimiter(RATE, 0.0)
    share = limiter.join(1)
    got = drive(limiter, {share: 1e12}, 10.0)[share]
    assert 0.97 * 10 * RATE <= got <= (10 + BURST_S) * RATE


@pytest.mark.parametrize("count", [2, 7, 128])
def test_the_greedy_get_equal_parts(count: int) -> None:
    limiter = RelayLimiter(RATE, 0.0)
    got = drive(limiter, {limiter.join(1): 1e12 for _ in range(count)}, 20.0)
    assert 0.9 * 20 * RATE <= sum(got.values()) <= (20 + BURST_S) * RATE
    assert max(got.values()) - min(got.values()) <= 0.25 * 20 * RATE / count + BURST_S * RATE


def test_a_small_demand_is_met_in_full() -> None:
    limiter = RelayLimiter(RATE, 0.0)
    little = limiter.join(1)
    wants = {little: 20_000.0} | {limiter.join(1): 1e12 for _ in range(5)}
    got = drive(limiter, wants, 10.0)
    assert got[little] >= 0.97 * 200_000
    assert sum(got.values()) >= 0.97 * 10 * RATE  # and nothing stays unused


@pytest.mark.parametrize(("weight", "size"), [(4, 1500), (1, 350)])
def test_a_small_demand_does_not_wait_behind_greedy_ones(weight: int, size: int) -> None:
    """A stranger beside members that wait gets a quarter of that."""
    limiter = RelayLimiter(RATE, 0.0)
    light, greedy = limiter.join(weight), [limiter.join(4) for _ in range(10)]
    waited = 0
    for turn in range(1, 2000):
        now = turn * 0.005
        for share in greedy:
            share.spend(share.room(now))
        if turn % 20 == 0 and now > 1:  # ten times a second, once the greedy shares are known
            waited += light.room(now) < size
            light.spend(size)
    assert not waited


def test_many_that_want_little_get_no_more_than_there_is() -> None:
    limiter = RelayLimiter(RATE, 0.0)
    got = drive(limiter, {limiter.join(1): 25_000.0 for _ in range(100)}, 10.0)
    assert 0.9 * 10 * RATE <= sum(got.values()) <= (10 + BURST_S) * RATE
    assert min(got.values()) > 0.5 * 10 * RATE / 100


def test_members_weigh_more() -> None:
    limiter = RelayLimiter(RATE, 0.0)
    member, stranger = limiter.join(4), limiter.join(1)
    got = drive(limiter, {member: 1e12, stranger: 1e12}, 20.0)
    assert 2.5 <= got[member] / got[stranger] <= 4.5


def test_all_strangers_together_get_a_quarter_while_a_member_waits() -> None:
    limiter = RelayLimiter(64_000, 0.0)
    member = limiter.join(4)
    got = drive(
        limiter, {limiter.join(1): 1e12 for _ in range(40)} | {member: 1e12}, 10.0, step=0.02
    )
    assert got[member] >= 0.7 * 10 * 64_000
    assert sum(got.values()) >= 0.9 * 10 * 64_000


def test_many_share_a_small_rate_in_pieces_that_are_worth_a_packet() -> None:
    limiter = RelayLimiter(64_000, 0.0)
    shares, pieces, now = [limiter.join(1) for _ in range(80)], [], 0.0
    due = {share: number / 1000 for number, share in enumerate(shares)}
    while now < 20:
        share = min(due, key=lambda each: due[each])
        now = due[share]
        if room := share.room(now):
            pieces.append(room)
            share.spend(room)
        due[share] = now + share.pause()
    assert 0.9 * 20 * 64_000 <= sum(pieces) <= (20 + BURST_S) * 64_000
    assert sum(pieces) / len(pieces) > 700


def test_an_idle_share_holds_nothing_back() -> None:
    limiter = RelayLimiter(RATE, 0.0)
    quiet = [limiter.join(1) for _ in range(100)]
    for share in quiet:
        share.room(0.0)
        share.room(0.2)
    share = limiter.join(1)
    got = drive(limiter, {share: 1e12}, 10.0)[share]
    assert got >= 0.85 * 10 * RATE


def test_debts_are_paid_by_those_that_leave_too() -> None:
    """Taking in advance and leaving, again and again, must not beat the rate."""
    limiter = RelayLimiter(RATE, 0.0)
    taken = 0
    for turn in range(1000):
        share = limiter.join(1)
        if share.room(turn * 0.01):
            share.spend(300_000)
            taken += 300_000
        share.leave()
    assert taken <= 10 * RATE + 600_000


def test_no_rate_is_nothing() -> None:
    share = RelayLimiter(0, 0.0).join(1)
    assert share.room(5.0) == 0
    assert share.pause() == 0.5


def test_a_share_that_left_gets_nothing() -> None:
    limiter = RelayLimiter(RATE, 0.0)
    share = limiter.join(1)
    share.leave()
    share.leave()
    share.spend(1 << 40)
    assert share.room(1.0) == 0
    assert limiter.join(1).room(1.0) == int(0.75 * RATE * BURST_S) + LIGHT_BYTES


def test_any_mix_keeps_the_rate() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        limiter = RelayLimiter(RATE, 0.0)
        shares = [limiter.join(rng.choice((1, 4)))]
        now, taken = 0.0, 0
        while now < 10:
            now += rng.expovariate(100)
            action = rng.random()
            if action < 0.02:
                shares.append(limiter.join(rng.choice((1, 4))))
            elif action < 0.03 and len(shares) > 1:
                shares.pop(rng.randrange(len(shares))).leave()
            share = rng.choice(shares)
            size = rng.randint(0, share.room(now))
            share.spend(size)
            taken += size
        assert taken <= (now + BURST_S) * RATE + 1


def test_a_pause_brings_a_grain() -> None:
    limiter = RelayLimiter(RATE, 0.0)
    share, now, pauses = limiter.join(1), 0.0, 0
    while now < 10:
        share.spend(share.room(now))
        now += share.pause()
        pauses += 1
    assert 0.005 <= share.pause() <= 0.03
    assert pauses == pytest.approx(10 * RATE / 16384, rel=0.1)
