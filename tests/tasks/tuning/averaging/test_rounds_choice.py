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
    rounds.computed(compute.step, compute.run(TERMS), "aa" * 32)
    rounds.poll(now)
    rounds.poll(now + 10)
    assert rounds.head == compute.step.id
    entries = [Entry(me, mine.root, 10), Entry(bad, offer.root, 10)]
    poisoned = step_of(TERMS.id, base, 1, entries)
    for peer in others[:2]:
        rounds.signed(peer, poisoned, "bb" * 32)
    assert not rounds.poll(now + 20) and rounds.head == compute.step.id
    rounds.signed(others[2], poisoned, "bb" * 32)
    rounds.signed(others[3], poisoned, "bb" * 32)
    assert any(isinstance(each, Compute) for each in rounds.poll(now + 30))
