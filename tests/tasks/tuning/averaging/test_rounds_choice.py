"""Which steps a peer follows, with a handful of signatures."""

from dataclasses import replace

import numpy as np

from bench.worlds.volunteers import peer_number
from shoal.tasks.tuning.averaging.actions import (
    Adopted,
    ComputeState,
    FetchState,
    FetchUpdate,
    JudgeUpdate,
    Known,
)
from shoal.tasks.tuning.averaging.defaults import MAX_PEERS
from shoal.tasks.tuning.averaging.errors import BadUpdate
from shoal.tasks.tuning.averaging.outer import first_state
from shoal.tasks.tuning.averaging.rounds import Rounds
from shoal.tasks.tuning.averaging.steps import Offer, PeerUpdate, Step, genesis, step_of
from shoal.transport.identity import PeerId
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
    (compute,) = [each for each in rounds.poll(now) if isinstance(each, ComputeState)]
    rounds.computed(compute.step, compute.run(TERMS))
    rounds.poll(now)
    rounds.poll(now + 10)
    assert rounds.head == compute.step.id
    entries = [PeerUpdate(me, mine.root, 10), PeerUpdate(bad, offer.root, 10)]
    poisoned = step_of(TERMS.id, base, 1, entries)
    for peer in others[:2]:
        rounds.signed(peer, poisoned)
    assert not rounds.poll(now + 20) and rounds.head == compute.step.id
    rounds.signed(others[2], poisoned)
    rounds.signed(others[3], poisoned)
    assert any(isinstance(each, ComputeState) for each in rounds.poll(now + 30))


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

    assert not any(isinstance(each, ComputeState) for each in closed(leaves=False).poll(1.0))
    rounds = closed(leaves=True)
    (compute,) = [each for each in rounds.poll(1.0) if isinstance(each, ComputeState)]
    rounds.computed(compute.step, compute.run(TERMS))
    rounds.signed(other, compute.step)  # on its way when its author left
    rounds.left(other)
    rounds.poll(1.0)
    assert len(rounds.roster(genesis(TERMS.id))) == 3
    rounds.here(other)  # it is back, and waited for
    assert other in rounds.roster(genesis(TERMS.id)) and other not in rounds.departed


def test_a_peer_goes_on_with_its_side_of_a_fork_while_nobody_delivers_the_other() -> None:
    me, gone = peer_number(2), peer_number(1)
    if sorted((me, gone))[0] == me:  # of equal sides, that of the lowest id is preferred
        me, gone = gone, me
    vector = np.ones(VALUES, np.float32)
    rounds = Rounds(TERMS, me, first_state(vector, TERMS.rule))
    rounds.contributed("11" * 32, Known(vector, 1.0), 10, 0.0)
    (compute,) = [each for each in rounds.poll(100.0) if isinstance(each, ComputeState)]
    rounds.computed(compute.step, compute.run(TERMS))
    assert any(isinstance(each, Adopted) for each in rounds.poll(110.0))
    number = 0
    while True:  # a step that comes first by its id
        number += 1
        entry = PeerUpdate(gone, f"{number:064x}", 10)
        other = step_of(TERMS.id, compute.step.base, 1, [entry])
        if other.id < compute.step.id:
            break
    rounds.signed(gone, other)
    rounds.stated(gone, other.id, "cc" * 32)
    mine = rounds.contributed("22" * 32, Known(vector, 1.0), 10, 111.0)
    now = 120.0 + TERMS.patience
    wanted = [each.root for each in rounds.poll(now) if isinstance(each, FetchUpdate | FetchState)]
    assert wanted, "the preferred side is asked for first"
    while wanted:
        for root in wanted:
            rounds.unfetched(root, now)
        found = rounds.poll(now)
        wanted = [each.root for each in found if isinstance(each, FetchUpdate | FetchState)]
    (next_one,) = [each for each in found if isinstance(each, ComputeState)]
    assert [entry.root for entry in next_one.step.accepted] == [mine.root]
    # It still asks, and returns to the preferred side as soon as a peer delivers it.
    later = rounds.poll(now + 60)
    (fetch,) = [each for each in later if isinstance(each, FetchState)]
    assert (fetch.root, fetch.step, fetch.peers) == ("cc" * 32, other, (gone,))


