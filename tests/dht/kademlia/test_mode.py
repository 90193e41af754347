"""mode: which nodes serve, and that modes do not flap."""

import pytest

from shoal.dht import defaults
from shoal.dht.kademlia.mode import Mode, ModeRule

FEW, ENOUGH = defaults.SERVERS


def test_a_reachable_node_serves_at_once() -> None:
    rule = ModeRule()
    assert rule.decide(True, 0, 0.0)
    assert rule.mode is Mode.SERVER and rule.serves
    assert rule.why == "this node is publicly reachable"


@pytest.mark.parametrize("servers", [0, FEW - 1, ENOUGH - 1])
def test_a_young_node_serves_until_enough_servers_are_known(servers: int) -> None:
    rule = ModeRule()
    rule.decide(False, servers, 0.0)
    assert rule.mode is Mode.FALLBACK and rule.serves
    known = f"only {servers} of {ENOUGH}" if servers else "no"
    assert f"{known} publicly reachable" in rule.why


def test_fallbacks_and_clients_do_not_flap() -> None:
    """Twin: with a single threshold, a server that comes and goes would change the mode."""
    rule = ModeRule()
    found = []
    for servers in (ENOUGH, ENOUGH - 1, ENOUGH, FEW, FEW - 1, FEW, ENOUGH - 1, FEW - 1, ENOUGH):
        rule.decide(False, servers, 0.0)
        found.append(rule.mode)
    client, fallback = Mode.CLIENT, Mode.FALLBACK
    assert found == [client] * 4 + [fallback] * 4 + [client]


def test_a_server_that_becomes_unreachable_stays_for_a_while() -> None:
    rule = ModeRule()
    rule.decide(True, ENOUGH, 100.0)
    assert not rule.decide(False, ENOUGH, 100.0 + defaults.REACHED - 1)
    assert rule.serves and "a moment ago" in rule.why
    assert rule.decide(False, ENOUGH, 100.0 + defaults.REACHED)
    assert not rule.serves
    assert "and 12 servers are known" in rule.why
