"""Relays that are no shoal nodes, but libp2p's: a link over one of them, in the simulator."""

import trio

from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.daemons.town import Town
from shoal.netsim.world import World
from shoal.transport.address import Address
from shoal.transport.identity import Identity
from shoal.transport.libp2p import Libp2pResponder
from shoal.transport.pipe import Way
from shoal.transport.relay.book import RelayBook
from shoal.transport.relay.defaults import RelayLimits
from tests.transport.test_ladder import rungs, until


async def plain_relay(world: World, nursery: trio.Nursery) -> Address:
    """A computer that relays as libp2p does, and is no shoal node."""
    computer = world.host("plain-relay")
    host = SimulatedHost(computer, PROFILES["desktop"], nursery)
    identity = Identity.from_seed(b"r" * 32)
    book = RelayBook(RelayLimits(volunteer=True), trio.current_time())
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
        a, b = [
            await town.node(
                world.host(name, behind=world.gateway(f"{name}-router", "linux-drop")),
                rungs=rungs(),
                foreign=[relay],
            )
            for name in ("a", "b")
        ]
        await until(lambda: b.ladder.foreign.addresses())
        link = await a.connect(b.peer)
        assert link.way is Way.RELAYED
        assert (await a.call(link, header={"n": 1}, payload=bytes(40_000))).header == {"n": 1}
        nursery.cancel_scope.cancel()
