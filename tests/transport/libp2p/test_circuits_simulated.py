"""Two nodes behind NATs and a plain libp2p relay between them, in the simulator."""

import trio

from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.world import World
from shoal.transport.address import Address
from shoal.transport.bytestream import ByteStream
from shoal.transport.libp2p import Libp2pResponder
from shoal.transport.libp2p.client import CircuitClient
from shoal.transport.relay.book import RelayBook
from shoal.transport.relay.defaults import RelayLimits
from tests.transport.fleet import until
from tests.transport.libp2p.pipes import OURS
from tests.transport.libp2p.secured import A, B, exchange, secured


async def test_two_nodes_behind_nats_meet_at_a_relay(world: World) -> None:
    gateways = [world.gateway(name, "linux-drop") for name in ("home", "flat")]
    computers = [world.host("relay"), *(world.host(g.name + "-pc", behind=g) for g in gateways)]
    async with trio.open_nursery() as nursery:
        hosts = [SimulatedHost(c, PROFILES["desktop"], nursery) for c in computers]
        book = RelayBook(RelayLimits(volunteer=True), trio.current_time())
        relay = Libp2pResponder(hosts[0], OURS, addresses=list, relay=book)

        async def serve() -> None:
            listener = await hosts[0].listen("0.0.0.0", 4001)
            while True:
                stream = await listener.accept()
                nursery.start_soon(relay.serve, stream, b"")

        ends: list[ByteStream] = []

        async def target() -> None:
            client = CircuitClient(hosts[1], B, port=lambda: 4001)
            client.on_circuit(lambda byte_stream, source, relay: ends.append(byte_stream))
            await nursery.start(client.run)
            await client.reserve(Address(computers[0].addresses()[0], 4001, OURS.peer))
            addresses.extend(client.addresses())

        addresses: list[Address] = []
        computers[0].start_soon(nursery, serve)
        await trio.sleep(0.1)
        computers[1].start_soon(nursery, target)
        await until(lambda: addresses)
        assert str(addresses[0]).endswith(f"/p2p/{OURS.peer}/p2p-circuit/p2p/{B.peer}")

        async def dial() -> None:
            client = CircuitClient(hosts[2], A, port=lambda: 4001)
            await nursery.start(client.run)
            began = trio.current_time()
            near = await client.dial(addresses[0])
            assert trio.current_time() - began < 0.5
            await exchange(*await secured(near, ends[0], hosts[2]), 50_000)
            nursery.cancel_scope.cancel()

        computers[2].start_soon(nursery, dial)
