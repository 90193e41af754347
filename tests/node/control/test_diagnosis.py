"""Verdict, findings and strategies of a node, computed from the state of its dialer."""

from dataclasses import dataclass, replace

import pytest

from shoal.node.control.diagnosis import Diagnosis, finding_view
from shoal.transport.bytestream import PathKind
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.host.real import RealHost
from shoal.transport.host.seam import Interface
from shoal.transport.identity import Identity, PeerId
from shoal.transport.lan.mdns import LanDiscovery
from shoal.transport.nat.portmap.mapping import PortMapping
from shoal.transport.nat.portmap.outcome import PortmapOutcome as MapOutcome
from shoal.transport.nat.punch.outcome import PunchOutcome, StrategyResult
from shoal.transport.nat.punch.outcome import StrategyOutcome as Tried
from shoal.transport.nat.reach.findings import PortMap, Strategy
from shoal.transport.nat.reach.reachability import DialBackResult, Dialled
from shoal.transport.relay.client import HeldReservation
from shoal.transport.relay.defaults import RelayLimits
from shoal.transport.strategies.dialer import ALL_STRATEGIES, Dialer, Strategies
from tests.transport.nat.reach.test_findings import HOME, PUBLIC

pytestmark = pytest.mark.trio

PEER, RELAY = PeerId("12D3KooWPeer"), PeerId("12D3KooWRelay")
LOOPBACKS = [Interface("lo", "127.0.0.1", 8), Interface("lo", "::1", 128)]
CABLE = Interface("eth0", "192.168.1.5", 24)


def make(
    listen: str = "0.0.0.0",
    *,
    strategies: Strategies = ALL_STRATEGIES,
    relaying: RelayLimits | None = None,
    port_443: bool = False,
    interfaces: list[Interface] | None = None,
) -> tuple[Dialer, Diagnosis]:
    """Return a dialer that does not run, whose state the test sets."""
    host = RealHost()
    endpoint = Endpoint(host, Identity.from_seed(b"d" * 32), admission=OpenSwarm())
    dialer = Dialer(host, endpoint, strategies=strategies, relaying=relaying)
    found = [*LOOPBACKS, CABLE] if interfaces is None else interfaces
    return dialer, Diagnosis(dialer, listen, lambda: found, port_443=port_443)


@dataclass
class Carried:
    """A link with the attributes that a diagnosis reads."""

    peer: PeerId
    path_kind: PathKind | None


def hold_a_place(dialer: Dialer) -> None:
    dialer.relays.reservations[RELAY] = HeldReservation(RELAY, 0.01, None, 100.0, 200.0)


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
    dialer, diagnosis = make(interfaces=LOOPBACKS)
    dialer.reach.reachability = PUBLIC  # the result of an earlier measurement
    assert diagnosis.verdict().code == "offline"
    assert codes(diagnosis) == ["offline"]
    assert make()[1].verdict().code != "offline"


async def test_measurement_does_not_count_while_no_peer_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dialer, diagnosis = make()
    dialer.reach.reachability = PUBLIC
    links = [Carried(PEER, None), Carried(RELAY, None)]
    monkeypatch.setattr(dialer.endpoint, "links", lambda: links)
    assert diagnosis.verdict().code == "cut-off"
    assert "cut-off" in codes(diagnosis)
    links[0].path_kind = PathKind.DIRECT
    assert diagnosis.verdict().code == "public"
    assert "cut-off" not in codes(diagnosis)


async def test_public_node() -> None:
    dialer, diagnosis = make()
    dialer.reach.reachability = PUBLIC
    assert diagnosis.verdict().sentence == "from everywhere, over TCP and UDP"
    dialer.reach.reachability = replace(
        PUBLIC, dialled=(Dialled("udp", ("5.5.5.5", 1), DialBackResult.REACHED, 2),)
    )
    assert diagnosis.verdict().sentence == "from everywhere, over UDP"


async def test_behind_a_router_with_a_relay_and_without() -> None:
    dialer, diagnosis = make()
    dialer.reach.reachability = HOME
    assert diagnosis.verdict().code == "unreachable"
    hold_a_place(dialer)
    assert diagnosis.verdict().sentence == "through 1 relay, and then by hole punching"


# Port mapping.


ANSWERS = {"pcp": "no answer", "nat-pmp": "does not allow it", "upnp": "no answer"}


async def test_port_mapping_refused_by_the_router() -> None:
    dialer, diagnosis = make()
    assert diagnosis.situation().portmap is None, "not asked yet"
    dialer.mapper.outcome = MapOutcome("192.168.1.1", answers={"pcp": "no answer"})
    assert diagnosis.situation().portmap is None, "other protocols have not answered yet"
    dialer.mapper.outcome = MapOutcome("192.168.1.1", answers=dict.fromkeys(ANSWERS, "no answer"))
    assert diagnosis.situation().portmap == PortMap()
    dialer.mapper.outcome = MapOutcome("192.168.1.1", answers=ANSWERS)
    assert diagnosis.situation().portmap == PortMap(refused="NAT-PMP: does not allow it")
    mapping = PortMapping("5.5.5.5", 4001, 4001, "upnp", 0.0, "192.168.1.1")
    dialer.mapper.outcome = MapOutcome("192.168.1.1", answers=ANSWERS, mapping=mapping)
    assert diagnosis.situation().portmap == PortMap("UPnP")