def after_one_step(signers: int) -> tuple[Rounds, Step, list[PeerId]]:
    """Return the rounds of a peer that went through a round with others, and has a wrong state."""
    me, *others = [peer_number(number) for number in range(1, signers + 1)]
    rounds = Rounds(TERMS, me, first_state(np.ones(VALUES, np.float32), TERMS.rule))
    for peer in others:
        rounds.here(peer)
        rounds.left(peer)
    rounds.contributed("11" * 32, Known(np.ones(VALUES, np.float32), 1.0), 10, 0.0)
    (compute,) = [each for each in rounds.poll(100.0) if isinstance(each, ComputeState)]
    wrong = compute.run(TERMS)
    rounds.computed(compute.step, replace(wrong, values=wrong.values + np.float32(1)))
    for peer in others:
        rounds.signed(peer, compute.step)
    (adopted,) = [each for each in rounds.poll(101.0) if isinstance(each, Adopted)]
    rounds.stated(me, adopted.head, "bb" * 32)
    return rounds, compute.step, others


def test_a_peer_with_another_state_than_most_fetches_theirs() -> None:
    rounds, step, others = after_one_step(4)
    right = np.zeros(VALUES, np.float32)
    for peer in others[:2]:
        rounds.stated(peer, step.id, "aa" * 32)
        assert not [each for each in rounds.poll(102.0) if isinstance(each, FetchState)][1:]
    assert rounds.diverged is None  # two of four are not most
    rounds.stated(others[2], step.id, "aa" * 32)
    (fetch,) = [each for each in rounds.poll(103.0) if isinstance(each, FetchState)]
    assert (fetch.root, fetch.step) == ("aa" * 32, step) and set(fetch.peers) == set(others)
    assert rounds.diverged == step.id
    rounds.restored(step, replace(rounds.state, values=right), "aa" * 32)
    (adopted,) = rounds.poll(104.0)
    assert isinstance(adopted, Adopted) and adopted.head == step.id
    assert adopted.state.values is right and rounds.root == "aa" * 32
    assert not rounds.poll(105.0)


def test_a_peer_that_has_delivered_goes_on_with_its_update_from_the_state_of_most() -> None:
    rounds, step, others = after_one_step(4)
    mine = rounds.contributed("22" * 32, Known(np.ones(VALUES, np.float32), 1.0), 10, 103.0)
    for peer in others:
        rounds.stated(peer, step.id, "aa" * 32)
    assert any(isinstance(each, FetchState) for each in rounds.poll(104.0))
    right = np.zeros(VALUES, np.float32)
    rounds.restored(step, replace(rounds.state, values=right), "aa" * 32)
    now = 105.0 + TERMS.patience
    found = rounds.poll(now)
    (compute,) = [each for each in found if isinstance(each, ComputeState)]
    assert not any(isinstance(each, Adopted) for each in found)
    assert compute.state.values is right
    assert [entry.root for entry in compute.step.accepted] == [mine.root]


def test_a_minority_with_another_state_is_not_followed() -> None:
    rounds, step, others = after_one_step(4)
    rounds.stated(others[0], step.id, "aa" * 32)
    rounds.stated(others[1], step.id, "aa" * 32)
    for number in range(9, 20):  # peers that did not sign the step
        rounds.stated(peer_number(number), step.id, "aa" * 32)
    assert not any(isinstance(each, FetchState) for each in rounds.poll(103.0))
    assert rounds.diverged is None


