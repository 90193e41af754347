"""Unix stream sockets. The parity tests run on real sockets and on simulated ones."""

import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from shoal.netsim import defaults
from shoal.netsim.sockets.local import LocalSocket, pair
from shoal.netsim.world import World

Program = Callable[[Any, str], Awaitable[None]]


def real(program: Program, folder: Path) -> None:
    async def main() -> None:
        await program(trio.socket.socketpair, str(folder / "s"))

    trio.run(main)


def simulated(program: Program, folder: Path) -> None:
    world = World()
    host = world.host("alice")

    async def main() -> None:
        await host.run(program, lambda: pair(host), str(folder / "s"))

    world.run(main)


both = pytest.mark.parametrize("world", [real, simulated])


def unix() -> Any:
    return trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)


async def listening(path: str, backlog: int = 5) -> Any:
    server = unix()
    await server.bind(path)
    server.listen(backlog)
    return server


@both
def test_names(world: Any, tmp_path: Path) -> None:
    async def program(_: Any, path: str) -> None:
        server = await listening(path)
        client = unix()
        assert client.getsockname() == ""
        await client.connect(path)
        accepted, address = await server.accept()
        assert address == ""
        assert server.getsockname() == accepted.getsockname() == client.getpeername() == path
        assert accepted.getpeername() == ""
        assert (client.family, client.type, client.proto) == (
            trio.socket.AF_UNIX, trio.socket.SOCK_STREAM, 0,
        )  # fmt: skip
        assert server.getsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_ACCEPTCONN) == 1
        assert client.getsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_ACCEPTCONN) == 0
        with pytest.raises(OSError) as caught:
            server.getpeername()
        assert caught.value.errno == errno.ENOTCONN
        for socket in (server, client, accepted):
            socket.close()

    world(program, tmp_path)


@both
def test_refusals(world: Any, tmp_path: Path) -> None:
    async def program(_: Any, path: str) -> None:
        client = unix()
        with pytest.raises(FileNotFoundError):
            await client.connect(path)
        server = unix()
        await server.bind(path)
        with pytest.raises(ConnectionRefusedError):
            await client.connect(path)  # bound, but not listening
        with pytest.raises(OSError) as caught, unix() as other:
            await other.bind(path)
        assert caught.value.errno == errno.EADDRINUSE
        with pytest.raises(OSError) as caught:
            await server.bind(path + "2")
        assert caught.value.errno == errno.EINVAL
        with pytest.raises(OSError) as caught:
            await server.accept()
        assert caught.value.errno == errno.EINVAL
        server.listen(1)
        server.close()
        with pytest.raises(ConnectionRefusedError):
            await client.connect(path)  # the name outlives its socket
        with pytest.raises(OSError) as caught:
            await client.send(b"x")
        assert caught.value.errno == errno.ENOTCONN
        with pytest.raises(OSError, match="too long"):
            await client.connect("/" + "x" * 108)
        client.close()
        with pytest.raises(OSError) as caught:
            await client.connect(path)
        assert caught.value.errno == errno.EBADF

    world(program, tmp_path)


@both
def test_bytes_and_half_close(world: Any, tmp_path: Path) -> None:
    async def program(pair: Any, _: str) -> None:
        a, b = pair()
        assert await a.send(b"hello") == 5
        assert b.is_readable() and not a.is_readable()
        assert await b.recv(3, trio.socket.MSG_PEEK) == b"hel"
        assert await b.recv(3) == b"hel"
        buffer = bytearray(10)
        assert await b.recv_into(buffer) == 2 and buffer[:2] == b"lo"
        a.shutdown(trio.socket.SHUT_WR)
        assert a.did_shutdown_SHUT_WR
        assert await b.recv(9) == b"" == await b.recv(9)
        with pytest.raises(BrokenPipeError):
            await a.send(b"x")
        assert await b.sendmsg([b"ba", b"ck"]) == 4
        assert (await a.recvmsg(9))[:3] == (b"back", [], 0)
        b.close()
        assert await a.recv(9) == b""
        a.close()

    world(program, tmp_path)


