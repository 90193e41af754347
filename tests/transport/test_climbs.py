"""A relay climbs to whom somebody wants through it: who gets out by TCP 443 only is reached."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from shoal.netsim.daemons.climber import Climber
from shoal.netsim.world import World
from shoal.transport.climbs import Climbs
from shoal.transport.realhost import RealHost
from tests.transport.homes import UNPUNCHED, Street, rungs, until, way_of


async def behind_campus(world: World, *, everywhere: bool) -> tuple[str, str]:
    """From a network that lets out TCP 80 and 443 only, to a home."""
    street = Street(world)
    await street.relays(everywhere=everywhere)
    a = await street.home("a", "udp-blocked", rungs(**UNPUNCHED))
    b = await street.home("b", "linux-drop", rungs(**UNPUNCHED))
    await street.settle(a, b)
    return await way_of(a, b)


async def test_a_relay_on_443_where_nothing_else_is_let_out(world: World) -> None:
    assert await behind_campus(world, everywhere=True) == ("relayed", "circuit")


async def test_not_by_relays_on_other_ports(world: World) -> None:
    assert (await behind_campus(world, everywhere=False))[0] == "none"


async def test_who_is_reached_has_a_place_at_a_relay_on_443_for_those_behind_a_campus(
    world: World,
) -> None:
    street = Street(world)
    await street.relays(everywhere=True)
    a = await street.home("a", "udp-blocked")
    b = await street.town.node(world.host("b"), rungs=rungs(), web_port=False)
    await street.settle(a, b)
    assert b.ladder.relays.reachable
    assert len(b.ladder.relays.relays) == 1
    assert await way_of(a, b, 1.0) == ("relayed", "circuit")


class Campus(Street):
    """`a` gets out by TCP 443 alone, to the one relay that is there; nobody else knows that relay,
    nor does it know them but from the book."""

    async def meet(self, b: Climber, *, relays: Sequence[Climber] = ()) -> None:
        self.a = await self.home("a", "udp-blocked")
        self.b = b
        await self.settle(self.a, relays=self.town.relays[:1])
        await self.settle(b, relays=relays)
        assert self.town.relays[0].endpoint.link(b.peer) is None

    async def public(self, **only: bool) -> Climber:
        return await self.town.node(self.world.host("b"), rungs=rungs(**only), web_port=False)


async def test_a_public_node_is_reached_by_the_relay_of_who_gets_out_by_443_only(
    world: World,
) -> None:
    street = Campus(world)
    await street.relays(1, everywhere=True)
    await street.meet(await street.public())
    assert not street.b.ladder.relays.relays
    assert await way_of(street.a, street.b, 1.0) == ("relayed", "circuit")
    await until(lambda: street.b.ladder.relays.relays)  # and others find it without asking


async def test_not_by_a_relay_that_looks_for_nobody(world: World) -> None:
    street = Campus(world)
    await street.relays(1, everywhere=True)
    street.town.relays[0].ladder.relaying.fetch = None
    await street.meet(await street.public())
    assert (await way_of(street.a, street.b, 1.0))[0] == "none"


async def test_not_if_it_takes_no_circuits(world: World) -> None:
    street = Campus(world)
    await street.relays(1, everywhere=True)
    await street.meet(await street.public(relay=False))
    assert (await way_of(street.a, street.b, 1.0))[0] == "none"


async def test_a_public_node_reaches_who_gets_out_by_443_only(world: World) -> None:
    street = Campus(world)
    await street.relays(1, everywhere=True)
    await street.meet(await street.public())
    assert await way_of(street.b, street.a, 1.0) == ("relayed", "circuit")


async def test_a_home_whose_relays_are_on_other_ports_is_reached_by_443_only(
    world: World,
) -> None:
    street = Campus(world)
    await street.relays(1, everywhere=True)
    host = world.host("other-relay")
    other = await street.town.relay(host, rungs=rungs())
    await street.meet(await street.home("b", "linux-drop"), relays=[other])
    assert await way_of(street.a, street.b, 1.0) == ("relayed", "circuit")


@pytest.mark.trio
async def test_only_a_path_that_was_looked_for_hurries_the_other_searches(
    autojump_clock: MockClock,
) -> None:
    """A node that has lost half of the swarm makes new links to the other half all the time."""
    woken: list[None] = []
    endpoint: Any = SimpleNamespace(
        rescue=SimpleNamespace(wake=lambda: woken.append(None)), link=lambda peer: None
    )
    dial: Any = None
    climbs = Climbs(
        RealHost(), endpoint, book=lambda peer: (), attempts=lambda *where: [], dial=dial
    )
    lost: Any = SimpleNamespace(peer="lost", needed=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(climbs.find, lost)
        await trio.sleep(1)
        climbs.found("other")  # type: ignore[arg-type]
        assert not woken
        climbs.found(lost.peer)
        assert woken
        nursery.cancel_scope.cancel()
    climbs.found(lost.peer)
    assert len(woken) == 1
