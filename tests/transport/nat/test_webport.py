"""A node that others reach relays a little and listens on TCP 443, and stops when they do not."""

from dataclasses import replace
from typing import Any

import pytest
import trio

from bench.worlds.town import Town
from bench.worlds.transportnode import TransportNode
from shoal.netsim.world import World
from shoal.transport.address import Address
from shoal.transport.errors import HostError
from shoal.transport.nat.reach.reachability import DialBackResult, Reachability
from shoal.transport.relay.defaults import RelayLimits
from shoal.transport.strategies.dialer import Strategies

STRATEGIES = Strategies(lan=False)
WEB = ("0.0.0.0", 443)


async def two(world: World, **settings: Any) -> tuple[Town, TransportNode, TransportNode]:
    """A public node and a home node, linked for long enough to be measured."""
    town = Town(world)
    public = await town.node(world.host("public"), strategies=STRATEGIES, **settings)
    behind = world.gateway("router", "linux-drop")
    home = await town.node(world.host("home", behind=behind), strategies=STRATEGIES)
    await home.connect(public.peer, [public.address()])
    await trio.sleep(30)
    return town, public, home


async def found(node: TransportNode, change: Reachability) -> None:
    """Set the result of the next measurement."""

    async def publish() -> None:
        node.dialer.reach.publish(change)
        await trio.sleep(0.1)

    await node.within(publish)


async def test_a_node_relays_while_others_are_shown_to_reach_it(world: World) -> None:
    _, public, home = await two(world)
    assert public.dialer.relaying.book.lends and WEB in public.endpoint.listening
    assert not home.dialer.relaying.book.lends and WEB not in home.endpoint.listening
    assert Address(public.address().host, 443, public.peer) in public.addresses()
    assert [held.relay for held in home.dialer.relays.relays] == [public.peer]

    known = public.dialer.reach.reachability
    shut = tuple(replace(each, answer=DialBackResult.NOT_REACHED) for each in known.dialled)
    nobody = tuple(replace(each, answer=DialBackResult.UNKNOWN) for each in known.dialled)
    await found(public, replace(known, dialled=nobody))
    assert public.dialer.relaying.book.lends  # no peer could tell, so nothing changes
    await found(public, replace(known, dialled=shut))
    await trio.sleep(1)
    assert not public.dialer.relaying.book.lends and WEB not in public.endpoint.listening
    assert not home.dialer.relays.relays
    await found(public, known)
    await trio.sleep(10)
    assert public.dialer.relaying.book.lends and WEB in public.endpoint.listening
    assert [held.relay for held in home.dialer.relays.relays] == [public.peer]


async def test_a_node_does_not_relay_before_peers_reach_it(world: World) -> None:
    """A public address of its own is not enough: there may be a firewall."""
    town = Town(world)
    public = await town.node(world.host("public"), strategies=STRATEGIES)
    await trio.sleep(60)
    assert public.dialer.whereabouts.reachable()
    assert not public.dialer.relaying.book.lends and WEB not in public.endpoint.listening


@pytest.mark.parametrize("rate", [0, 1_000_000])
async def test_the_owner_s_setting_decides(world: World, rate: int) -> None:
    limits = RelayLimits(volunteer=rate > 0, rate=rate)
    _, public, home = await two(world, relaying=limits, web_port=False)
    assert public.dialer.relaying.book.lends is (rate > 0)
    assert bool(home.dialer.relays.relays) is (rate > 0)
    assert WEB not in public.endpoint.listening


async def test_an_unavailable_port_443_is_not_fatal(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(self: object, address: str, port: int) -> trio.CancelScope:
        raise HostError("permission denied")

    monkeypatch.setattr("shoal.transport.dial.endpoint.Endpoint.listen_too", refused)
    _, public, _ = await two(world)
    assert public.dialer.relaying.book.lends
    assert public.dialer.web_port is not None
    assert public.dialer.web_port.failure == "permission denied"
