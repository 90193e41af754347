"""A stream over a punched path that loses packets at random, at a large round trip."""

import pytest
import trio

from bench.worlds.town import Town, meet
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.transport.bytestream import PathKind
from shoal.transport.lane.frame import Priority
from shoal.transport.link.link import Link
from shoal.transport.link.serving import IncomingStream
from shoal.transport.strategies.dialer import Strategies

RATE = 1e6
RTT = 0.24  # between the homes
LOSS = 0.008  # one or two packets in each round trip
CHUNK = bytes(1 << 16)


@pytest.mark.ci
def test_bulk_uses_a_path_that_loses_packets() -> None:
    """Bytes wait behind a lost packet, which is no queue. The share is about 0.5 if it is taken
    for one."""
    world = World(1, latency=0.0)
    line = LinkSpec(PipeSpec(RTT / 4, rate=RATE, loss=LOSS), PipeSpec(RTT / 4))
    received = 0

    async def take(incoming: IncomingStream) -> None:
        nonlocal received
        while data := await incoming.stream.receive(1 << 18):
            received += len(data)

    async def push(link: Link) -> None:
        stream = await link.open_stream("bulk", {}, priority=Priority.BULK)
        while True:
            await stream.send(CHUNK)

    async def main() -> None:
        town = Town(world)
        strategies = Strategies(lan=False, mapping=False, punch_tcp=False)
        await town.relay(world.host("relay"), strategies=Strategies(lan=False))
        homes = []
        for name in "ab":
            gate = world.gateway(f"{name}-router", "port-restricted", link=line)
            homes.append(await town.node(world.host(name, behind=gate), strategies=strategies))
            await town.introduce(homes[-1], town.relays)
        homes[1].endpoint.handle_stream("bulk", take)
        await trio.sleep(15)
        _, link = await meet(*homes)
        assert link is not None
        with trio.fail_after(10):
            while link.path_kind is not PathKind.PUNCHED:  # noqa: ASYNC110
                await trio.sleep(0.1)
        async with trio.open_nursery() as nursery:
            homes[0].computer.start_soon(nursery, push, link)
            await trio.sleep(8)
            before = received
            await trio.sleep(8)
            nursery.cancel_scope.cancel()
        assert (received - before) / 8 > 0.7 * RATE

    world.run(main)
