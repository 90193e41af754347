"""Members on the same network find each other by multicast, and not without it."""

import trio

from shoal.netsim.world import World
from shoal.transport.bytestream import PathKind
from shoal.transport.link.link import Link
from shoal.transport.strategies.dialer import Strategies
from tests.transport.homes import Street


async def neighbours(world: World, dialer: Strategies) -> Link | None:
    street = Street(world)
    street.town.book = lambda peer: []  # type: ignore[method-assign]
    gateway = world.gateway("router")
    a = await street.town.node(world.host("a", behind=gateway), strategies=dialer)
    b = await street.town.node(world.host("b", behind=gateway), strategies=dialer)
    await trio.sleep(10)
    return a.endpoint.link(b.peer)


async def test_neighbours_find_each_other(world: World) -> None:
    link = await neighbours(world, Strategies())
    assert link is not None
    assert link.path_kind is PathKind.LAN


async def test_neighbours_do_not_find_each_other_without_multicast(world: World) -> None:
    assert await neighbours(world, Strategies(lan=False)) is None
