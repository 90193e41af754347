"""Verdict, findings and strategies of a node, computed from the state of its dialer."""

from dataclasses import dataclass, replace

import pytest

from shoal.node.diagnosis import Diagnosis, finding_view
from shoal.transport.endpoint import Endpoint
from shoal.transport.hello import OpenSwarm
from shoal.transport.host import Interface
from shoal.transport.identity import Identity, PeerId
from shoal.transport.ladder import ALL_RUNGS, Ladder, Rungs
from shoal.transport.lan.mdns import LanDiscovery
from shoal.transport.pipe import Way
from shoal.transport.portmap.mapping import Mapping
from shoal.transport.portmap.outcome import Outcome as MapOutcome
from shoal.transport.punch.outcome import Outcome, Result
from shoal.transport.punch.outcome import RungOutcome as Tried
from shoal.transport.reach.findings import PortMap, Rung
from shoal.transport.reach.reachability import Answer, Dialled
from shoal.transport.realhost import RealHost
from shoal.transport.relay.client import Held
from shoal.transport.relay.defaults import RelayLimits
from tests.transport.reach.test_findings import HOME, PUBLIC

pytestmark = pytest.mark.trio

PEER, RELAY = PeerId("12D3KooWPeer"), PeerId("12D3KooWRelay")
LOOPBACKS = [Interface("lo", "127.0.0.1", 8), Interface("lo", "::1", 128)]
CABLE = Interface("eth0", "192.168.1.5", 24)


def make(
    listen: str = "0.0.0.0",
    *,
    rungs: Rungs = ALL_RUNGS,
    relaying: RelayLimits | None = None,
    port_443: bool = False,
    interfaces: list[Interface] | None = None,
) -> tuple[Ladder, Diagnosis]:
    """Return a dialer that does not run, whose state the test sets."""
    host = RealHost()
    endpoint = Endpoint(host, Identity.from_seed(b"d" * 32), admission=OpenSwarm(), libp2p=False)
    ladder = Ladder(host, endpoint, rungs=rungs, relaying=relaying)
    found = [*LOOPBACKS, CABLE] if interfaces is None else interfaces
    return ladder, Diagnosis(ladder, listen, lambda: found, port_443=port_443)


@dataclass
class Carried:
    """A link with the attributes that a diagnosis reads."""

    peer: PeerId
    way: Way | None


def hold_a_place(ladder: Ladder) -> None:
    ladder.relays._held[RELAY] = Held(RELAY, 0.01, None, 100.0, 200.0)


def codes(diagnosis: Diagnosis) -> list[str]:
    return [each.code for each in diagnosis.findings()]


def sentence(diagnosis: Diagnosis, code: str) -> str:
    (found,) = [each.sentence for each in diagnosis.findings() if each.code == code]
    return found


# The verdict.


async def test_node_without_links() -> None:
    _, diagnosis = make()
    assert diagnosis.verdict().code == "alone"
    (alone,) = [each for each in diagnosis.findings() if each.code == "alone"]
    assert "--bootstrap" in alone.hint and "443" in alone.hint


async def test_loopback_node_has_one_finding() -> None:
    _, diagnosis = make("127.0.0.1")
    assert diagnosis.verdict().sentence == "only by this computer: it listens on 127.0.0.1 only"
    assert codes(diagnosis) == ["loopback"]


async def test_offline_computer_has_one_finding() -> None:
    ladder, diagnosis = make(interfaces=LOOPBACKS)
    ladder.reach.reachability = PUBLIC  # the result of an earlier measurement
    assert diagnosis.verdict().code == "offline"
    assert codes(diagnosis) == ["offline"]
    assert make()[1].verdict().code != "offline"


async def test_measurement_does_not_count_while_no_peer_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ladder, diagnosis = make()
    ladder.reach.reachability = PUBLIC
    links = [Carried(PEER, None), Carried(RELAY, None)]
    monkeypatch.setattr(ladder.endpoint, "links", lambda: links)
    assert diagnosis.verdict().code == "cut-off"
    assert "cut-off" in codes(diagnosis)
    links[0].way = Way.DIRECT
    assert diagnosis.verdict().code == "public"
    assert "cut-off" not in codes(diagnosis)


async def test_public_node() -> None:
    ladder, diagnosis = make()
    ladder.reach.reachability = PUBLIC
    assert diagnosis.verdict().sentence == "from everywhere, over TCP and UDP"
    ladder.reach.reachability = replace(
        PUBLIC, dialled=(Dialled("udp", ("5.5.5.5", 1), Answer.REACHED, 2),)
    )
    assert diagnosis.verdict().sentence == "from everywhere, over UDP"


async def test_behind_a_router_with_a_relay_and_without() -> None:
    ladder, diagnosis = make()
    ladder.reach.reachability = HOME
    assert diagnosis.verdict().code == "unreachable"
    hold_a_place(ladder)
    assert diagnosis.verdict().sentence == "through 1 relay, and then by hole punching"


# Port mapping.


ANSWERS = {"pcp": "no answer", "nat-pmp": "does not allow it", "upnp": "no answer"}


async def test_port_mapping_refused_by_the_router() -> None:
    ladder, diagnosis = make()
    assert diagnosis.situation().portmap is None, "not asked yet"
    ladder.mapper.outcome = MapOutcome("192.168.1.1", answers={"pcp": "no answer"})
    assert diagnosis.situation().portmap is None, "other protocols have not answered yet"
    ladder.mapper.outcome = MapOutcome("192.168.1.1", answers=dict.fromkeys(ANSWERS, "no answer"))
    assert diagnosis.situation().portmap == PortMap()
    ladder.mapper.outcome = MapOutcome("192.168.1.1", answers=ANSWERS)
    assert diagnosis.situation().portmap == PortMap(refused="NAT-PMP: does not allow it")
    mapping = Mapping("5.5.5.5", 4001, 4001, "upnp", 0.0, "192.168.1.1")
    ladder.mapper.outcome = MapOutcome("192.168.1.1", answers=ANSWERS, mapping=mapping)
    assert diagnosis.situation().portmap == PortMap("UPnP")


