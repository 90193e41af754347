"""UDP as a program observes it, on a real loopback and on a simulated one."""

import errno
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
from trio import socket

from shoal.netsim.world import World

Program = Callable[[], Awaitable[None]]


def real(program: Program) -> None:
    async def main() -> None:
        with trio.fail_after(5):
            await program()

    trio.run(main)


def simulated(program: Program) -> None:
    world = World()
    host = world.host("alice")
    world.run(host.run, program)


both = pytest.mark.parametrize("world", [real, simulated])
LOOPBACK: dict[int, str] = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
families = pytest.mark.parametrize("family", LOOPBACK)


def udp(family: int = socket.AF_INET) -> Any:
    return socket.socket(family, socket.SOCK_DGRAM)


async def bound(address: str = "127.0.0.1", port: int = 0, *options: Any) -> Any:
    found = udp(socket.AF_INET6 if ":" in address else socket.AF_INET)
    for option in options:
        found.setsockopt(*option)
    try:
        await found.bind((address, port))
    except OSError:
        found.close()
        raise
    return found


@contextmanager
def fails(number: int) -> Iterator[None]:
    with pytest.raises(OSError) as caught:
        yield
    assert errno.errorcode[caught.value.errno or 0] == errno.errorcode[number]


REUSE = socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
SHARE = socket.SOL_SOCKET, socket.SO_REUSEPORT, 1
ONLY6 = socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1


@both
@families
def test_names(world: Any, family: int) -> None:
    async def program() -> None:
        loopback = LOOPBACK[family]
        rest = (0, 0) if family == socket.AF_INET6 else ()
        anywhere = "::" if rest else "0.0.0.0"
        with udp(family) as a, await bound(loopback) as b:
            assert (a.family, a.type, a.proto) == (family, socket.SOCK_DGRAM, b.proto)
            assert a.getsockname() == (anywhere, 0, *rest)
            with fails(errno.ENOTCONN):
                a.getpeername()
            port = b.getsockname()[1]
            assert b.getsockname() == (loopback, port, *rest) and port > 1023
            assert await a.sendto(b"hi", (loopback, port)) == 2
            mine = a.getsockname()
            assert mine == (anywhere, mine[1], *rest) and mine[1] > 1023
            assert await b.recvfrom(9) == (b"hi", (loopback, mine[1], *rest))
            await a.connect((loopback, port))
            assert a.getsockname() == (loopback, mine[1], *rest)
            assert a.getpeername() == (loopback, port, *rest)
            with fails(errno.EINVAL):
                await b.bind((loopback, 0))
            with fails(errno.EADDRNOTAVAIL):
                await bound("2001:db8::1" if rest else "203.0.113.1")

    world(program)


@both
@families
def test_receiving(world: Any, family: int) -> None:
    async def program() -> None:
        with await bound(LOOPBACK[family]) as a, await bound(LOOPBACK[family]) as b:
            me, to = a.getsockname(), b.getsockname()
            for _ in range(7):
                await a.sendto(b"0123456789", to)
            assert await b.recvfrom(4, socket.MSG_PEEK) == (b"0123", me)
            assert b.is_readable()
            assert await b.recvfrom(4) == (b"0123", me)
            assert await b.recv(99) == b"0123456789"
            assert await b.recvmsg(4) == (b"0123", [], socket.MSG_TRUNC, me)
            assert await b.recvmsg(99) == (b"0123456789", [], 0, me)
            buffer = bytearray(12)
            assert await b.recv_into(buffer) == 10
            assert await b.recvfrom_into(buffer, 3) == (3, me)
            parts = [bytearray(4), bytearray(4)]
            assert await b.recvmsg_into(parts) == (8, [], socket.MSG_TRUNC, me)
            assert parts == [b"0123", b"4567"]
            assert not b.is_readable()
            await a.sendmsg([b"ab", b"cd"], [], 0, to)
            assert await b.recv(9, socket.MSG_PEEK) == await b.recv(9) == b"abcd"
            await a.sendto(b"", to)
            assert await b.recvfrom(9) == (b"", me)
            await a.sendto(b"with flags", 0, to)
            assert await b.recv(99) == b"with flags"
            with pytest.raises(ValueError, match="negative"):
                await b.recvfrom(-1)
            await b.wait_writable()

    world(program)


