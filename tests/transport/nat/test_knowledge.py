"""A node's knowledge of where its peers are, and which reports it trusts."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.worlds.transportnode import TransportNode
from shoal.netsim.world import World
from shoal.transport.bytestream import PathKind
from shoal.transport.identity import Identity, PeerId
from shoal.transport.link.link import Link
from shoal.transport.nat.knowledge import NodeKnowledge
from shoal.transport.nat.punch.candidates import Candidate, CandidateKind, CandidateTransport
from shoal.transport.nat.punch.needs import OwnNat
from shoal.transport.nat.reach.reachability import (
    Allocation,
    Behaviour,
    Pattern,
    Reachability,
    UdpKind,
)
from shoal.transport.nat.whereabouts import AddressSources
from shoal.transport.relay import service
from shoal.transport.relay.vouch import Vouched, seen_at
from shoal.transport.strategies.dialer import Strategies
from tests.transport.homes import Street, until

NO_MULTICAST = Strategies(lan=False)
INSIDE = [
    Candidate(("192.168.1.3", port), CandidateKind.LAN, transport)
    for port in (8080, 8443)
    for transport in (CandidateTransport.TCP, CandidateTransport.UDP)
]


def _lying(foe: TransportNode) -> None:
    """Make a peer claim addresses of another node's neighbours."""
    own = foe.dialer.knowledge.own

    def lie(peer: PeerId) -> OwnNat:
        return replace(own(peer), candidates=INSIDE)

    foe.dialer.knowledge.own = lie  # type: ignore[method-assign]


async def _hits(world: World, monkeypatch: pytest.MonkeyPatch, *, believed: bool) -> int:
    """Count packets at another machine in the victim's home. Peer and relay have one owner."""
    street = Street(world)
    town = street.town
    await street.relays()
    router = world.gateway("router", "linux-drop")
    victim = await town.node(world.host("victim", behind=router))
    other, hits = world.host("other", behind=router), 0
    assert other.addresses()[0] == "192.168.1.3"
    take = other.take

    def count(packet: object) -> None:
        nonlocal hits
        hits += 1
        take(packet)  # type: ignore[arg-type]

    other.take = count  # type: ignore[method-assign]
    await street.settle(victim)
    evil = await town.relay(world.host("evil"))
    foe = await street.home("foe", "linux-drop")
    await foe.connect(evil.peer, [evil.address()])
    await until(lambda: foe.dialer.relays.relays)
    seen = Vouched(router.wan.addresses[0], 4001, 4001)

    def lie(link: Link) -> Vouched:
        return seen if evil.endpoint.link(link.peer) is link else seen_at(link)

    monkeypatch.setattr(service, "seen_at", lie)
    _lying(foe)
    if believed:
        knowledge = victim.dialer.knowledge
        knowledge._by_own = knowledge._vouched
    hits = 0
    link = await victim.connect(foe.peer, [evil.address().through(foe.peer)])
    await until(lambda: victim.dialer.outcome(foe.peer) is not None)
    assert link.path_kind is PathKind.RELAYED
    return hits


async def test_a_peer_s_own_relay_does_not_lead_to_our_neighbours(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await _hits(world, monkeypatch, believed=False) == 0


async def test_it_would_if_every_relay_were_trusted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await _hits(world, monkeypatch, believed=True) > 0


async def test_relays_of_our_own_choice_do_where_multicast_does_not(world: World) -> None:
    street = Street(world)
    await street.relays()
    router = world.gateway("router", "linux-drop")
    a, b = [
        await street.town.node(world.host(name, behind=router), strategies=NO_MULTICAST)
        for name in "ab"
    ]
    await street.settle(a, b)
    circuits = [each for each in b.addresses() if each.relay is not None]
    link: Link = await a.connect(b.peer, circuits)
    await until(lambda: link.path_kind is PathKind.LAN)


# How reports are evaluated.

PEER = Identity.from_seed(bytes([1]) * 32).peer
RELAY = Identity.from_seed(bytes([2]) * 32).peer
HOME = Reachability(
    udp=UdpKind(
        Behaviour.ENDPOINT_INDEPENDENT,
        Behaviour.ADDRESS_AND_PORT_DEPENDENT,
        Allocation(Pattern.PRESERVING),
        blocked=False,
    ),
    udp_place=("11.0.0.1", 4001),
    tcp_place=("11.0.0.1", 4001),
    measured_at=1.0,
)


def made(known: Reachability = HOME, *held: Vouched) -> NodeKnowledge:
    item = SimpleNamespace(address="192.168.1.2")
    sources = (
        SimpleNamespace(port=4001),
        SimpleNamespace(reachability=known, observers=list),
        SimpleNamespace(relays=[SimpleNamespace(relay=RELAY, seen=seen) for seen in held]),
        SimpleNamespace(mapping=None),
    )
    return NodeKnowledge(
        cast(Any, SimpleNamespace(interfaces=lambda: [item])),
        cast(Any, SimpleNamespace(port=4001, link=lambda peer: None)),
        AddressSources(*cast(Any, sources)),
    )


def test_a_relay_may_see_a_peer_at_two_addresses() -> None:
    knowledge = made()
    knowledge.vouch(PEER, Vouched("11.0.0.5", 1, 2, "2600::1"), RELAY)
    assert set(knowledge.seen(PEER).vouched) == {"11.0.0.5", "2600::1"}


def test_the_latest_few_addresses_are_kept() -> None:
    knowledge = made()
    for number in range(9):
        knowledge.vouch(PEER, Vouched(f"11.0.0.{number}"), RELAY)
    assert list(knowledge.seen(PEER).vouched) == [f"11.0.0.{number}" for number in range(5, 9)]


def test_a_peer_at_our_own_address_shares_our_site() -> None:
    knowledge = made(HOME, Vouched("11.0.0.1", 4001))
    knowledge.vouch(PEER, Vouched("11.0.0.1"), RELAY)
    assert knowledge.seen(PEER).same_site
    other = made(HOME, Vouched("11.0.0.1", 4001))
    other.vouch(PEER, Vouched("11.0.0.2"), RELAY)
    assert not other.seen(PEER).same_site


def test_a_port_seen_elsewhere_has_to_be_observed_again() -> None:
    knowledge = made()
    knowledge.observed(("11.0.0.1", 4001))
    own = knowledge.own(PEER)
    assert own.nat.preserves and own.seen_at == 1.0
    knowledge.observed(("43.0.0.1", 4001))
    own = knowledge.own(PEER)
    assert not own.nat.preserves and own.seen_at is None
    tcp = [each for each in own.candidates if each.transport is CandidateTransport.TCP]
    assert tcp[0].place == ("43.0.0.1", 4001) and tcp[0].kind is CandidateKind.OBSERVED


def test_ipv6_views_say_nothing_about_a_nat() -> None:
    knowledge = made()
    knowledge.observed(("2600::1", 4001))
    assert knowledge.own(PEER).nat.preserves