async def test_port_mapper_sentences_replace_short_ones() -> None:
    ladder, diagnosis = make()
    ladder.reach.reachability = HOME
    ladder.mapper.outcome = MapOutcome("192.168.1.1", answers=ANSWERS)
    assert sentence(diagnosis, "map-refused").startswith("the router 192.168.1.1 maps no ports (")
    mapping = Mapping("100.64.0.9", 4001, 4001, "upnp", 0.0, "192.168.1.1")
    ladder.mapper.outcome = MapOutcome("192.168.1.1", mapping=mapping)
    assert sentence(diagnosis, "mapped").startswith("the router 192.168.1.1 leads TCP port 4001")
    assert "carrier" in sentence(diagnosis, "double-nat")
    ladder.reach.reachability = replace(HOME, cgn=True)
    assert codes(diagnosis).count("double-nat") == 1


async def test_reason_why_no_port_was_requested() -> None:
    ladder, diagnosis = make()
    ladder.mapper.outcome = MapOutcome(note="no router leads out of here")
    assert sentence(diagnosis, "port-mapping") == "no router leads out of here"
    ladder.reach.reachability = PUBLIC
    assert "port-mapping" not in codes(diagnosis), "a public node needs none"


# Strategies.


def tried(ladder: Ladder, peer: str, **rungs: Tried) -> None:
    ladder.puncher.outcomes[PeerId(peer)] = Outcome(PeerId(peer), rungs)


async def test_tried_strategies() -> None:
    ladder, diagnosis = make()
    silence, no = Tried(Result.NO_ANSWER), Tried(Result.NOT_POSSIBLE, "symmetric-both")
    tried(ladder, "a", tcp=silence, udp=silence, prediction=no)
    assert diagnosis.situation().failed == {Rung.TCP_PUNCH, Rung.UDP_PUNCH, Rung.PREDICTION}
    tried(ladder, "b", tcp=Tried(Result.REFUSED, "busy"), prediction=Tried(Result.WORKED))
    assert diagnosis.situation().worked == {Rung.PREDICTION}
    assert Rung.PREDICTION not in diagnosis.situation().failed
    tried(ladder, "c", tcp=Tried(Result.WORKED))
    assert diagnosis.situation().failed == {Rung.UDP_PUNCH}, "a strategy that worked has not failed"


@pytest.mark.parametrize(
    ("rungs", "code", "words"),
    [
        (Rungs(lan=False), "rung-lan", "the local network: switched off by its owner (`--no-lan`)"),
        (Rungs(mapping=False), "rung-mapped", "(`--no-port-mapping`)"),
        (Rungs(udp=False), "rung-udp-punch", "UDP hole punching: switched off"),
        (Rungs(relay=False), "rung-relay", "relays: switched off"),
    ],
)
async def test_strategies_that_the_owner_switched_off(rungs: Rungs, code: str, words: str) -> None:
    ladder, diagnosis = make(rungs=rungs)
    ladder.reach.reachability = HOME
    assert words in sentence(diagnosis, code)
    assert words not in sentence(make()[1], code)


# Problems of this machine, and advice for the owner.


async def test_conditions_of_this_machine() -> None:
    ladder, diagnosis = make(port_443=True)
    ladder.ports.without_udp = "UDP port 4001 is in use by another program"
    ladder.neighbourhood.lan = lan = LanDiscovery(RealHost(), PEER, b"swarm")
    lan._troubles[RealHost().interfaces()[0]] = "another program has port 5353"
    found = {each.name: each.sentence for each in diagnosis.conditions()}
    assert set(found) == {"no-udp-port", "lan-silent", "no-443"}
    assert found["no-udp-port"].endswith(ladder.ports.without_udp)
    assert {"no-udp-port", "lan-silent", "no-443"} <= set(codes(diagnosis))
    ladder.endpoint.listening = [("0.0.0.0", 4001), ("::", 443)]
    assert "no-443" in codes(diagnosis), "most peers connect over IPv4"
    ladder.endpoint.listening = [("0.0.0.0", 4001), ("0.0.0.0", 443)]
    assert "no-443" not in codes(diagnosis)
    assert make()[1].conditions() == []


async def test_relaying_and_possible_relaying_are_findings() -> None:
    ladder, diagnosis = make()
    assert "lends" not in codes(diagnosis)
    ladder.reach.reachability = PUBLIC
    ladder.relaying.reachable = True
    (lends,) = [each for each in diagnosis.findings() if each.code == "lends"]
    assert "64 kB a second" in lends.sentence and "--relay none" in lends.hint
    assert "no-443" not in codes(diagnosis)
    assert ladder.web_port is not None
    ladder.web_port.failure = "permission denied"
    assert "no-443" in codes(diagnosis)
    ladder, diagnosis = make(relaying=RelayLimits(rate=0))
    ladder.reach.reachability = PUBLIC
    ladder.relaying.reachable = True
    assert "could-relay" in codes(diagnosis) and "lends" not in codes(diagnosis)


async def test_finding_view_has_no_empty_hint() -> None:
    _, diagnosis = make()
    assert finding_view(diagnosis.verdict())["hint"] is None
