"""What a node knows when it punches."""

from types import SimpleNamespace
from typing import Any, cast

from shoal.transport.identity import Identity
from shoal.transport.knowledge import Knowledge
from shoal.transport.punch.candidates import Kind, Transport
from shoal.transport.reach.reachability import (
    Allocation,
    Behaviour,
    Pattern,
    Reachability,
    UdpKind,
)
from shoal.transport.relay.vouch import Vouched

PEER = Identity.from_seed(bytes([1]) * 32).peer
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


def made(known: Reachability = HOME, *held: Vouched) -> Knowledge:
    item = SimpleNamespace(address="192.168.1.2")
    parts = (
        SimpleNamespace(interfaces=lambda: [item]),
        SimpleNamespace(port=4001, link=lambda peer: None),
        SimpleNamespace(port=4001),
        SimpleNamespace(reachability=known, observers=list),
        SimpleNamespace(relays=[SimpleNamespace(seen=seen) for seen in held]),
        SimpleNamespace(mapping=None),
    )
    return Knowledge(*cast(Any, parts))


def test_a_relay_may_see_a_peer_at_two_addresses() -> None:
    knowledge = made()
    knowledge.vouch(PEER, Vouched("11.0.0.5", 1, 2, "2600::1"))
    assert set(knowledge.seen(PEER).vouched) == {"11.0.0.5", "2600::1"}


def test_the_latest_few_addresses_are_kept() -> None:
    knowledge = made()
    for number in range(9):
        knowledge.vouch(PEER, Vouched(f"11.0.0.{number}"))
    assert list(knowledge.seen(PEER).vouched) == [f"11.0.0.{number}" for number in range(5, 9)]


def test_who_is_at_our_own_address_shares_our_site() -> None:
    knowledge = made()
    knowledge.vouch(PEER, Vouched("11.0.0.1"))
    assert knowledge.seen(PEER).same_site
    other = made()
    other.vouch(PEER, Vouched("11.0.0.2"))
    assert not other.seen(PEER).same_site


def test_seen_elsewhere_the_own_port_has_to_be_looked_at_again() -> None:
    knowledge = made()
    knowledge.observed(("11.0.0.1", 4001))
    own = knowledge.own(PEER)
    assert own.nat.preserves and own.seen_at == 1.0
    knowledge.observed(("43.0.0.1", 4001))
    own = knowledge.own(PEER)
    assert not own.nat.preserves and own.seen_at is None
    tcp = [each for each in own.candidates if each.transport is Transport.TCP]
    assert tcp[0].place == ("43.0.0.1", 4001) and tcp[0].kind is Kind.OBSERVED


def test_what_peers_see_on_ipv6_says_nothing_of_a_nat() -> None:
    knowledge = made()
    knowledge.observed(("2600::1", 4001))
    assert knowledge.own(PEER).nat.preserves
