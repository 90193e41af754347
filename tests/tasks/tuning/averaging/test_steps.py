"""Steps, signatures, and the choice: a function of a set that only grows."""

from random import Random

import pytest

from shoal.tasks.tuning.averaging.defaults import MAX_PEERS, SIGNED, WINDOW
from shoal.tasks.tuning.averaging.steps import Ledger, PeerUpdate, Step, genesis, step_of
from shoal.transport.identity import Identity, PeerId, public_key_of

RUN = "ab" * 32
PEERS = sorted((Identity.from_seed(bytes([n]) * 32).peer for n in range(1, 10)), key=public_key_of)


def root(number: int) -> str:
    return number.to_bytes(32).hex()


def step(base: str, number: int, *roots: int) -> Step:
    entries = [PeerUpdate(PEERS[at], root(each), 10) for at, each in enumerate(roots)]
    return step_of(RUN, base, number, entries)


def test_the_id_covers_all_of_a_step() -> None:
    base, entry = genesis(RUN), PeerUpdate(PEERS[0], root(1), 10)
    ids = {
        Step(RUN, base, 1, (entry,)).id,
        Step("ef" * 32, base, 1, (entry,)).id,
        Step(RUN, root(9), 1, (entry,)).id,
        Step(RUN, base, 2, (entry,)).id,
        Step(RUN, base, 1, (PeerUpdate(PEERS[0], root(1), 11),)).id,
        Step(RUN, base, 1, (PeerUpdate(PEERS[0], root(2), 10),)).id,
        Step(RUN, base, 1, (PeerUpdate(PEERS[1], root(1), 10),)).id,
        Step(RUN, base, 1, (entry, PeerUpdate(PEERS[1], root(2), 10, refused=True))).id,
        Step(RUN, base, 1, (entry, PeerUpdate(PEERS[1], root(2), 10))).id,
    }
    assert len(ids) == 9


def test_malformed_steps_are_refused() -> None:
    one, two = PeerUpdate(PEERS[0], root(1), 10), PeerUpdate(PEERS[1], root(2), 10)
    for entries in (
        (),
        (two, one),
        (one, one),
        (one, PeerUpdate(PEERS[1], root(1), 10)),
        (PeerUpdate(PEERS[0], root(1), 10, refused=True),),
        (PeerUpdate(PEERS[0], root(1), 0),),
        (PeerUpdate(PEERS[0], root(1), 2**41),),
    ):
        with pytest.raises(ValueError, match=r"expected|out of range"):
            Step(RUN, genesis(RUN), 1, entries)
    with pytest.raises(ValueError, match="out of range"):
        Step(RUN, genesis(RUN), 0, (one,))


@pytest.mark.parametrize("seed", range(20))
def test_the_choice_does_not_depend_on_the_order(seed: int) -> None:
    random, start = Random(seed), genesis(RUN)
    steps = [step(start, 1, 1), step(start, 1, 2)]
    steps += [step(random.choice(steps).id, 2, number) for number in range(3, 7)]
    signed = [(peer, random.choice(steps)) for peer in PEERS for _ in range(2)]
    found = set[tuple[str, ...]]()
    for _ in range(5):
        random.shuffle(signed)
        ledger = Ledger(RUN)
        for peer, each in signed:
            ledger.sign(peer, each)
        found.add(tuple(each.id for each in ledger.choose(start, lambda each: True)))
    assert len(found) == 1


def test_the_side_with_most_peers_is_chosen_and_then_the_lowest_id() -> None:
    start, ledger = genesis(RUN), Ledger(RUN)
    one, two = step(start, 1, 1), step(start, 1, 2)
    then = step(two.id, 2, 3)
    ledger.sign(PEERS[0], one)
    ledger.sign(PEERS[1], two)
    assert ledger.choose(start, lambda each: True)[0].id == min(one.id, two.id)
    ledger.sign(PEERS[2], then)  # counts for what it follows, too
    assert [each.id for each in ledger.choose(start, lambda each: True)] == [two.id, then.id]
    assert ledger.choose(start, lambda each: each.id != two.id) == [one]
    assert not ledger.sign(PEERS[2], then)


def test_the_state_is_that_of_most_signers() -> None:
    ledger, one = Ledger(RUN), step(genesis(RUN), 1, 1)
    for peer, result in zip(PEERS, (root(1), root(2), root(2)), strict=False):
        ledger.sign(peer, one)
        ledger.state(peer, one.id, result)
    ledger.state(PEERS[5], one.id, root(1))  # has not signed the step
    ledger.state(PEERS[6], one.id, root(1))
    assert ledger.stated(one.id) == [
        (root(2), frozenset(PEERS[1:3])),
        (root(1), frozenset(PEERS[:1])),
    ]
    ledger.state(PEERS[2], step(one.id, 2, 3).id, root(3))  # the last one of each peer counts
    assert [each for each, _ in ledger.stated(one.id)] == [root(1), root(2)]


def test_the_states_of_many_peers_are_bounded() -> None:
    ledger = Ledger(RUN)
    for number in range(2000):
        ledger.state(PeerId(f"peer{number}"), root(1), root(2))
    assert len(ledger.states) <= 4 * MAX_PEERS


def test_one_peer_fills_only_its_own_part_of_the_ledger() -> None:
    ledger, honest = Ledger(RUN), step(genesis(RUN), 1, 1)
    ledger.sign(PEERS[1], honest)
    for number in range(2, 1000):
        ledger.sign(PEERS[0], step(root(number), number, number))
    assert honest.id in ledger
    assert len(ledger._steps) <= 2 * WINDOW * SIGNED + 1
    ledger.prune(10**6)
    assert not ledger._steps and not ledger._children and not ledger._signers
