"""Hole punching: the table that mapping, filtering and conntrack's clash make."""

import pytest

from shoal.netsim.nat.punch import KINDS, Pair, truth_table

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


def test_blocked_udp_reaches_nobody() -> None:
    pairs, _ = truth_table(["udp-blocked", "public"], [0.0])
    assert [p.connected for p in pairs] == [False, False, False, True]
