"""Nodes at public addresses are dialled directly, over TCP and over UDP."""

from typing import Any

from shoal.netsim.world import World
from shoal.transport.ladder import Rungs
from tests.transport.homes import NO_TCP, Street, rungs, way_of


async def to_public(world: World, ladder: Rungs, **knobs: Any) -> tuple[str, str]:
    street = Street(world)
    a = await street.home("a", "linux-drop", ladder, **knobs)
    b = await street.town.node(world.host("b"), rungs=rungs())
    return await way_of(a, b)


async def test_a_public_address_over_tcp(world: World) -> None:
    assert await to_public(world, rungs(udp=False, relay=False)) == ("direct", "tcp")


async def test_not_over_tcp_without_dialling_it(world: World) -> None:
    ladder = rungs(udp=False, relay=False, direct=False)
    assert await to_public(world, ladder) == ("none", "no-way")


async def test_a_public_address_over_udp(world: World) -> None:
    assert await to_public(world, rungs(relay=False), allow=NO_TCP) == ("direct", "udp")


async def test_not_over_udp_without_a_udp_port(world: World) -> None:
    ladder = rungs(relay=False, udp=False)
    assert (await to_public(world, ladder, allow=NO_TCP))[0] == "none"