@both
def test_sizes(world: Any) -> None:
    async def program() -> None:
        with await bound() as a, await bound() as b:
            assert await a.sendto(bytes(65507), b.getsockname()) == 65507
            assert len(await b.recv(70000)) == 65507
            with fails(errno.EMSGSIZE):
                await a.sendto(bytes(65508), b.getsockname())

    world(program)


@both
@families
def test_a_closed_port_refuses(world: Any, family: int) -> None:
    """A connected socket gets the error once, at its next call; others never do."""

    async def program() -> None:
        with await bound(LOOPBACK[family]) as gone:
            nobody = gone.getsockname()
        with udp(family) as a:
            await a.connect(nobody)
            await a.send(b"x")
            with pytest.raises(ConnectionRefusedError):
                await a.recv(9)
            await a.send(b"x")
            await trio.sleep(0.01)
            assert a.is_readable()
            with pytest.raises(ConnectionRefusedError):
                await a.send(b"x")
            await a.send(b"x")
            await trio.sleep(0.01)
            assert a.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED
            assert a.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        with udp(family) as b:
            for _ in range(2):
                await b.sendto(b"x", nobody)
                await trio.sleep(0.01)
            assert not b.is_readable()

    world(program)


@both
def test_connected_sockets_hear_only_their_peer(world: Any) -> None:
    async def program() -> None:
        with await bound() as a, await bound() as b, await bound() as c:
            await a.connect(b.getsockname())
            await c.sendto(b"stranger", a.getsockname())
            await b.sendto(b"peer", a.getsockname())
            assert await a.recv(9) == b"peer"
            await a.sendto(b"elsewhere", c.getsockname())
            assert await c.recvfrom(9) == (b"elsewhere", a.getsockname())
            with fails(errno.EDESTADDRREQ):
                await b.send(b"x")

    world(program)


@both
@pytest.mark.parametrize(
    ("first", "second", "options1", "options2", "clash"),
    [
        ("127.0.0.1", "127.0.0.1", [], [], True),
        ("127.0.0.1", "0.0.0.0", [], [], True),
        ("0.0.0.0", "127.0.0.1", [], [], True),
        ("127.0.0.1", "127.0.0.2", [], [], False),
        ("127.0.0.1", "127.0.0.1", [REUSE], [], True),
        ("127.0.0.1", "127.0.0.1", [REUSE], [REUSE], False),
        ("127.0.0.1", "127.0.0.1", [SHARE], [SHARE], False),
        ("127.0.0.1", "127.0.0.1", [SHARE], [REUSE], True),
        ("::", "0.0.0.0", [], [], True),
        ("::", "127.0.0.1", [], [], True),
        ("::", "0.0.0.0", [ONLY6], [], False),
        ("::1", "127.0.0.1", [], [], False),
        ("::1", "::", [], [], True),
    ],
)
def test_bind_conflicts(
    world: Any, first: str, second: str, options1: Any, options2: Any, clash: bool
) -> None:
    async def program() -> None:
        with await bound(first, 0, *options1) as a:
            port = a.getsockname()[1]
            if clash:
                with fails(errno.EADDRINUSE):
                    await bound(second, port, *options2)
            else:
                (await bound(second, port, *options2)).close()

    world(program)


@both
def test_both_families_on_one_socket(world: Any) -> None:
    async def program() -> None:
        with await bound("::") as six, await bound("127.0.0.1") as four:
            port = six.getsockname()[1]
            await four.sendto(b"four", ("127.0.0.1", port))
            mapped = ("::ffff:127.0.0.1", four.getsockname()[1], 0, 0)
            assert await six.recvfrom(9) == (b"four", mapped)
            await six.sendto(b"back", mapped)
            assert await four.recvfrom(9) == (b"back", ("127.0.0.1", port))
            await six.sendto(b"by text", ("127.0.0.1", mapped[1]))
            assert await four.recv(9) == b"by text"
            await six.connect(mapped)
            assert six.getsockname() == ("::ffff:127.0.0.1", port, 0, 0)
            assert six.getpeername() == mapped
            with pytest.raises(OSError, match="family"):
                await four.sendto(b"x", ("::1", port))
        with await bound("::", 0, ONLY6) as six, await bound("127.0.0.1") as four:
            await four.connect(("127.0.0.1", six.getsockname()[1]))
            await four.send(b"x")
            with pytest.raises(ConnectionRefusedError):
                await four.recv(9)

    world(program)