@both
def test_closed_with_unread_bytes(world: Any, tmp_path: Path) -> None:
    """The writer learns by ECONNRESET that the bytes were never read."""

    async def program(pair: Any, _: str) -> None:
        a, b = pair()
        await a.send(b"never read")
        await b.send(b"still there")
        b.close()
        assert await a.recv(99) == b"still there"
        with pytest.raises(ConnectionResetError):
            await a.recv(99)
        assert await a.recv(99) == b""
        with pytest.raises(BrokenPipeError):
            await a.send(b"x")
        a.close()

    world(program, tmp_path)


@both
def test_listener_closed_with_a_connection_not_accepted(world: Any, tmp_path: Path) -> None:
    async def program(_: Any, path: str) -> None:
        server = await listening(path)
        client = unix()
        await client.connect(path)
        server.close()
        with pytest.raises(ConnectionResetError):
            await client.recv(9)
        client.close()

    world(program, tmp_path)


@both
def test_close_wakes_waiting_tasks(world: Any, tmp_path: Path) -> None:
    async def program(pair: Any, _: str) -> None:
        a, b = pair()
        raised = []

        async def read() -> None:
            try:
                await a.recv(1)
            except trio.ClosedResourceError:
                raised.append(True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError):
                await a.recv(1)
            a.close()
        assert raised
        b.close()

    world(program, tmp_path)


@both
def test_a_full_buffer_blocks(world: Any, tmp_path: Path) -> None:
    async def program(pair: Any, _: str) -> None:
        a, b = pair()
        received = 0

        async def read() -> None:
            nonlocal received
            await trio.testing.wait_all_tasks_blocked()
            while received < 2**20:
                received += len(await b.recv(2**16))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.SocketStream(a).send_all(bytes(2**20))
        assert received == 2**20
        a.close()
        b.close()

    world(program, tmp_path)


@both
def test_trio_streams(world: Any, tmp_path: Path) -> None:
    async def program(_: Any, path: str) -> None:
        async with trio.open_nursery() as nursery:
            listener = trio.SocketListener(await listening(path))

            async def echo(stream: trio.SocketStream) -> None:
                async for data in stream:
                    await stream.send_all(data)

            nursery.start_soon(trio.serve_listeners, echo, [listener])
            async with await trio.open_unix_socket(path) as stream:
                await stream.send_all(b"hello")
                assert await stream.receive_some() == b"hello"
            nursery.cancel_scope.cancel()

    world(program, tmp_path)


def test_non_blocking_methods() -> None:
    world = World()
    host = world.host("alice")

    async def main() -> None:
        a, b = pair(host)
        with pytest.raises(BlockingIOError):
            b.read_ready(9)
        taken = a.write_ready(memoryview(bytes(2**20)))
        assert taken == defaults.RECEIVE_BUFFER_BYTES
        with pytest.raises(BlockingIOError):
            a.write_ready(b"x")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(a.wait_writable)
            await trio.testing.wait_all_tasks_blocked()
            assert len(b.read_ready(taken // 2)) == taken // 2
            await trio.testing.wait_all_tasks_blocked()
            assert nursery.child_tasks  # Linux waits for three quarters
            b.read_ready(taken // 2)
        assert a.fileno() < 0
        assert trio.current_time() == 0.0

    world.run(main)


def test_names_belong_to_a_host_and_survive_a_crash() -> None:
    world = World()
    alice, bob = world.host("alice"), world.host("bob")

    class Server:
        async def run(self, host: Any, *, task_status: Any) -> None:
            if "/s" in host.local.names:
                host.local.unlink("/s")
            server = await listening("/s")
            task_status.started(server)
            await trio.sleep_forever()

    async def main() -> None:
        server = await alice.start(Server())
        with pytest.raises(FileNotFoundError):
            await bob.run(unix_connect)
        await alice.run(unix_connect)
        await alice.crash()
        assert server._closed
        with pytest.raises(ConnectionRefusedError):
            await alice.run(unix_connect)
        await alice.restart()
        await alice.run(unix_connect)

    async def unix_connect() -> None:
        with unix() as socket:
            await socket.connect("/s")

    world.run(main)


def test_connect_waits_for_room_in_the_backlog() -> None:
    world = World()
    host = world.host("alice")

    async def main() -> None:
        server = LocalSocket(host)
        await server.bind("/s")
        server.listen(0)
        clients = [LocalSocket(host) for _ in range(3)]
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(client.connect, "/s")
            await trio.testing.wait_all_tasks_blocked()
            assert len(nursery.child_tasks) == 2
            for _ in clients:
                await server.accept()

    world.run(main)
