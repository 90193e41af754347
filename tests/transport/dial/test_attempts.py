"""Relays that dial the target of a circuit, so that peers limited to TCP 443 are reached."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from bench.worlds.transportnode import TransportNode
from shoal.netsim.world import World
from shoal.transport.dial.attempts import ConnectionAttempts
from shoal.transport.guard import Guard
from shoal.transport.host.real import RealHost
from shoal.transport.peertasks import PeerTasks
from tests.transport.homes import UNPUNCHED, Street, strategies, until, way_of


async def behind_campus(world: World, *, everywhere: bool) -> tuple[str, str]:
    """A node on a network that allows only TCP 80 and 443 outbound, and a home."""
    street = Street(world)
    await street.relays(everywhere=everywhere)
    a = await street.home("a", "udp-blocked", strategies(**UNPUNCHED))
    b = await street.home("b", "linux-drop", strategies(**UNPUNCHED))
    await street.settle(a, b)
    return await way_of(a, b)


async def test_a_relay_on_443_serves_networks_that_allow_nothing_else(world: World) -> None:
    assert await behind_campus(world, everywhere=True) == ("relayed", "circuit")


async def test_relays_on_other_ports_are_out_of_reach(world: World) -> None:
    assert (await behind_campus(world, everywhere=False))[0] == "none"


async def test_reachable_peers_reserve_at_a_relay_on_443_for_campus_peers(
    world: World,
) -> None:
    street = Street(world)
    await street.relays(everywhere=True)
    a = await street.home("a", "udp-blocked")
    b = await street.town.node(world.host("b"), strategies=strategies(), web_port=False)
    await street.settle(a, b)
    assert b.dialer.relays.reachable
    assert len(b.dialer.relays.relays) == 1
    assert await way_of(a, b, 1.0) == ("relayed", "circuit")


class Campus(Street):
    """`a` is limited to TCP 443 and has one relay there. Other nodes know that relay only from the
    book, and the relay knows them only from there."""

    async def meet(self, b: TransportNode, *, relays: Sequence[TransportNode] = ()) -> None:
        self.a = await self.home("a", "udp-blocked")
        self.b = b
        await self.settle(self.a, relays=self.town.relays[:1])
        await self.settle(b, relays=relays)
        assert self.town.relays[0].endpoint.link(b.peer) is None

    async def public(self, **only: bool) -> TransportNode:
        return await self.town.node(
            self.world.host("b"), strategies=strategies(**only), web_port=False
        )


async def test_a_public_node_is_reached_by_the_relay_of_a_peer_limited_to_443(
    world: World,
) -> None:
    street = Campus(world)
    await street.relays(1, everywhere=True)
    await street.meet(await street.public())
    assert not street.b.dialer.relays.relays
    assert await way_of(street.a, street.b, 1.0) == ("relayed", "circuit")
    await until(lambda: street.b.dialer.relays.relays)  # and others find it without asking


async def test_a_relay_that_fetches_no_peers_does_not_reach_it(world: World) -> None:
    street = Campus(world)
    await street.relays(1, everywhere=True)
    street.town.relays[0].dialer.relaying.fetch = None
    await street.meet(await street.public())
    assert (await way_of(street.a, street.b, 1.0))[0] == "none"


async def test_a_node_without_circuits_is_not_reached(world: World) -> None:
    street = Campus(world)
    await street.relays(1, everywhere=True)
    await street.meet(await street.public(relay=False))
    assert (await way_of(street.a, street.b, 1.0))[0] == "none"


async def test_a_public_node_reaches_a_peer_limited_to_443(world: World) -> None:
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
    other = await street.town.relay(host, strategies=strategies())
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
    plan: Any = SimpleNamespace(book=lambda peer: (), attempts=lambda *where: [], attempt=None)
    attempts = ConnectionAttempts(RealHost(), endpoint, plan, PeerTasks(Guard()))
    lost: Any = SimpleNamespace(peer="lost", needed=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(attempts.find, lost)
        await trio.sleep(1)
        attempts.found("other")  # type: ignore[arg-type]
        assert not woken
        attempts.found(lost.peer)
        assert woken
        nursery.cancel_scope.cancel()
    attempts.found(lost.peer)
    assert len(woken) == 1