@both
def test_the_closest_socket_gets_it(world: Any) -> None:
    async def program() -> None:
        with await bound("0.0.0.0", 0, REUSE) as anywhere:
            to = ("127.0.0.1", anywhere.getsockname()[1])
            with await bound(*to, REUSE) as exact, await bound(*to, REUSE) as connected:
                with await bound() as sender, await bound() as other:
                    await connected.connect(sender.getsockname())
                    await sender.sendto(b"1", to)
                    await other.sendto(b"2", to)
                    await other.sendto(b"3", ("127.0.0.2", to[1]))
                    assert await connected.recv(9) == b"1"
                    assert await exact.recv(9) == b"2"
                    assert await anywhere.recv(9) == b"3"

    world(program)


@both
def test_shared_ports_stay_with_their_senders(world: Any) -> None:
    async def program() -> None:
        with await bound("127.0.0.1", 0, SHARE) as a:
            with await bound(*a.getsockname(), SHARE) as b:
                for _ in range(8):
                    with await bound() as sender:
                        for _ in range(2):
                            await sender.sendto(b"x", a.getsockname())
                        await trio.sleep(0.005)
                        both_times = [s for s in (a, b) if s.is_readable()]
                        assert len(both_times) == 1
                        for _ in range(2):
                            await both_times[0].recv(9)

    world(program)


@both
def test_options(world: Any) -> None:
    async def program() -> None:
        with udp() as a, udp(socket.AF_INET6) as six:
            top = socket.SOL_SOCKET
            assert a.getsockopt(top, socket.SO_TYPE) == socket.SOCK_DGRAM
            assert a.getsockopt(top, socket.SO_ACCEPTCONN) == 0
            assert a.getsockopt(top, socket.SO_REUSEADDR) == 0
            a.setsockopt(top, socket.SO_REUSEADDR, 7)
            assert a.getsockopt(top, socket.SO_REUSEADDR) == 1
            assert a.getsockopt(top, socket.SO_REUSEADDR, 4) == b"\x01\0\0\0"
            a.setsockopt(top, socket.SO_RCVBUF, 10000)
            assert a.getsockopt(top, socket.SO_RCVBUF) == 20000
            a.setsockopt(top, socket.SO_RCVBUF, 1)
            assert a.getsockopt(top, socket.SO_RCVBUF) == 2304
            assert a.getsockopt(socket.IPPROTO_IP, socket.IP_TTL) == 64
            assert six.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 0
            with fails(errno.ENOPROTOOPT):
                a.setsockopt(socket.IPPROTO_IP, 199, 1)
            with pytest.raises(PermissionError):
                await a.sendto(b"x", ("255.255.255.255", 9))

    world(program)


@both
def test_operations_that_datagram_sockets_refuse(world: Any) -> None:
    async def program() -> None:
        a = udp()
        with fails(errno.EOPNOTSUPP):
            a.listen(1)
        with fails(errno.ENOTCONN):
            a.shutdown(socket.SHUT_WR)
        with pytest.raises(OverflowError):
            await a.bind(("127.0.0.1", 65536))
        with pytest.raises(ValueError, match="tuple"):
            await a.sendto(b"x", "127.0.0.1")
        with fails(errno.EINVAL):
            await a.sendto(b"x", ("127.0.0.1", 0))
        a.close()
        a.close()
        with fails(errno.EBADF):
            await a.sendto(b"x", ("127.0.0.1", 9))
        with fails(errno.EBADF):
            await a.recv(1)
        with fails(errno.EBADF):
            a.getsockname()

    world(program)


@both
def test_shutdown_of_a_connected_one(world: Any) -> None:
    async def program() -> None:
        with await bound() as a, await bound() as b:
            await a.connect(b.getsockname())
            a.shutdown(socket.SHUT_WR)
            with pytest.raises(BrokenPipeError):
                await a.send(b"x")

    world(program)


@both
def test_close_and_second_reader(world: Any) -> None:
    async def program() -> None:
        a = await bound()
        closed = []

        async def read() -> None:
            try:
                await a.recv(1)
            except trio.ClosedResourceError:
                closed.append(True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError):
                await a.recv(1)
            a.close()
        assert closed

    world(program)


@both
def test_cancelled_reading_loses_nothing(world: Any) -> None:
    async def program() -> None:
        with await bound() as a, await bound() as b:
            with trio.move_on_after(0.001):
                await b.recv(9)
            await a.sendto(b"x", b.getsockname())
            await trio.sleep(0.01)
            with trio.CancelScope() as scope:
                scope.cancel()
                await b.recv(9)
            assert await b.recv(9) == b"x"

    world(program)
