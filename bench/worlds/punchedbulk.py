"""A stream between two homes whose lines lose packets, over the path that they have punched."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.transport.bytestream import PathKind
from shoal.transport.lane.frame import Priority
from shoal.transport.link.link import Link
from shoal.transport.link.serving import IncomingStream
from shoal.transport.strategies.dialer import Strategies

from .town import Town, meet

SETTLE_S: Final = 15.0  # until both homes have a reservation at the relay and know their NATs
_PUNCH_S: Final = 10.0  # until the punched path carries the link
_CHUNK: Final = bytes(64 * 1024)


class PunchedBulk:
    """A stream from one home to the other. `received` is the bytes that have arrived."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.received = 0

    async def send(self) -> None:
        """Send bulk over the link until cancelled."""
        stream = await self.link.open_stream("bulk", {}, priority=Priority.BULK)
        while True:
            await stream.send(_CHUNK)

    async def take(self, incoming: IncomingStream) -> None:
        """Count what arrives at the other home."""
        while data := await incoming.stream.receive(256 * 1024):
            self.received += len(data)


def lossy_line(rtt: float, rate: float, loss: float) -> LinkSpec:
    """Return the line of a home whose way up has `rate` bytes/s and loses a fraction of its
    packets. Between two such homes, the round trip takes `rtt` seconds."""
    return LinkSpec(PipeSpec(rtt / 4, rate=rate, loss=loss), PipeSpec(rtt / 4))


@asynccontextmanager
async def punched_bulk(world: World, line: LinkSpec) -> AsyncIterator[PunchedBulk]:
    """Let two homes with such lines behind port-restricted NATs meet through a relay and punch over
    UDP. Within the block, one sends to the other."""
    town, strategies = Town(world), Strategies(lan=False, mapping=False, punch_tcp=False)
    await town.relay(world.host("relay"), strategies=Strategies(lan=False))
    homes = []
    for name in "ab":
        gate = world.gateway(f"{name}-router", "port-restricted", link=line)
        homes.append(await town.node(world.host(name, behind=gate), strategies=strategies))
        await town.introduce(homes[-1], town.relays)
    one, other = homes
    await trio.sleep(SETTLE_S)
    met, link = await meet(one, other)
    assert link is not None and (met.path_kind, met.medium) == ("punched", "udp"), met
    bulk = PunchedBulk(link)
    other.endpoint.handle_stream("bulk", bulk.take)
    with trio.fail_after(_PUNCH_S):
        while [path.path_kind for path in link.status.paths if path.used] != [PathKind.PUNCHED]:  # noqa: ASYNC110
            await trio.sleep(0.1)
    async with trio.open_nursery() as nursery:
        one.computer.start_soon(nursery, bulk.send)
        yield bulk
        nursery.cancel_scope.cancel()
