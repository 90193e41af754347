"""Hole punching: the table that results from mapping, filtering and conntrack's clash."""

import pytest

from bench.worlds.punching import KINDS, Pair, Relay, truth_table

SYMMETRIC = {"adm-apdf", "apdm-apdf"}
STRICT = {"eim-apdf", "linux-drop", "linux-accept"} | SYMMETRIC


def expected(pair: Pair) -> bool:
    first, second = pair.kinds
    if not {first, second} - STRICT and {first, second} & SYMMETRIC:
        return False
    return not (pair.skew and second == "linux-accept" and first in STRICT)


def test_table_of_all_kinds() -> None:
    pairs, _ = truth_table()
    assert len(pairs) == 2 * len(KINDS) ** 2
    assert [p for p in pairs if p.connected != expected(p)] == []


def test_same_seed_same_ports_other_seed_others() -> None:
    outer = [
        [pair.outer for pair in truth_table(["apdm-apdf"], [0.0], seed=seed)[0]]
        for seed in (1, 1, 2)
    ]
    assert outer[0] == outer[1] != outer[2]


@pytest.mark.parametrize(
    ("kinds", "works"),
    [(("linux-random", "linux-drop"), False), (("full-cone", "linux-random"), True)],
)
def test_other_kinds(kinds: tuple[str, str], works: bool) -> None:
    pairs, _ = truth_table(kinds, [0.0])
    assert next(p for p in pairs if p.kinds == kinds).connected is works


def test_blocked_udp_reaches_no_peer() -> None:
    pairs, _ = truth_table(["udp-blocked", "public"], [0.0])
    assert [p.connected for p in pairs] == [False, False, False, True]


def test_a_lost_introduction_is_repeated() -> None:
    relay, a, b = Relay(), ("11.0.0.1", 1), ("11.0.0.2", 2)
    assert [*relay.on_datagram(0.0, b"hello 7 a", a)] == [(b"seen", a)]
    relay.on_datagram(0.0, b"hello 7 b", b)
    relay.on_datagram(0.1, b"ready 7 a", a)
    assert [*relay.on_datagram(0.1, b"ready 7 a", a)] == []  # there is no peer to tell it to
    relay.on_datagram(0.3, b"ready 7 b", b)
    assert relay.wake_at == 0.3
    assert [*relay.on_time(0.3)] == [(b"peer 11.0.0.1 1", b)]
    assert [*relay.on_datagram(0.35, b"ready 7 b", b)] == []  # still on its way to the nearer one
    assert [*relay.on_time(0.4)] == [(b"peer 11.0.0.2 2", a)]
    assert [*relay.on_datagram(1.4, b"ready 7 b", b)] == [(b"peer 11.0.0.1 1", b)]


def test_a_peer_with_a_false_identity_is_not_introduced() -> None:
    relay = Relay()
    relay.on_datagram(0.0, b"hello 7 a", ("11.0.0.1", 1))
    assert [*relay.on_datagram(0.1, b"ready 7 a", ("11.0.0.9", 1))] == []
    assert relay.outer(7, "a") == ("11.0.0.1", 1)
    assert relay.outer(7, "b") is None
