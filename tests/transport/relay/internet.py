"""Nodes with a relay service and a relay client on a simulated internet."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.host import Host as Computer
from shoal.netsim.network.gateway import SubnetRouter
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.identity import Identity, PeerId
from shoal.transport.relay.circuit import CircuitByteStream
from shoal.transport.relay.client import RelayClient
from shoal.transport.relay.defaults import RelayLimits
from shoal.transport.relay.service import RelayService
from tests.transport import fleet
from tests.transport.relay.circuits import Arrived

PORT = 4001
LENDS = RelayLimits(volunteer=True, rate=1_000_000)


def away(seconds: float) -> LinkSpec:
    """A link with so much delay each way."""
    return LinkSpec(PipeSpec(seconds), PipeSpec(seconds))


async def until(condition: Callable[[], object], timeout: float = 10.0) -> float:
    """Wait for it; seconds it took. Simulated time passes at once: what costs is to look often."""
    return await fleet.until(condition, timeout, every=0.01)


class Node:
    """One computer's endpoint; `lends` makes it a relay."""

    def __init__(
        self, world: World, name: str, number: int, *, lends: RelayLimits | None = None,
        behind: SubnetRouter | None = None, address: str | None = None, delay: float = 0.0,
        port: int = PORT,
    ) -> None:  # fmt: skip
        link = away(delay) if delay else None
        self.computer: Computer = world.host(name, behind=behind, address=address, link=link)
        self.identity = Identity.from_seed(number.to_bytes(32))
        self.peer: PeerId = self.identity.peer
        self.address = Address(self.computer.addresses()[0], port, self.peer)
        self.arrived: list[Arrived] = []
        self.changes = 0
        self.endpoint: Endpoint
        self.service: RelayService
        self.client: RelayClient
        self._scope: trio.CancelScope
        self._lends = lends or RelayLimits()

    def _on_change(self) -> None:
        self.changes += 1

    async def run(self, host: Computer, *, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            self._scope = nursery.cancel_scope
            seam = SimulatedHost(host, PROFILES["desktop"], nursery)
            self.endpoint = Endpoint(seam, self.identity, admission=OpenSwarm())
            self.service = RelayService(seam, self.endpoint, self._lends, member=lambda _: 0.0)
            self.client = RelayClient(seam, self.endpoint)
            self.client.on_change(self._on_change)
            self.client.on_circuit(lambda *item: self.arrived.append(Arrived(*item)))
            self.client.reachable = self._lends.volunteer
            await nursery.start(self.endpoint.run, "0.0.0.0", self.address.port)
            await nursery.start(self.client.run)
            task_status.started()

    async def stop(self) -> None:
        """End the program in order."""
        self._scope.cancel()
        await self.computer.ended()

    async def dial(self, address: Address) -> CircuitByteStream:
        """A circuit to a published address."""
        assert address.relay is not None and address.peer is not None
        relay, peer = address.relay, address.peer

        async def call() -> CircuitByteStream:
            return await self.client.dial(relay, peer, timeout=10)

        byte_stream: CircuitByteStream = await self.computer.run(call)
        return byte_stream


@asynccontextmanager
async def started(*nodes: Node) -> AsyncIterator[None]:
    for node in nodes:
        await node.computer.start(node)
    yield
    for node in nodes:
        if node.computer.running:
            await node.stop()
