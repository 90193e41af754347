"""Whole ladders on a simulated internet: who reaches whom, by which way, and what then happens."""

from collections.abc import Callable

import trio

from shoal.netsim.daemons.climber import Climber
from shoal.netsim.host import Host
from shoal.netsim.world import World
from shoal.transport.link import Link
from shoal.transport.pipe import Way
from shoal.transport.relay.defaults import RelayLimits

VOLUNTEER = RelayLimits(volunteer=True)


class Town:
    """Nodes of one world that know each other's addresses."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.nodes: list[Climber] = []

    async def node(self, host: Host, **settings: object) -> Climber:
        seed = bytes([len(self.nodes) + 1]) * 32
        node = Climber(host, seed, book=self.book, **settings)  # type: ignore[arg-type]
        self.nodes.append(node)
        await host.start(node)
        return node

    def book(self, peer: str) -> list[object]:
        for node in self.nodes:
            if node.peer == peer:
                return list(node.addresses())
        return []

    async def relay(self, name: str) -> Climber:
        return await self.node(self.world.host(name), relaying=VOLUNTEER)

    async def home(self, name: str, nat: str, **settings: object) -> Climber:
        gateway = self.world.gateway(f"{name}-router", nat)
        return await self.node(self.world.host(name, behind=gateway), **settings)


async def until(condition: Callable[[], object], timeout: float = 30.0) -> None:
    with trio.fail_after(timeout):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.05)


async def settle(relays: list[Climber], nodes: list[Climber]) -> None:
    """Everybody knows the relays, and who needs one has a place there."""
    for node in nodes:
        for relay in relays:
            await node.connect(relay.peer, [relay.address()])
    for node in nodes:
        await until(lambda node=node: node.ladder.relays.reachable or node.ladder.relays.relays)


async def meet(
    world: World, one: str, other: str, **settings: object
) -> tuple[Climber, Link, float]:
    town = Town(world)
    relays = [await town.relay(f"relay{number}") for number in range(3)]
    a = await town.home("a", one, **settings)
    b = await town.home("b", other, **settings)
    await settle(relays, [a, b])
    await trio.sleep(10)
    began = trio.current_time()
    link = await a.connect(b.peer)
    return a, link, began


async def test_two_homes_meet_through_a_relay_and_then_directly(world: World) -> None:
    a, link, began = await meet(world, "linux-drop", "linux-drop")
    assert (await a.call(link, header={"n": 1})).header == {"n": 1}
    await until(lambda: link.way is not Way.RELAYED)
    assert trio.current_time() - began < 5
    assert (await a.call(link, header={"n": 2})).header == {"n": 2}
