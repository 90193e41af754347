"""DHT nodes on real endpoints on the loopback interface."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import trio

from shoal.dht.kademlia.presence import Addressing
from shoal.dht.records.record import NameBody
from shoal.dht.service import Dht
from shoal.dht.settings import DhtSettings
from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.handshake.hello import Admission, OpenSwarm
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity, PeerId
from shoal.transport.link.link import Link

LOOPBACK = "127.0.0.1"
ROOT = "ab" * 32


def name(text: str, root: str = ROOT) -> NameBody:
    return NameBody(text, root, 1, 1)


class Node:
    """An endpoint and its `Dht`; `stop` ends it as a crash would."""

    def __init__(
        self,
        seed: int,
        *,
        folder: Path | None = None,
        admission: Admission | None = None,
        **more: Any,
    ) -> None:
        self.host = RealHost()
        self.identity = Identity.from_seed(seed.to_bytes(32))
        self.peer = self.identity.peer
        self.endpoint = Endpoint(self.host, self.identity, admission=admission or OpenSwarm())
        self.dht = Dht(
            self.host,
            self.endpoint,
            Addressing(self.connect, lambda: [self.address]),
            settings=DhtSettings(folder=folder),
            **more,
        )
        self.scope = trio.CancelScope()

    @property
    def address(self) -> Address:
        return Address(LOOPBACK, self.endpoint.port, self.peer)

    async def connect(self, peer: PeerId, addresses: Sequence[Address]) -> Link:
        return await self.endpoint.ask(peer, addresses, timeout=3)

    async def run(
        self,
        *bootstrap: Address,
        port: int = 0,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.endpoint.run, LOOPBACK, port)
                await nursery.start(self.dht.run)
                for address in bootstrap:
                    await self.endpoint.dial(address, timeout=5)
                task_status.started()

    def stop(self) -> None:
        self.scope.cancel()


async def ring(nursery: trio.Nursery, count: int, **more: Any) -> list[Node]:
    """Start nodes that have all joined through the first."""
    nodes: list[Node] = []
    for number in range(count):
        node = Node(number + 1, **more)
        await nursery.start(node.run, *(one.address for one in nodes[:1]))
        nodes.append(node)
    with trio.fail_after(30):
        for node in nodes:
            await node.dht.joined()
    return nodes
