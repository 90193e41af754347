"""Rounds without a coordinator: volunteers agree, whatever arrives when, and refuse poison."""

from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from bench.worlds.volunteers import Volunteers, peer_number, sides_of
from shoal.tasks.tuning.averaging.codecs import Codec, Vector, decode, encode
from shoal.tasks.tuning.averaging.outer import OuterState, first_state
from shoal.tasks.tuning.averaging.steps import Offer
from shoal.tasks.tuning.averaging.terms import RunTerms
from tests.marks import in_ci

VALUES = 40
INT8 = Codec("int8")
TERMS = RunTerms(
    name="test", subject=b"", values=VALUES, codec=INT8, inner_steps=10, patience=30.0, settle=4.0
)


class Hill:
    """A trainer that walks towards a goal, with noise of its own."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.goal = np.ones(VALUES, np.float32)

    def train(self, state: OuterState) -> tuple[Vector, int]:
        noise = self._random.standard_normal(VALUES, np.float32) * np.float32(0.02)
        return state.values + np.float32(0.3) * (self.goal - state.values) + noise, 100

    def loss(self, values: Vector) -> float:
        return float(np.square(values - self.goal).mean()) + 0.1


def world(count: int, seed: int = 1, terms: RunTerms = TERMS) -> Volunteers:
    start = first_state(np.zeros(terms.values, np.float32), terms.rule)
    swarm = Volunteers(terms, start, seed)
    for number in range(1, count + 1):
        swarm.join(number, Hill(number))
    return swarm


def heads(swarm: Volunteers) -> set[str]:
    return {member.rounds.head for member in swarm.live()}


def rounds(swarm: Volunteers) -> list[int]:
    return [member.rounds.state.round for member in swarm.live()]


def agree(swarm: Volunteers) -> bool:
    """Return whether all have the same state, bit for bit."""
    return len(heads(swarm)) == 1 and len({m.rounds.state.encode() for m in swarm.live()}) == 1


def settle(swarm: Volunteers, most: float = 600.0) -> None:
    """Let no volunteer train any more, and everything arrive."""
    for member in swarm.live():
        member.training = "none"
        swarm.members[member.peer].seconds = 1e9
    swarm.run(swarm.now + most)


def test_volunteers_train_together() -> None:
    swarm = world(4)
    swarm.run(400)
    settle(swarm)
    assert agree(swarm)
    assert min(rounds(swarm)) > 15
    member = swarm.live()[0]
    assert member.trainer.loss(member.rounds.state.values) < 0.11
    for head in member.adopted[-5:]:
        step = member.rounds.ledger.get(head)
        assert step is not None and len(step.accepted) == 4


def test_one_volunteer_trains_alone() -> None:
    swarm = world(1)
    swarm.run(200)
    assert rounds(swarm)[0] > 12


def test_a_volunteer_that_leaves_delays_one_round() -> None:
    swarm = world(4)
    swarm.run(100)
    swarm.leave(swarm.live()[0])
    before = min(rounds(swarm))
    swarm.run(300)
    assert min(rounds(swarm)) > before + (200 - 30) / 17
    settle(swarm)
    assert agree(swarm)


def test_a_volunteer_joins_late_with_the_state_that_most_have_signed() -> None:
    swarm = world(3)
    swarm.run(300)
    late = swarm.join(9, Hill(9))
    swarm.run(400)
    assert late.rounds.state.round >= min(rounds(swarm)) - 1
    assert late.rounds.state.round > 15
    step = swarm.live()[0].rounds.ledger.get(swarm.live()[0].rounds.head)
    assert step is not None and late.peer in {entry.peer for entry in step.accepted}


def test_a_slow_volunteer_takes_the_steps_of_the_others() -> None:
    swarm = world(3)
    slow = swarm.join(4, Hill(4), seconds=100.0)
    swarm.run(500)
    assert slow.rounds.state.round > 8
    settle(swarm)
    assert agree(swarm)


@pytest.mark.parametrize("seed", [*range(3), *in_ci(*range(3, 10))])
def test_all_agree_after_a_partition(seed: int) -> None:
    """Two sides go on alone, with joins and leaves. Once they meet, all have one history."""
    random = Random(seed)
    count = random.randrange(3, 9)
    swarm = world(count, seed)
    swarm.run(random.uniform(1, 80))
    cut = random.randrange(1, count)
    swarm.part(*sides_of(swarm.members, range(1, cut + 1), range(cut + 1, count + 1)))
    swarm.run(swarm.now + random.uniform(5, 250))
    if random.random() < 0.5 and count > 3:
        swarm.leave(swarm.live()[random.randrange(count)])
    swarm.heal()
    swarm.run(swarm.now + random.uniform(0, 60))
    settle(swarm)
    assert agree(swarm), (rounds(swarm), seed)
    before = min(rounds(swarm))
    for member in swarm.live():
        member.seconds, member.training = 10.0, ""
        swarm._begin(member)
    swarm.run(swarm.now + 120)
    assert min(rounds(swarm)) >= before + 3


def test_the_side_of_most_peers_wins() -> None:
    swarm = world(7)
    swarm.run(60)
    large, small = sides_of(swarm.members, range(1, 6), range(6, 8))
    swarm.part(large, small)
    swarm.run(130)
    of_large = {m.rounds.head for m in swarm.live() if m.peer in large}
    swarm.heal()
    swarm.run(200)
    settle(swarm)
    assert agree(swarm)
    ledger = swarm.live()[0].rounds.ledger
    at = ledger.get(swarm.live()[0].rounds.head)
    history = set[str]()
    while at is not None:
        history.add(at.id)
        at = ledger.get(at.base)
    assert of_large & history


def negated(factor: float) -> Callable[[bytes], bytes]:
    def spoil(data: bytes) -> bytes:
        return encode(INT8, decode(INT8, VALUES, data) * np.float32(factor))

    return spoil


def nan(data: bytes) -> bytes:
    return data[:24] + np.float32(np.nan).tobytes() + data[28:]


def longer(data: bytes) -> bytes:
    return data + b"\0"


POISONS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "reversed": (negated(-1), "loss"),
    "twice reversed": (negated(-2), "loss"),
    "a million times too large": (negated(1e6), "norm"),
    "not finite": (nan, "not-finite"),
    "of wrong shape": (longer, "wrong-size"),
}


@pytest.mark.parametrize("name", POISONS)
def test_poison_of_two_in_eight_is_refused(name: str) -> None:
    spoil, expected = POISONS[name]
    swarm = world(6)
    attackers = {swarm.join(number, Hill(number), spoil=spoil).peer for number in (7, 8)}
    swarm.run(100)
    honest = [member for member in swarm.live() if member.peer not in attackers]
    codes = {error.code for member in honest for error in member.rounds.refusals.values()}
    assert expected in codes
    swarm.run(250)
    for member in honest:
        for head in member.adopted[-5:]:
            step = member.rounds.ledger.get(head)
            if step is not None:
                assert not attackers & {entry.peer for entry in step.accepted}
        assert member.trainer.loss(member.rounds.state.values) < 0.11
        assert set(member.rounds.state.points) == attackers


class Ridge(Hill):
    """A trainer that begins where every change lowers the loss, as in a model of random weights."""

    def loss(self, values: Vector) -> float:
        return float(np.square(np.square(values) - 1).mean()) + 0.1


@pytest.mark.parametrize("factor", [-1.0, -2.0, -4.0])
def test_poison_is_refused_where_every_change_lowers_the_loss(factor: float) -> None:
    """Alone, a reversed update lowers the loss of the first state. Beside a peer's own one it does
    not, also if it is so large that a step would scale it down."""
    start = first_state(np.zeros(VALUES, np.float32), TERMS.rule)
    swarm = Volunteers(TERMS, start, 1)
    for number in range(1, 7):
        swarm.join(number, Ridge(number))
    attackers = {swarm.join(each, Ridge(each), spoil=negated(factor)).peer for each in (7, 8)}
    swarm.run(lambda: min(rounds(swarm)) >= 3)
    honest = next(member for member in swarm.live() if member.peer not in attackers)
    for head in honest.adopted:
        step = honest.rounds.ledger.get(head)
        assert step is not None and not attackers & {entry.peer for entry in step.accepted}
        assert len(step.accepted) == 6


def test_a_peer_that_is_late_judges_updates_alone() -> None:
    """Else it would have no verdicts when the round closes."""
    swarm = world(2)
    late = swarm.join(3, Hill(3), seconds=1000.0)
    swarm.run(TERMS.patience / 2)
    assert not any(known.good for known in late.rounds.updates.values())
    swarm.run(TERMS.patience)
    assert [known.good for known in late.rounds.updates.values()] == [True, True]


def test_an_update_on_an_earlier_state_is_refused() -> None:
    swarm = world(3)
    swarm.run(100)
    member = swarm.live()[0]
    step = member.rounds.ledger.get(member.rounds.head)
    assert step is not None
    root = "ab" * 32
    member.rounds.offered(peer_number(77), Offer(step.round, step.base, root, 5), swarm.now)
    assert member.rounds.refusals[root].code == "stale-base"
    swarm.run(150)
    assert all(
        root not in {entry.root for entry in known.entries}
        for known in map(member.rounds.ledger.get, member.adopted)
        if known is not None
    )


class Liar(Hill):
    """A trainer that finds every update harmless."""

    def loss(self, values: Vector) -> float:
        return 1.0


def test_a_minority_that_accepts_poison_does_not_prevail() -> None:
    """Attackers sign the steps that they like. The others follow the majority's."""
    swarm = world(5)
    bad = [swarm.join(number, Liar(number), spoil=negated(-1)) for number in (7, 8)]
    swarm.run(300)
    honest = [m for m in swarm.live() if m not in bad]
    assert min(m.rounds.state.round for m in honest) > 8
    assert {m.peer for m in bad} <= set(honest[0].rounds.state.points)
    assert honest[0].trainer.loss(honest[0].rounds.state.values) < 0.12


def test_members_disagree_on_one_update_and_still_agree_on_the_step() -> None:
    """Each measures the loss on its own data, so verdicts may differ."""
    swarm = world(4)
    odd = swarm.live()[0]
    odd.trainer = Liar(1)
    border = swarm.join(5, Hill(5), spoil=negated(-0.05))
    swarm.run(300)
    assert border.alive and min(rounds(swarm)) > 8
    settle(swarm)
    assert agree(swarm)
