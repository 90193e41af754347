"""Punching: the relay's replies, the pairs, and pairs of gateways whose outcome is known."""

from random import Random
from typing import Any

import pytest

from shoal.netsim.scenario.format.parse import parse
from shoal.netsim.scenario.programs.punch import Introducer, draw_pairs
from shoal.netsim.scenario.run import ScenarioRun


def test_a_relay_introduces_only_known_hosts() -> None:
    relay = Introducer()
    a, b = ("11.0.0.1", 5), ("11.0.0.2", 6)
    ask = b"C" + bytes([0, 0, 0, 1, 0, 0, 0, 2])
    assert relay.answer(ask, a) == []
    register = b"R" + bytes([0, 0, 0, 2, 0, 0, 0, 0])
    assert relay.answer(register, b) == [(register, b)]
    told = relay.answer(ask, a)
    assert [to for _, to in told] == [a, b]
    assert told[0][0].endswith(b"11.0.0.2") and told[1][0].endswith(b"11.0.0.1")


def test_no_host_has_two_partners_in_a_round_or_one_twice() -> None:
    found = draw_pairs(range(21), 6, Random(1))
    pairs = [(min(a, b), max(a, b)) for a, turns in found.items() for _, b in turns]
    assert len(pairs) == len(set(pairs))
    for turn in range(6):
        busy = [
            host for a, turns in found.items() for n, b in turns if n == turn for host in (a, b)
        ]
        assert len(busy) == len(set(busy)) >= 12


TWO = """\
[sim]
name = "two"
duration = "30s"
[world]
relays = 1
[[host]]
name = "a"
nat = "{a}"
program = "punch"
[[host]]
name = "b"
nat = "{b}"
program = "punch"
"""


@pytest.mark.parametrize(
    ("a", "b", "met"),
    [
        ("linux-drop", "linux-drop", 1.0),
        ("eim-eif", "apdm-apdf", 1.0),
        ("eim-adf", "apdm-apdf", 1.0),
        ("linux-drop", "apdm-apdf", 0.0),
        ("apdm-apdf", "apdm-apdf", 0.0),
        ("linux-drop", "udp-blocked", 0.0),
    ],
)
def test_pairs_of_gateways(a: str, b: str, met: float) -> None:
    result: Any = ScenarioRun(parse(TWO.format(a=a, b=b)), 1).go()
    assert result.metrics["punch.attempts"] == 1
    assert result.metrics["punch.success_rate"] == met