async def test_port_mapper_sentences_replace_short_ones() -> None:
    dialer, diagnosis = make()
    dialer.reach.reachability = HOME
    dialer.mapper.outcome = MapOutcome("192.168.1.1", answers=ANSWERS)
    assert sentence(diagnosis, "map-refused").startswith("the router 192.168.1.1 maps no ports (")
    mapping = PortMapping("100.64.0.9", 4001, 4001, "upnp", 0.0, "192.168.1.1")
    dialer.mapper.outcome = MapOutcome("192.168.1.1", mapping=mapping)
    assert sentence(diagnosis, "mapped").startswith("the router 192.168.1.1 leads TCP port 4001")
    assert "carrier" in sentence(diagnosis, "double-nat")
    dialer.reach.reachability = replace(HOME, cgn=True)
    assert codes(diagnosis).count("double-nat") == 1


async def test_reason_why_no_port_was_requested() -> None:
    dialer, diagnosis = make()
    dialer.mapper.outcome = MapOutcome(note="no router leads out of here")
    assert sentence(diagnosis, "port-mapping") == "no router leads out of here"
    dialer.reach.reachability = PUBLIC
    assert "port-mapping" not in codes(diagnosis), "a public node needs none"


# Strategies.


def tried(dialer: Dialer, peer: str, **strategies: Tried) -> None:
    dialer.puncher.outcomes[PeerId(peer)] = PunchOutcome(PeerId(peer), strategies)


async def test_tried_strategies() -> None:
    dialer, diagnosis = make()
    silence, no = (
        Tried(StrategyResult.NO_ANSWER),
        Tried(StrategyResult.NOT_POSSIBLE, "symmetric-both"),
    )
    tried(dialer, "a", tcp=silence, udp=silence, prediction=no)
    assert diagnosis.situation().failed == {
        Strategy.TCP_PUNCH,
        Strategy.UDP_PUNCH,
        Strategy.PREDICTION,
    }
    tried(
        dialer,
        "b",
        tcp=Tried(StrategyResult.REFUSED, "busy"),
        prediction=Tried(StrategyResult.WORKED),
    )
    assert diagnosis.situation().worked == {Strategy.PREDICTION}
    assert Strategy.PREDICTION not in diagnosis.situation().failed
    tried(dialer, "c", tcp=Tried(StrategyResult.WORKED))
    assert diagnosis.situation().failed == {Strategy.UDP_PUNCH}, (
        "a strategy that worked has not failed"
    )


@pytest.mark.parametrize(
    ("strategies", "code", "words"),
    [
        (
            Strategies(lan=False),
            "strategy-lan",
            "the local network: switched off by its owner (`--no-lan`)",
        ),
        (Strategies(mapping=False), "strategy-mapped", "(`--no-port-mapping`)"),
        (Strategies(udp=False), "strategy-udp-punch", "UDP hole punching: switched off"),
        (Strategies(relay=False), "strategy-relay", "relays: switched off"),
    ],
)
async def test_strategies_that_the_owner_switched_off(
    strategies: Strategies, code: str, words: str
) -> None:
    dialer, diagnosis = make(strategies=strategies)
    dialer.reach.reachability = HOME
    assert words in sentence(diagnosis, code)
    assert words not in sentence(make()[1], code)


# Problems of this machine, and advice for the owner.


async def test_conditions_of_this_machine() -> None:
    dialer, diagnosis = make(port_443=True)
    dialer.ports.without_udp = "UDP port 4001 is in use by another program"
    dialer.neighbourhood.lan = lan = LanDiscovery(RealHost(), PEER, b"swarm")
    lan.troubles[RealHost().interfaces()[0]] = "another program has port 5353"
    found = {each.name: each.sentence for each in diagnosis.conditions()}
    assert set(found) == {"no-udp-port", "lan-silent", "no-443"}
    assert found["no-udp-port"].endswith(dialer.ports.without_udp)
    assert {"no-udp-port", "lan-silent", "no-443"} <= set(codes(diagnosis))
    dialer.endpoint.listening = [("0.0.0.0", 4001), ("::", 443)]
    assert "no-443" in codes(diagnosis), "most peers connect over IPv4"
    dialer.endpoint.listening = [("0.0.0.0", 4001), ("0.0.0.0", 443)]
    assert "no-443" not in codes(diagnosis)
    assert make()[1].conditions() == []


async def test_relaying_and_possible_relaying_are_findings() -> None:
    dialer, diagnosis = make()
    assert "lends" not in codes(diagnosis)
    dialer.reach.reachability = PUBLIC
    dialer.relaying.reachable = True
    (lends,) = [each for each in diagnosis.findings() if each.code == "lends"]
    assert "64 kB a second" in lends.sentence and "--relay none" in lends.hint
    assert "no-443" not in codes(diagnosis)
    assert dialer.web_port is not None
    dialer.web_port.failure = "permission denied"
    assert "no-443" in codes(diagnosis)
    dialer, diagnosis = make(relaying=RelayLimits(rate=0))
    dialer.reach.reachability = PUBLIC
    dialer.relaying.reachable = True
    assert "could-relay" in codes(diagnosis) and "lends" not in codes(diagnosis)


async def test_finding_view_has_no_empty_hint() -> None:
    _, diagnosis = make()
    assert finding_view(diagnosis.verdict()).hint is None
