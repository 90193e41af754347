"""Which steps a peer follows, with a handful of signatures."""

import numpy as np

from bench.worlds.volunteers import peer_number
from shoal.tasks.tuning.averaging.actions import Compute, Known
from shoal.tasks.tuning.averaging.outer import first_state
from shoal.tasks.tuning.averaging.rounds import Rounds
from shoal.tasks.tuning.averaging.steps import Entry, Offer, genesis, step_of
from tests.tasks.tuning.averaging.test_rounds import TERMS, VALUES


def test_a_refused_update_needs_most_peers_even_on_another_side() -> None:
    me, bad, *others = [peer_number(number) for number in range(1, 7)]
    base, vector = genesis(TERMS.id), np.ones(VALUES, np.float32)
    rounds = Rounds(TERMS, me, first_state(vector, TERMS.rule))
    for peer in (bad, *others):
        rounds.here(peer)
    offer = Offer(1, base, "22" * 32, 10)
    rounds.offered(bad, offer, 0.0)
    rounds.poll(0.0)
    rounds.decoded(offer.root, Known(vector, 1.0))
    rounds.poll(0.0)
    rounds.judged(offer.root, good=False)
    mine = rounds.contributed("11" * 32, Known(vector, 1.0), 10, 0.0)
    now = 100.0
    (compute,) = [each for each in rounds.poll(now) if isinstance(each, Compute)]
    rounds.computed(compute.step, compute.run(TERMS))
    rounds.poll(now)
    rounds.poll(now + 10)
    assert rounds.head == compute.step.id
    entries = [Entry(me, mine.root, 10), Entry(bad, offer.root, 10)]
    poisoned = step_of(TERMS.id, base, 1, entries)
    for peer in others[:2]:
        rounds.signed(peer, poisoned)
    assert not rounds.poll(now + 20) and rounds.head == compute.step.id
    rounds.signed(others[2], poisoned)
    rounds.signed(others[3], poisoned)
    assert any(isinstance(each, Compute) for each in rounds.poll(now + 30))


def test_a_round_does_not_wait_for_a_peer_that_left_but_counts_it_in_a_majority() -> None:
    me, gone, other = [peer_number(number) for number in range(1, 4)]
    vector = np.ones(VALUES, np.float32)

    def closed(leaves: bool) -> Rounds:
        rounds = Rounds(TERMS, me, first_state(vector, TERMS.rule))
        for peer in (gone, other):
            rounds.here(peer)
        rounds.offered(gone, Offer(1, genesis(TERMS.id), "22" * 32, 10), 0.0)
        rounds.contributed("11" * 32, Known(vector, 1.0), 10, 0.0)
        rounds.poll(0.0)
        rounds.decoded("22" * 32, Known(vector, 1.0, good=True))
        if leaves:
            rounds.left(other)
        return rounds

    assert not any(isinstance(each, Compute) for each in closed(leaves=False).poll(1.0))
    rounds = closed(leaves=True)
    (compute,) = [each for each in rounds.poll(1.0) if isinstance(each, Compute)]
    rounds.computed(compute.step, compute.run(TERMS))
    rounds.signed(other, compute.step)  # on its way when its author left
    rounds.left(other)
    rounds.poll(1.0)
    assert len(rounds.roster(genesis(TERMS.id))) == 3
    rounds.here(other)  # it is back, and waited for
    assert other in rounds.roster(genesis(TERMS.id)) and other not in rounds._left
