"""Whole ladders on a simulated internet: who reaches whom, by which way, and what then happens."""

from collections.abc import Callable
from functools import partial

import trio

from shoal.netsim.daemons.climber import Climber
from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.host import Host
from shoal.netsim.world import World
from shoal.transport.address import Address
from shoal.transport.identity import Identity
from shoal.transport.libp2p import Libp2pResponder
from shoal.transport.link import Link
from shoal.transport.pipe import Way
from shoal.transport.relay.book import RelayBook
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


def has_place(node: Climber) -> bool:
    return bool(node.ladder.relays.reachable or node.ladder.relays.relays)


async def settle(relays: list[Climber], nodes: list[Climber]) -> None:
    """Everybody knows the relays, and who needs one has a place there."""
    for node in nodes:
        for relay in relays:
            await node.connect(relay.peer, [relay.address()])
    for node in nodes:
        await until(partial(has_place, node))


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


async def plain_relay(world: World, nursery: trio.Nursery) -> Address:
    """A computer that relays as libp2p does, and is no shoal node."""
    computer = world.host("plain-relay")
    host = SimulatedHost(computer, PROFILES["desktop"], nursery)
    identity = Identity.from_seed(b"r" * 32)
    book = RelayBook(VOLUNTEER, trio.current_time())
    responder = Libp2pResponder(host, identity, addresses=list, relay=book)

    async def serve() -> None:
        listener = await host.listen("0.0.0.0", 4001)
        while True:
            stream = await listener.accept()
            nursery.start_soon(responder.serve, stream, b"")

    computer.start_soon(nursery, serve)
    await trio.sleep(0.1)
    return Address(computer.addresses()[0], 4001, identity.peer)


async def test_a_relay_of_the_libp2p_kind_carries_a_link(world: World) -> None:
    async with trio.open_nursery() as nursery:
        relay = await plain_relay(world, nursery)
        town = Town(world)
        a = await town.home("a", "linux-drop", foreign=[relay])
        b = await town.home("b", "linux-drop", foreign=[relay])
        await until(lambda: b.ladder.foreign.addresses())
        link = await a.connect(b.peer)
        assert link.way is Way.RELAYED
        assert (await a.call(link, header={"n": 1}, payload=bytes(40_000))).header == {"n": 1}
        nursery.cancel_scope.cancel()
