"""Members on the same network find each other by multicast, and not without it."""

import trio

from shoal.netsim.world import World
from shoal.transport.ladder import Rungs
from shoal.transport.link import Link
from shoal.transport.pipe import Way
from tests.transport.homes import Street


async def neighbours(world: World, ladder: Rungs) -> Link | None:
    street = Street(world)
    street.town.book = lambda peer: []  # type: ignore[method-assign]
    gateway = world.gateway("router")
    a = await street.town.node(world.host("a", behind=gateway), rungs=ladder)
    b = await street.town.node(world.host("b", behind=gateway), rungs=ladder)
    await trio.sleep(10)
    return a.endpoint.link(b.peer)


async def test_neighbours_find_each_other(world: World) -> None:
    link = await neighbours(world, Rungs())
    assert link is not None
    assert link.way is Way.LAN


async def test_neighbours_do_not_find_each_other_without_multicast(world: World) -> None:
    assert await neighbours(world, Rungs(lan=False)) is None
