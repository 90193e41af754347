"""Nodes at public addresses are dialled directly, over TCP and over UDP."""

from dataclasses import replace
from typing import Any

from bench.worlds.transportnode import TransportNode
from shoal.netsim.world import World
from shoal.transport.errors import DialFailed
from shoal.transport.strategies.dialer import Strategies
from tests.transport.homes import NO_TCP, Street, strategies, way_of


async def to_public(world: World, dialer: Strategies, **knobs: Any) -> tuple[str, str]:
    street = Street(world)
    a = await street.home("a", "linux-drop", dialer, **knobs)
    b = await street.town.node(world.host("b"), strategies=strategies())
    return await way_of(a, b)


async def test_a_public_address_is_dialled_over_tcp(world: World) -> None:
    assert await to_public(world, strategies(udp=False, relay=False)) == ("direct", "tcp")


async def test_without_direct_dialling_there_is_no_tcp_path(world: World) -> None:
    dialer = strategies(udp=False, relay=False, direct=False)
    assert await to_public(world, dialer) == ("none", "no-way")


async def test_a_public_address_is_dialled_over_udp(world: World) -> None:
    assert await to_public(world, strategies(relay=False), allow=NO_TCP) == ("direct", "udp")


async def test_without_a_udp_port_there_is_no_udp_path(world: World) -> None:
    dialer = strategies(relay=False, udp=False)
    assert (await to_public(world, dialer, allow=NO_TCP))[0] == "none"


async def by_quic_alone(world: World, *, seen: bool) -> str:
    """Return the outcome of a dial to a UDP address from a record, by a node with one link.

    With `seen`, its peer is linked to the node of that record.
    """
    one, hub, other = (
        TransportNode(
            world.host(name), name.encode() * 32, strategies=Strategies(relay=False, lan=False)
        )
        for name in "aho"
    )
    for node in (one, hub, other):
        await node.computer.start(node)
    await one.connect(hub.peer, [hub.address()], timeout=5)
    if seen:
        await other.connect(hub.peer, [hub.address()], timeout=5)
    try:
        link = await one.connect(other.peer, [replace(other.address(), transport="udp")], timeout=5)
    except DialFailed as error:
        return error.code
    return str(link.path_kind)


async def test_a_peer_that_others_see_is_dialled_by_quic_alone(world: World) -> None:
    assert await by_quic_alone(world, seen=True) == "direct"


async def test_a_peer_that_no_other_peer_sees_is_not_dialled(world: World) -> None:
    assert await by_quic_alone(world, seen=False) == "not-seen"
