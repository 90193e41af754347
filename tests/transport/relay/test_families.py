"""Relays that see a node over both IP versions."""

import pytest
import trio

from bench.worlds.town import Town
from shoal.netsim.world import World
from shoal.transport.relay.vouch import seen_at
from shoal.transport.strategies.dialer import Strategies

QUIET = Strategies(lan=False, mapping=False)


async def linked(world: World, *, relay_six: bool, home_six: bool) -> set[bool]:
    """Return the IP versions over which a relay sees a home with a reservation there."""
    town = Town(world)
    relay = await town.relay(world.host("relay", ipv6=relay_six), strategies=QUIET)
    gateway = world.gateway("router", ipv6=home_six)
    home = await town.node(world.host("home", behind=gateway), strategies=QUIET)
    await town.introduce(home, [relay])
    await trio.sleep(5)
    assert home.dialer.relays.relays
    link = relay.endpoint.link(home.peer)
    assert link is not None
    seen = seen_at(link)
    assert (seen.other != "") == (len(link.seen) == 2)
    assert ":" not in seen.ip or len(link.seen) == 1
    return {":" in ip for ip in link.seen}


async def test_a_relay_sees_both_versions_if_both_ends_have_both(world: World) -> None:
    assert await linked(world, relay_six=True, home_six=True) == {True, False}


async def test_a_relay_remembers_the_version_of_a_path_that_is_gone(world: World) -> None:
    """So it can tell an IPv4-only peer where it saw a home that is linked over IPv6."""
    town = Town(world)
    relay = await town.relay(world.host("relay", ipv6=True), strategies=QUIET)
    gateway = world.gateway("router", ipv6=True)
    home = await town.node(world.host("home", behind=gateway), strategies=QUIET)
    await town.introduce(home, [relay])
    await trio.sleep(5)
    link = relay.endpoint.link(home.peer)
    assert link is not None
    link.paths.lose(next(path for path in link.paths if ":" not in path.secured.address[0]))
    assert len(link.seen) == 1
    seen = seen_at(link)
    assert (seen.ip, seen.other) == (gateway.address, home.computer.addresses()[1])


@pytest.mark.parametrize(("relay_six", "home_six"), [(True, False), (False, True), (False, False)])
async def test_a_relay_sees_one_version_if_one_end_has_one(
    world: World, *, relay_six: bool, home_six: bool
) -> None:
    assert await linked(world, relay_six=relay_six, home_six=home_six) == {False}
