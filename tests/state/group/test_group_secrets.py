"""Which secrets a node keeps, and which ones it proves to peers."""

import pytest

from shoal.state import defaults
from shoal.state.group.group import Mark, Secrets
from shoal.state.group.sealing import mark_of


def secret(number: int) -> bytes:
    return number.to_bytes(32)


def mark(number: int) -> Mark:
    return Mark(number, mark_of(secret(number)))


def known(*numbers: int) -> Secrets:
    made = Secrets()
    for number in numbers:
        made.add(number, secret(number))
    return made


def test_a_new_secret_is_reported_once() -> None:
    told = list[int]()
    it = Secrets([(1, secret(1))], lambda: told.append(len(it)))
    it.add(2, secret(2))
    it.add(2, secret(2))
    assert told == [2]
    assert it.known() == [(2, secret(2)), (1, secret(1))]
    assert it.find(mark(1).mark) == secret(1)
    assert it.find(b"unknown!") is None


def test_two_secrets_of_one_number_are_both_known() -> None:
    it = Secrets([(3, b"a" * 32), (3, b"b" * 32)])
    assert len(it) == 2
    assert it.find(mark_of(b"a" * 32)) == b"a" * 32


def test_the_number_of_secrets_is_limited_and_the_oldest_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(defaults, "KEYS_KEPT", 4)
    it = known(*range(1, 10))
    assert [number for number, _ in it.known()] == [9, 8, 7, 1]
    assert defaults.KEYS_KEPT < 4096
    storm = known()
    for number in range(1, 4097):
        storm.add(number, secret(number))
    assert len(storm) == 4


def test_the_latest_secrets_stay_whatever_their_numbers() -> None:
    """Fails if the highest numbers are kept, because a revoked owner may have used them."""
    high = defaults.KEY_NUMBER - 100
    it = known(1, 2, *range(high, high + 2 * defaults.KEYS_KEPT), 3, 4)
    assert {mark(1), mark(3), mark(4)} <= set(it.marks())
    again = Secrets(it.known())
    assert again.known() == it.known()
    again.add(5, secret(5))
    assert {mark(1), mark(3), mark(4), mark(5)} <= set(again.marks())
    assert len(again) == defaults.KEYS_KEPT


def test_secrets_at_growing_distances_are_proven() -> None:
    it = known(*range(1, 61))
    assert [each.number for each in it.shown(mark(60))] == [60, 59, 58, 57, 53, 45, 29, 1]
    assert [each.number for each in it.shown(mark(58))][:3] == [58, 60, 59]
    assert next(each.number for each in it.shown(None)) == 60
    assert [each.number for each in known(5).shown(None)] == [5]
    assert known().shown(None) == []


def test_an_owner_cannot_make_nodes_forget_the_first_secret() -> None:
    """It reuses number 1 with a lower mark found by trial, so that returning nodes know no
    secret."""
    first = bytes(range(32))
    tries = (number.to_bytes(32) for number in range(10_000))
    lower = next(secret for secret in tries if mark_of(secret) < mark_of(first))
    secrets = Secrets([(1, first)])
    secrets.add(1, lower)
    for number in range(2 * defaults.KEYS_KEPT):
        secrets.add(2**31 + number, b"x" * 31 + bytes((number,)))
    assert secrets.find(mark_of(first)) == first, "a returning node can prove it to this node"
    assert Mark(1, mark_of(first)) in secrets.shown(None), "and this node to others"
    again = Secrets(secrets.known())
    for number in range(defaults.KEYS_KEPT):
        again.add(2**20 + number, b"y" * 31 + bytes((number,)))
    assert again.find(mark_of(first)) == first