def test_a_peer_looks_again_soon_whatever_it_waits_for() -> None:
    rounds = Rounds(TERMS, peer_number(1), first_state(np.ones(VALUES, np.float32), TERMS.rule))
    rounds.offered(peer_number(2), Offer(1, genesis(TERMS.id), "22" * 32, 10), 0.0)
    (fetch,) = rounds.poll(0.0)
    assert isinstance(fetch, FetchUpdate)
    assert rounds.next_poll(TERMS.patience + 1) < TERMS.patience + 10


def test_an_update_that_comes_again_in_a_later_round_is_judged_again() -> None:
    me, other = peer_number(1), peer_number(2)
    rounds = Rounds(TERMS, me, first_state(np.ones(VALUES, np.float32), TERMS.rule))
    rounds.here(other)
    update, verdicts = Known(np.ones(VALUES, np.float32), 1.0), 0
    for number in range(1, 6):
        head, again = rounds.head, "22" * 32 if number in (1, 5) else f"{number}3" * 32
        rounds.contributed(f"{number}1" * 32, update, 10, 0.0)
        rounds.offered(other, Offer(number, head, again, 10), 0.0)
        rounds.poll(0.0)
        rounds.decoded(again, update)
        for action in rounds.poll(0.0):
            if isinstance(action, JudgeUpdate):
                verdicts += 1
                rounds.judged(action.root, good=True)
        (compute,) = [each for each in rounds.poll(1.0) if isinstance(each, ComputeState)]
        rounds.computed(compute.step, compute.run(TERMS))
        rounds.signed(other, compute.step)
        assert any(isinstance(each, Adopted) for each in rounds.poll(2.0))
    assert verdicts == 5


def test_a_peer_goes_on_alone_where_no_peer_delivers_the_state_of_the_chosen_side() -> None:
    me, gone, lost = [peer_number(number) for number in range(1, 4)]
    rounds = Rounds(TERMS, me, first_state(np.ones(VALUES, np.float32), TERMS.rule))
    at, now = genesis(TERMS.id), 0.0
    for number in range(1, 5):  # a side that this peer has no update and no state of
        step = step_of(TERMS.id, at, number, [PeerUpdate(gone, f"{number}2" * 32, 10)])
        for peer in (gone, lost):
            rounds.signed(peer, step)
        at = step.id
    rounds.stated(gone, at, "aa" * 32)
    (fetch,) = rounds.poll(now)
    assert isinstance(fetch, FetchState) and fetch.root == "aa" * 32
    rounds.contributed("11" * 32, Known(np.ones(VALUES, np.float32), 1.0), 10, now)
    now = 2 * TERMS.patience
    assert not rounds.poll(now)  # the fetch may still succeed
    rounds.unfetched(fetch.root, now)
    found = rounds.poll(now + 1)
    assert any(isinstance(each, ComputeState) for each in found)
    assert any(isinstance(each, FetchState) for each in rounds.poll(now + 10))


def test_no_more_updates_are_fetched_than_a_step_may_have() -> None:
    me, *others = [peer_number(number) for number in range(1, 2 * MAX_PEERS)]
    vector = np.ones(VALUES, np.float32)
    rounds = Rounds(TERMS, me, first_state(vector, TERMS.rule))
    for number, peer in enumerate(others):
        rounds.offered(peer, Offer(1, genesis(TERMS.id), f"{number:064x}", 10), 0.0)
    asked = [each.root for each in rounds.poll(0.0) if isinstance(each, FetchUpdate)]
    assert len(set(asked)) == len(asked) == MAX_PEERS
    for root in asked[2:]:
        rounds.decoded(root, Known(vector, 1.0))
    rounds.unfetched(asked[0], 0.0)
    rounds.refused(asked[1], BadUpdate("not-finite", "a value"))
    others_asked = [each.root for each in rounds.poll(0.0) if isinstance(each, FetchUpdate)]
    assert len(others_asked) == 2 and not set(others_asked) & set(asked)
