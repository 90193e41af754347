"""Whole nodes on a simulated internet: endpoints, UDP ports, and `Reach` on them."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.host import Host as Computer
from shoal.netsim.world import World
from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.host.datagrams import Datagrams, Place
from shoal.transport.identity import Identity, PeerId
from shoal.transport.link.calls import Handler
from shoal.transport.link.link import Link
from shoal.transport.nat.reach.reachability import Reachability
from shoal.transport.nat.reach.service import Reach
from shoal.transport.udp.port import UdpPort

PORT = 4001
DIALBACK_PORT = 4002  # until the endpoint tells dial-backs apart itself


class Doors:
    """The endpoint as `Reach` sees it, except that dial-backs come to another port."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.port = DIALBACK_PORT

    def links(self) -> list[Link]:
        return self.endpoint.links()

    def link(self, peer: PeerId) -> Link | None:
        return self.endpoint.link(peer)

    def handle(self, method: str, handler: Handler) -> None:
        self.endpoint.handle(method, handler)

    def on_link(self, callback: Callable[[Any], None]) -> None:
        self.endpoint.on_link(callback)


class Node:
    """One node, whose `reach` measures and answers peers."""

    def __init__(
        self, computer: Computer, number: int, *, volunteer: bool = True, six: bool = False
    ) -> None:
        self.computer = computer
        self.number = number
        self.volunteer = volunteer
        self.listen = ["0.0.0.0", "::"] if six else ["0.0.0.0"]
        self.first_bytes: list[bytes] = []
        self.came_from: list[Place] = []
        self.reach: Reach
        self.endpoint: Endpoint
        self.host: SimulatedHost
        self.udp: UdpPort

    @property
    def peer(self) -> PeerId:
        return self.endpoint.peer

    @property
    def ip(self) -> str:
        return self.computer.addresses()[0]

    async def run(self, nursery: trio.Nursery, *, task_status: trio.TaskStatus[None]) -> None:
        self.host = SimulatedHost(self.computer, PROFILES["desktop"], nursery)
        identity = Identity.from_seed(bytes([self.number]) * 32)
        self.endpoint = Endpoint(self.host, identity, admission=OpenSwarm())
        self.udp = UdpPort(self.host)
        self.reach = Reach(self.host, Doors(self.endpoint), self.udp, volunteer=self.volunteer)
        self.udp.on_stun(self._on_stun)
        async with trio.open_nursery() as mine:
            await mine.start(self.endpoint.run, "0.0.0.0", PORT)
            await mine.start(self.udp.run, self.listen, PORT)
            for address in self.listen:
                await mine.start(self._listen, address, DIALBACK_PORT)
            await mine.start(self.reach.run)
            task_status.started()

    def _on_stun(self, data: bytes, source: Place, socket: Datagrams) -> None:
        self.reach.on_stun(data, source, socket)

    async def _listen(self, address: str, port: int, *, task_status: trio.TaskStatus[None]) -> None:
        listener = await self.host.listen(address, port)
        task_status.started()
        with listener.socket:
            while True:
                await self._take(await listener.accept())

    async def _take(self, stream: trio.SocketStream) -> None:
        place = stream.socket.getpeername()[:2]
        self.came_from.append(place)
        with stream.socket, trio.move_on_after(2):
            data = await stream.receive_some(100)
            self.first_bytes.append(data)
            self.reach.dialback_arrived(data, place)

    async def dial(self, other: "Node") -> Link:
        address = Address(other.ip, PORT, other.peer)
        link: Link = await self.computer.run(self._dial, address)
        return link

    async def _dial(self, address: Address) -> Link:
        return await self.endpoint.dial(address, timeout=10.0)

    async def measure(self) -> Any:
        return await self.computer.run(self.reach.measure)

    async def show_tcp(self, other: "Node") -> None:
        """Dial from the listen port, and note where the other node sees it, like its hello will
        report."""
        port = DIALBACK_PORT
        stream = await self.computer.run(self._connect, other.ip, port)
        await trio.sleep(0.2)
        place = other.came_from[-1]
        self.reach.observed_tcp(other.peer, other.ip, place, port)
        stream.socket.close()

    async def _connect(self, ip: str, port: int) -> trio.SocketStream:
        return await self.host.connect(ip, port, source_port=port)


@asynccontextmanager
async def running(*nodes: Node) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        for node in nodes:
            await nursery.start(_start, node, nursery)
        yield nursery
        nursery.cancel_scope.cancel()


async def _start(node: Node, nursery: trio.Nursery, *, task_status: trio.TaskStatus[None]) -> None:
    async def body() -> None:
        await node.run(nursery, task_status=task_status)

    await node.computer.run(body)


def on_the_internet(
    world: World, count: int, *, six: bool = False, volunteer: bool = True
) -> list[Node]:
    return [
        Node(world.host(f"peer{n}", ipv6=six), 10 + n, six=six, volunteer=volunteer)
        for n in range(count)
    ]


async def measured(world: World, node: Node, peers: list[Node]) -> Reachability:
    """Link a node to all `peers`, and return its measurement."""
    async with running(node, *peers):
        for peer in peers:
            await node.dial(peer)
            await node.show_tcp(peer)
        found: Reachability = await node.measure()
        # No peer dialled back from a port on which it listens.
        assert not {PORT, DIALBACK_PORT} & {port for _, port in node.came_from}
    return found
