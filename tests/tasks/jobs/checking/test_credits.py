"""Credits: no number of identities that vouch for each other makes any."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.tasks.jobs.checking.credits import credits_of
from shoal.transport.identity import PeerId

PEERS = [PeerId(letter * 52) for letter in "abcdefgh"]
A, B, C, D = PEERS[:4]
SECONDS = st.floats(0.0, 1e7)
CHECKED = st.dictionaries(st.sampled_from(PEERS), SECONDS)


@given(CHECKED, st.dictionaries(st.sampled_from(PEERS), CHECKED))
def test_receipts_move_credit_and_make_none(
    own: dict[PeerId, float], vouched: dict[PeerId, dict[PeerId, float]]
) -> None:
    found = credits_of(own, vouched)
    assert sum(found.values()) == pytest.approx(sum(own.values()))
    assert all(found.get(peer, 0.0) >= 0.49 * seconds for peer, seconds in own.items())
    assert all(seconds >= 0.0 for seconds in found.values())


def test_two_identities_that_vouch_for_each_other_gain_nothing() -> None:
    alone = credits_of({C: 100.0}, {})
    assert credits_of({C: 100.0}, {A: {B: 1e9, A: 1e9}, B: {A: 1e9}}) == alone
    # If one of them was checked, both together have its credit.
    found = credits_of({A: 100.0}, {A: {B: 1e9}, B: {A: 1e9}})
    assert found[A] + found[B] == 100.0


def test_work_for_a_member_counts_at_those_it_has_worked_for() -> None:
    """D has worked for A, which has worked for this node."""
    found = credits_of({A: 100.0, B: 50.0}, {A: {D: 30.0}})
    assert found == {A: 70.0, B: 50.0, D: 30.0}
    assert credits_of({B: 50.0}, {A: {D: 30.0}}) == {B: 50.0}, "A has given nothing here"


def test_a_voucher_keeps_half() -> None:
    lot = Random(1)
    vouched = {A: {peer: lot.uniform(0.0, 1e6) for peer in PEERS[1:]}}
    found = credits_of({A: 100.0}, vouched)
    assert found[A] == 50.0 and sum(found.values()) == pytest.approx(100.0)
