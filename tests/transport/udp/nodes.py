"""UDP ports on simulated hosts, and what flows between them."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field

import trio

from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.host import Host
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.transport.host.datagrams import Datagrams, Place
from shoal.transport.udp.defaults import UdpLimits
from shoal.transport.udp.port import UdpPort
from shoal.transport.udp.quic import QuicByteStream
from tests.transport.pipes import read, write

PORT = 4001
UNLIMITED = LinkSpec()
INTERNET_S = 0.01  # one way, where a world says nothing else
PROFILE = next(iter(PROFILES.values()))


def link(mbit: float, rtt: float, *, loss: float = 0.0, queue: float = 0.25) -> LinkSpec:
    """An access link whose upward direction is the bottleneck; round trip in seconds, the
    internet's part of it included, and seconds of queue."""
    delay = max(rtt / 2 - INTERNET_S, 0.0)
    up = PipeSpec(delay=delay, rate=mbit * 1e6 / 8, queue=queue, loss=loss)
    return LinkSpec(up=up, down=PipeSpec(delay=delay))


class Node:
    """A host with a UDP port, and the pipes it has accepted."""

    def __init__(self, host: Host, nursery: trio.Nursery, limits: UdpLimits | None = None) -> None:
        self.host = host
        self.nursery = nursery
        self.world = SimulatedHost(host, PROFILE, nursery)
        self.port = UdpPort(self.world, limits=limits)
        self.scope = trio.CancelScope()
        self.stopped = trio.Event()
        self._accepted, self._pipes = trio.open_memory_channel[QuicByteStream](1000)
        self.trusting = True
        self.port.on_byte_stream(self._on_byte_stream)

    def _on_byte_stream(self, byte_stream: QuicByteStream) -> None:
        if self.trusting:
            byte_stream.trust()
        self._accepted.send_nowait(byte_stream)

    @property
    def place(self) -> Place:
        return self.host.addresses()[0], PORT

    async def start(self) -> None:
        started = trio.Event()

        class Status(trio.TaskStatus[int]):
            def started(self, value: int | None = None) -> None:
                started.set()

        self.host.start_soon(self.nursery, self._run, Status())
        await started.wait()

    async def _run(self, status: trio.TaskStatus[int]) -> None:
        with self.scope:
            await self.port.run(["0.0.0.0"], PORT, task_status=status)
        self.stopped.set()

    async def dial(
        self, place: Place, *, socket: Datagrams | None = None, timeout: float = 5
    ) -> QuicByteStream:
        async def call() -> QuicByteStream:
            return await self.port.dial(place, socket=socket, timeout=timeout)

        found: QuicByteStream = await self.host.run(call)
        found.trust()
        return found

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Everything that it sends from its first socket is lost."""
        socket = self.port.sockets[0]
        send = socket.send
        socket.send = lambda data, to: True  # type: ignore[method-assign]
        try:
            yield
        finally:
            socket.send = send  # type: ignore[method-assign]

    async def accept(self) -> QuicByteStream:
        with trio.fail_after(10):
            return await self._pipes.receive()


@asynccontextmanager
async def running(*hosts: Host, limits: UdpLimits | None = None) -> AsyncIterator[list[Node]]:
    """A node on each host until the end of the block."""
    async with trio.open_nursery() as nursery:
        nodes = [Node(host, nursery, limits) for host in hosts]
        for node in nodes:
            await node.start()
        yield nodes
        nursery.cancel_scope.cancel()


async def joined(a: Node, b: Node) -> tuple[QuicByteStream, QuicByteStream]:
    """A byte stream from `a` to `b`, both ends; one byte has come through."""
    near = await a.dial(b.place)
    near.write_ready(memoryview(b"!"))
    far = await b.accept()
    assert await read(far, 1) == b"!"
    return near, far


@dataclass
class Flow:
    """Bulk from one node to another for as long as it is let."""

    near: QuicByteStream
    far: QuicByteStream
    received: int = 0
    rtts: list[float] = field(default_factory=list)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    async def push(self) -> None:
        """Until one of them closes, or `scope` is cancelled."""
        chunk = bytes(65536)
        with self.scope, suppress(OSError, trio.ClosedResourceError):
            while True:
                await write(self.near, chunk)

    async def pull(self) -> None:
        with suppress(OSError, trio.ClosedResourceError):
            while data := await read(self.far, 16384):
                self.received += len(data)


async def flow(a: Node, b: Node) -> Flow:
    found = Flow(*await joined(a, b))
    a.host.start_soon(a.nursery, found.push)
    b.host.start_soon(b.nursery, found.pull)
    return found


def pair(world: World, spec: LinkSpec = UNLIMITED) -> tuple[Host, Host]:
    """Two hosts with public addresses; `spec` is the first one's link."""
    return world.host("a", link=spec), world.host("b")
