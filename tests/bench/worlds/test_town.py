"""Nodes that know each other's addresses, and the outcome when two of them connect."""

from bench.worlds.town import Town, meet
from shoal.netsim.world import World
from shoal.transport.strategies.dialer import Strategies

QUIET = Strategies(lan=False, mapping=False)


async def test_a_meeting_reports_how_and_when(world: World) -> None:
    town = Town(world)
    a = await town.node(world.host("a"), strategies=QUIET)
    b = await town.node(world.host("b"), strategies=QUIET)
    met, link = await meet(a, b)
    assert link is not None
    assert (met.known, met.path_kind, met.medium, met.six) == (False, "direct", "tcp", False)
    assert met.connected == met.direct
    again, _ = await meet(b, a)
    assert again.known


async def test_a_failed_meeting_reports_why(world: World) -> None:
    town = Town(world)
    a = await town.node(world.host("a"), strategies=QUIET)
    b = await town.node(world.host("b", behind=world.gateway("router")), strategies=QUIET)
    met, link = await meet(a, b)
    assert (link, met.connected, met.direct) == (None, None, None)
    assert met.code == "no-way"


async def test_a_relay_on_443_is_in_the_book(world: World) -> None:
    town = Town(world)
    relay = await town.relay(world.host("relay"), everywhere=True, strategies=QUIET)
    assert relay.everywhere
    assert {each.port for each in town.book(relay.peer)} == {4001, 443}
