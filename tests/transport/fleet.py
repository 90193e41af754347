"""Real endpoints on loopback, and a proxy between them that can freeze, cut and refuse."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from shoal.transport.address import Address
from shoal.transport.bytestream import PathKind, TcpByteStream
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.errors import DialFailed
from shoal.transport.handshake.certificate import Certificate
from shoal.transport.handshake.hello import Admission, Hello, OpenSwarm
from shoal.transport.handshake.secured import SecureStream
from shoal.transport.handshake.tls import Tls
from shoal.transport.host.real import RealHost
from shoal.transport.host.seam import Host
from shoal.transport.identity import Identity
from shoal.transport.lane import frame as wire
from shoal.transport.lane.events import GrantedLimits
from shoal.transport.lane.shaper import Shaper
from shoal.transport.limits import Limits
from shoal.transport.link.calls import Call, Reply
from shoal.transport.link.link import Link

LOOPBACK = "127.0.0.1"


def clock() -> trio.testing.MockClock:
    """Virtual time that waits 20 ms for the kernel's loopback before it jumps."""
    return trio.testing.MockClock(autojump_threshold=0.02)


@dataclass
class Node:
    """An endpoint, with a record of the events that it reported."""

    endpoint: Endpoint
    up: list[Link] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    lost_at: list[float] = field(default_factory=list)
    quiet_at: list[float] = field(default_factory=list)
    back: list[Link] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    stopped: bool = False

    @property
    def address(self) -> Address:
        return Address(LOOPBACK, self.endpoint.port, self.endpoint.peer)

    def _on_lost(self, link: Link, code: str) -> None:
        self.lost.append(code)
        self.lost_at.append(trio.current_time())

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.endpoint.run, LOOPBACK, 0)
                task_status.started()
        self.stopped = True


def make_node(
    seed: int,
    *,
    admission: Admission | None = None,
    limits: Limits | None = None,
    host: Host | None = None,
    shaper: Shaper | None = None,
) -> Node:
    """A node with handlers `echo` (inline), `slow` (a task, 50 ms) and stream `upper`."""
    endpoint = Endpoint(
        host or RealHost(),
        Identity.from_seed(bytes([seed]) * 32),
        admission=admission or OpenSwarm(),
        limits=limits,
        shaper=shaper,
    )
    node = Node(endpoint)
    endpoint.on_link(node.up.append)
    endpoint.on_link_lost(node._on_lost)
    endpoint.on_link_quiet(lambda _: node.quiet_at.append(trio.current_time()))
    endpoint.on_link_back(node.back.append)

    def echo(call: Call) -> Reply:
        node.calls.append(str(call.header.get("n")))
        return Reply(call.header, call.payload)

    async def slow(call: Call) -> Reply:
        node.calls.append(str(call.header.get("n")))
        await trio.sleep(0.05)
        return Reply(call.header, call.payload)

    endpoint.handle("echo", echo)
    endpoint.handle("slow", slow)
    return node


@asynccontextmanager
async def running(*nodes: Node) -> AsyncIterator[trio.Nursery]:
    """Context in which the nodes listen on loopback."""
    async with trio.open_nursery() as nursery:
        for node in nodes:
            await nursery.start(node.run)
        yield nursery
        nursery.cancel_scope.cancel()


async def until(
    condition: Callable[[], object], timeout: float = 20.0, *, every: float = 0.001
) -> float:
    """Wait until a condition holds. Return the seconds that it took."""
    began = trio.current_time()
    with trio.fail_after(timeout):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(every)
    return trio.current_time() - began


class Proxy:
    """Forwards one port to another. `cut`, `freeze` and `refuse` simulate network failures."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self.connections = 0
        self._target = target
        self._frozen = False
        self._pairs: list[trio.SocketStream] = []
        self._listener: trio.SocketListener | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self._listener = await RealHost().listen(LOOPBACK, 0)
        self.port = self._listener.socket.getsockname()[1]
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                await self._accept(self._listener, nursery)
        finally:
            self._listener.socket.close()

    async def _accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        while True:
            try:
                near = await listener.accept()
            except trio.ClosedResourceError:
                await trio.sleep_forever()
            far = await RealHost().connect(LOOPBACK, self._target)
            self.connections += 1
            self._pairs += [near, far]
            nursery.start_soon(self._forward, near, far)
            nursery.start_soon(self._forward, far, near)

    async def _forward(self, source: trio.SocketStream, target: trio.SocketStream) -> None:
        try:
            while data := await source.receive_some(65536):
                if self._frozen:
                    await trio.sleep_forever()
                await target.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            source.socket.close()
            target.socket.close()

    def cut(self) -> None:
        """Break every connection, but forward new ones."""
        for stream in self._pairs:
            stream.socket.close()
        self._pairs.clear()

    def freeze(self) -> None:
        """Drop all data silently."""
        self._frozen = True

    def refuse(self) -> None:
        """Stop listening."""
        assert self._listener is not None
        self._listener.socket.close()


async def linked(a: Node, b: Node) -> Link:
    link = await a.endpoint.dial(b.address, timeout=5)
    await until(lambda: b.up)
    return link


async def through_a_proxy(
    a: Node, b: Node, nursery: trio.Nursery, *, dialable: bool = False
) -> tuple[Link, Proxy]:
    """Link `a` to `b` by a proxy. Unless `a` is `dialable`, `b` reaches it only that way."""
    if not dialable:
        a.endpoint._hellos.port = 0
    proxy = Proxy(b.endpoint.port)
    await nursery.start(proxy.run)
    link = await a.endpoint.dial(Address(LOOPBACK, proxy.port, b.endpoint.peer), timeout=5)
    await until(lambda: b.up)
    return link, proxy


async def second_path(a: Node, b: Node, path_kind: PathKind, port: int | None = None) -> Link:
    host = a.endpoint._host
    byte_stream = TcpByteStream(await host.connect(LOOPBACK, port or b.endpoint.port))
    return await a.endpoint.join(byte_stream, path_kind, expect=b.endpoint.peer, server=False)


async def dial_code(a: Node, address: Address, timeout: float = 5) -> str:
    with pytest.raises(DialFailed) as failed:
        await a.endpoint.dial(address, timeout=timeout)
    return failed.value.code


async def raw_path(node: Node, seed: int = 99) -> SecureStream:
    """Return a TLS connection to a node on which no hello has been sent yet."""
    host = RealHost()
    certificate = Certificate.generate(Identity.from_seed(bytes([seed]) * 32), host)
    stream = await host.connect(LOOPBACK, node.endpoint.port)
    path = SecureStream(
        TcpByteStream(stream), Tls(certificate, server=False, expect=node.endpoint.peer)
    )
    await path.handshake()
    return path


def hello(versions: tuple[int, int] = (1, 1), resume: bytes | None = None) -> bytes:
    said = Hello(versions, bytes(16), GrantedLimits(1000, 1000, 4), b"open", resume=resume)
    return wire.encode(wire.HELLO, head=said.encode())


async def goodbye(path: SecureStream) -> str:
    """Return the code of the received goaway."""
    data = b""
    with trio.fail_after(5):
        while (found := wire.first_frame(data, 4096)) is None:
            data += await path.receive()
    assert found[0].kind == wire.GOAWAY
    return wire.decode_code(found[0].head)[0]
