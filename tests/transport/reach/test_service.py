"""Whole nodes measure how they are reached, over links, on a simulated internet."""

import pytest

from shoal.netsim.world import World
from shoal.transport.reach.reachability import (
    Answer,
    Behaviour,
    Ipv6,
    Reachability,
)
from tests.transport.reach.swarm import DIALBACK_PORT, PORT, Node, on_the_internet, running
from tests.transport.reach.test_natkind import TRUTH

TCP_TRUTH = {
    # Reached by strangers at the mapping that links use: what the kind filters, on TCP.
    kind: filtering is Behaviour.ENDPOINT_INDEPENDENT
    for kind, (_, filtering, _) in TRUTH.items()
}


async def measured(world: World, node: Node, peers: list[Node]) -> Reachability:
    async with running(node, *peers):
        for peer in peers:
            await node.dial(peer)
            await node.show_tcp(peer)
        found: Reachability = await node.measure()
        for peer in peers:  # nobody dialled from a port that is known
            assert all(place[1] not in (PORT, DIALBACK_PORT) for place in node.came_from), peer
    return found


@pytest.mark.parametrize("kind", [kind for kind in TRUTH if kind != "firewall6"])
async def test_every_kind(world: World, kind: str) -> None:
    gate = world.gateway("gate", kind)
    node = Node(world.host("node", behind=gate), 1)
    found = await measured(world, node, on_the_internet(world, 4))
    mapping, filtering, pattern = TRUTH[kind]
    assert (found.udp.mapping, found.udp.filtering) == (mapping, filtering)
    assert found.udp.allocation.pattern is pattern
    assert found.udp.blocked is False
    if mapping.symmetric:
        assert found.udp_place is None
        assert found.public is not True
    else:
        assert found.udp_place is not None
        assert bool(found.reached("udp")) == (filtering is Behaviour.ENDPOINT_INDEPENDENT)
    known = {item.answer for item in found.dialled if item.transport == "udp"}
    assert (Answer.REACHED_BY_KNOWN in known) == (
        filtering is Behaviour.ADDRESS_DEPENDENT and not mapping.symmetric
    )


async def test_a_public_node(world: World) -> None:
    node = Node(world.host("node"), 1)
    found = await measured(world, node, on_the_internet(world, 3))
    assert found.public is True
    assert found.udp.mapping is found.tcp_mapping is Behaviour.NONE
    assert found.reached("tcp") == ((node.ip, DIALBACK_PORT),)
    assert found.reached("udp") == ((node.ip, PORT),)
    assert (found.cgn, found.ipv6) == (False, Ipv6.NONE)
    assert node.first_bytes


async def test_udp_blocked_leaves_tcp(world: World) -> None:
    gate = world.gateway("gate", "linux-drop", allow=frozenset({(6, PORT), (6, DIALBACK_PORT)}))
    node = Node(world.host("node", behind=gate), 1)
    found = await measured(world, node, on_the_internet(world, 3))
    assert found.udp.blocked is True
    assert found.udp.mapping is Behaviour.UNKNOWN
    assert found.tcp_mapping is Behaviour.ENDPOINT_INDEPENDENT
    assert found.public is False
