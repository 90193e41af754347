"""Bugs that peers trigger become one condition and few lines."""

from shoal.node import defaults
from shoal.node.daemon.mishaps import CONDITION, Mishaps
from shoal.node.health import Condition, Health
from shoal.transport.guard import Mishap


def told() -> tuple[Mishaps, list[Condition], Health]:
    lines = list[Condition]()
    health = Health(lines.append)
    return Mishaps(health), lines, health


def test_the_condition_names_the_peer_the_exception_and_what_to_do() -> None:
    mishaps, _, health = told()
    mishaps.add(Mishap("12D3KooWpeer", "InvalidVersion", "transport/udp/connection.py:190"))
    [condition] = health.conditions()
    assert condition.name == CONDITION
    for word in ("12D3KooWpeer", "InvalidVersion", "transport/udp/connection.py:190"):
        assert word in condition.sentence
    assert "report" in str(condition.hint)


def test_thousands_of_bugs_give_a_few_lines() -> None:
    mishaps, lines, health = told()
    for number in range(5000):
        mishaps.add(Mishap(f"peer {number}", "RuntimeError", "transport/link/link.py:1"))
    assert len(lines) == 13 and len(health.conditions()) == 1
    assert "4096 times" in lines[-1].sentence


def test_kinds_of_bugs_are_bounded() -> None:
    mishaps, lines, _ = told()
    for number in range(5000):
        mishaps.add(Mishap("peer", "RuntimeError", f"transport/link/link.py:{number}"))
    assert len(mishaps.counts) <= defaults.MISHAP_KINDS + 1
    assert len(lines) <= defaults.MISHAP_KINDS + 13
