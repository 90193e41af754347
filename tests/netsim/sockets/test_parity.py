"""TCP as a program observes it: the same tests on real loopback sockets and on simulated ones."""

import errno
import gc
import socket as stdlib
import struct
import sys
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from shoal.netsim.host import CURRENT
from shoal.netsim.trace.trace import Trace
from shoal.netsim.world import World

LOOP4 = "127.0.0.1"
LOOP6 = "::1"
ANY_PORT = 0
Scenario = Callable[[], Awaitable[Any]]


def _real(scenario: Scenario) -> Any:
    if sys.platform != "linux":
        pytest.skip("the simulated sockets behave as Linux's do")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # scenarios leave sockets to this function
        gc.freeze()  # so that the collection only looks at this test's objects
        result = trio.run(scenario)
        gc.collect()
        gc.unfreeze()
    return result


def _simulated(scenario: Scenario) -> Any:
    world = World(seed=1)
    host = world.host("alice")

    async def main() -> Any:
        return await host.run(scenario)

    return world.run(main)


@pytest.fixture(params=[_real, _simulated], ids=["real", "simulated"])
def run(request: pytest.FixtureRequest) -> Callable[[Scenario], Any]:
    """Return a function that runs a scenario on one of the two."""
    runner: Callable[[Scenario], Any] = request.param
    return runner


def tcp(family: int = stdlib.AF_INET) -> Any:
    return trio.socket.socket(family, stdlib.SOCK_STREAM)


async def settle() -> None:
    """Let the loopback do its work."""
    await trio.sleep(0.005)


async def outcome(awaitable: Awaitable[Any]) -> Any:
    """Return the result, or the name of the error."""
    try:
        with trio.fail_after(5):
            return await awaitable
    except OSError as problem:
        return errno.errorcode[problem.errno or 0]
    except (trio.ClosedResourceError, trio.BusyResourceError) as problem:
        return type(problem).__name__


def at_once(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except OSError as problem:
        return errno.errorcode[problem.errno or 0]


async def bound(address: str = LOOP4, port: int = 0, *options: int, v6only: int = -1) -> Any:
    """Return a socket bound with these options of SOL_SOCKET, or the error's name."""
    sock = tcp(stdlib.AF_INET6 if ":" in address else stdlib.AF_INET)
    for option in options:
        sock.setsockopt(stdlib.SOL_SOCKET, option, 1)
    if v6only >= 0:
        sock.setsockopt(stdlib.IPPROTO_IPV6, stdlib.IPV6_V6ONLY, v6only)
    problem = await outcome(sock.bind((address, port)))
    if problem is not None:
        sock.close()
        return problem
    return sock


async def listening(address: str = LOOP4, backlog: int = 8) -> tuple[Any, int]:
    sock = await bound(address)
    sock.listen(backlog)
    return sock, sock.getsockname()[1]


async def pair(address: str = LOOP4) -> tuple[Any, Any]:
    """Return a connection's two ends: the dialled one and the accepted one."""
    listener, port = await listening(address)
    near = tcp(listener.family)
    await near.connect((address, port))
    far, _ = await listener.accept()
    listener.close()
    return near, far


def reset(sock: Any) -> None:
    """Close with a RST."""
    sock.setsockopt(stdlib.SOL_SOCKET, stdlib.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


# Connecting and names.


def test_connect_to_a_closed_port_is_refused(run: Any) -> None:
    async def scenario() -> Any:
        listener, port = await listening()
        listener.close()
        sock = tcp()
        first = await outcome(sock.connect((LOOP4, port)))
        return first, sock.getsockopt(stdlib.SOL_SOCKET, stdlib.SO_ERROR)

    assert run(scenario) == ("ECONNREFUSED", 0)


def test_a_refused_socket_can_dial_again(run: Any) -> None:
    async def scenario() -> Any:
        listener, port = await listening()
        listener.close()
        sock = tcp()
        first = await outcome(sock.connect((LOOP4, port)))
        listener, port = await listening()
        return first, [await outcome(sock.connect((LOOP4, port))) for _ in range(2)]

    assert run(scenario) == ("ECONNREFUSED", ["ECONNABORTED", None])


def test_a_refused_socket_is_at_its_end(run: Any) -> None:
    async def scenario() -> Any:
        listener, port = await listening()
        listener.close()
        sock = tcp()
        first = await outcome(sock.connect((LOOP4, port)))
        return first, await outcome(sock.recv(5)), await outcome(sock.send(b"x"))

    assert run(scenario) == ("ECONNREFUSED", b"", "EPIPE")


@pytest.mark.parametrize("address", [LOOP4, LOOP6])
def test_names_of_both_ends(run: Any, address: str) -> None:
    async def scenario() -> None:
        listener, port = await listening(address)
        near = tcp(listener.family)
        assert near.getsockname()[1] == 0
        await near.connect((address, port))
        far, shown = await listener.accept()
        rest = (0, 0) if address == LOOP6 else ()
        assert listener.getsockname() == (address, port, *rest)
        assert near.getpeername() == (address, port, *rest)
        assert far.getsockname() == (address, port, *rest)
        assert shown == far.getpeername() == near.getsockname()
        assert near.getsockname()[0] == address

    run(scenario)


def test_names_before_and_after(run: Any) -> None:
    async def scenario() -> Any:
        fresh = tcp()
        before = at_once(fresh.getpeername), fresh.getsockname()
        near, far = await pair()
        port = near.getsockname()[1]
        far.close()
        near.close()
        return before, at_once(near.getsockname), port > 0

    assert run(scenario) == (("ENOTCONN", ("0.0.0.0", 0)), "EBADF", True)


def test_getpeername_after_a_reset(run: Any) -> None:
    async def scenario() -> Any:
        near, far = await pair()
        reset(far)
        await settle()
        return at_once(near.getpeername), near.getsockname()[0]

    assert run(scenario) == ("ENOTCONN", LOOP4)


def test_a_connection_exists_before_accept(run: Any) -> None:
    async def scenario() -> Any:
        listener, port = await listening()
        near = tcp()
        await near.connect((LOOP4, port))
        await near.send(b"early")
        await settle()
        far, _ = await listener.accept()
        return await far.recv(10)

    assert run(scenario) == b"early"


def test_connect_twice(run: Any) -> None:
    async def scenario() -> Any:
        near, far = await pair()
        listener, port = await listening()
        again = [await outcome(near.connect((LOOP4, port))) for _ in range(2)]
        return (
            again,
            await outcome(far.connect((LOOP4, port))),
            await outcome(listener.connect((LOOP4, port))),
        )

    # The first repetition only reports that a non-blocking dial has ended.
    assert run(scenario) == ([None, "EISCONN"], "EISCONN", "EISCONN")


def test_a_dial_to_the_wildcard_reaches_this_host(run: Any) -> None:
    async def scenario() -> Any:
        _listener, port = await listening("0.0.0.0")
        near = tcp()
        await near.connect(("0.0.0.0", port))
        return near.getpeername()[0], near.getsockname()[0]

    assert run(scenario) == (LOOP4, LOOP4)


def test_a_socket_that_dials_itself(run: Any) -> None:
    async def scenario() -> Any:
        sock = await bound()
        await sock.connect(sock.getsockname())
        await sock.send(b"echo")
        return await sock.recv(10), sock.getpeername() == sock.getsockname()

    assert run(scenario) == (b"echo", True)


# Dual stack.


def test_a_dual_listener_takes_ipv4(run: Any) -> None:
    async def scenario() -> Any:
        listener = await bound("::", v6only=0)
        listener.listen()
        near = tcp()
        await near.connect((LOOP4, listener.getsockname()[1]))
        far, shown = await listener.accept()
        return shown[0], far.getsockname()[0], far.family == stdlib.AF_INET6, len(shown)

    assert run(scenario) == ("::ffff:127.0.0.1", "::ffff:127.0.0.1", True, 4)


def test_a_v6_only_listener_does_not(run: Any) -> None:
    async def scenario() -> Any:
        listener = await bound("::", v6only=1)
        listener.listen()
        port = listener.getsockname()[1]
        near = tcp()
        first = await outcome(near.connect((LOOP4, port)))
        other = await bound("0.0.0.0", port)
        return first, isinstance(other, str)

    assert run(scenario) == ("ECONNREFUSED", False)


def test_dual_and_ipv4_wildcards_collide(run: Any) -> None:
    async def scenario() -> Any:
        dual = await bound("::", v6only=0)
        return await bound("0.0.0.0", dual.getsockname()[1])

    assert run(scenario) == "EADDRINUSE"


def test_a_mapped_address_dials_ipv4(run: Any) -> None:
    async def scenario() -> Any:
        _listener, port = await listening()
        near = tcp(stdlib.AF_INET6)
        await near.connect(("::ffff:127.0.0.1", port))
        return near.getpeername()[:2] == ("::ffff:127.0.0.1", port)

    assert run(scenario)


# Sockets that may share a port.

ADDRESS, PORT = stdlib.SO_REUSEADDR, stdlib.SO_REUSEPORT
CHOICES = [(), (ADDRESS,), (PORT,), (ADDRESS, PORT)]


@pytest.mark.parametrize("second", CHOICES)
@pytest.mark.parametrize("first", CHOICES)
@pytest.mark.parametrize("listens", [False, True])
def test_bind_beside_another(
    run: Any, first: tuple[int, ...], second: tuple[int, ...], listens: bool
) -> None:
    async def scenario() -> Any:
        one = await bound(LOOP4, 0, *first)
        if listens:
            one.listen()
        other = await bound(LOOP4, one.getsockname()[1], *second)
        return isinstance(other, str)

    common = set(first) & set(second)
    free = PORT in common or (ADDRESS in common and not listens)
    assert run(scenario) == (not free)


@pytest.mark.parametrize(
    ("one", "two", "free"),
    [
        ("0.0.0.0", LOOP4, False),
        (LOOP4, "0.0.0.0", False),
        (LOOP4, "127.0.0.2", True),
        ("0.0.0.0", LOOP6, True),
    ],
)
def test_addresses_that_overlap(run: Any, one: str, two: str, free: bool) -> None:
    async def scenario() -> Any:
        first = await bound(one)
        return isinstance(await bound(two, first.getsockname()[1]), str)

    assert run(scenario) == (not free)


def test_two_listen_after_both_bound(run: Any) -> None:
    async def scenario() -> Any:
        one = await bound(LOOP4, 0, ADDRESS)
        two = await bound(LOOP4, one.getsockname()[1], ADDRESS)
        return at_once(one.listen), at_once(two.listen)

    assert run(scenario) == (None, "EADDRINUSE")


def test_bind_twice(run: Any) -> None:
    async def scenario() -> Any:
        sock = await bound()
        return await outcome(sock.bind((LOOP4, 0)))

    assert run(scenario) == "EINVAL"


def test_bind_to_a_foreign_address(run: Any) -> None:
    async def scenario() -> Any:
        return await bound("203.0.113.9")

    assert run(scenario) == "EADDRNOTAVAIL"


def test_a_port_is_free_after_close(run: Any) -> None:
    async def scenario() -> Any:
        sock, port = await listening()
        sock.close()
        return isinstance(await bound(LOOP4, port), str)

    assert run(scenario) is False


@pytest.mark.parametrize("options", [(), (ADDRESS,)])
@pytest.mark.parametrize("accepted", ["open", "waits"])
def test_the_listeners_port_after_a_connection(
    run: Any, options: tuple[int, ...], accepted: str
) -> None:
    """A connection and its TIME-WAIT hold the port for all sockets without SO_REUSEADDR."""

    async def scenario() -> Any:
        listener = await bound(LOOP4, 0, *options)
        listener.listen()
        port = listener.getsockname()[1]
        near = tcp()
        await near.connect((LOOP4, port))
        far, _ = await listener.accept()
        listener.close()
        if accepted == "waits":
            far.close()
            await settle()
            near.close()
            await settle()
        return isinstance(await bound(LOOP4, port, *options), str)

    assert run(scenario) == (not options)


def test_dials_share_the_listeners_port(run: Any) -> None:
    """Like the daemon: bind without SO_REUSEPORT, listen, set it, dial from there."""

    async def scenario() -> Any:
        listener = await bound(LOOP4, 0, ADDRESS)
        listener.listen()
        listener.setsockopt(stdlib.SOL_SOCKET, PORT, 1)
        port = listener.getsockname()[1]
        others = [await listening() for _ in range(2)]
        far = []
        for other, where in others:
            dial = await bound(LOOP4, port, ADDRESS, PORT)
            await dial.connect((LOOP4, where))
            far.append(await other.accept())
        plain = tcp()
        await plain.connect((LOOP4, port))
        accepted, _ = await listener.accept()
        await plain.send(b"x")
        return [shown[1] == port for _, shown in far], await accepted.recv(5)

    assert run(scenario) == ([True, True], b"x")


def test_the_same_four_tuple_twice(run: Any) -> None:
    async def scenario() -> Any:
        _listener, port = await listening()
        one = await bound(LOOP4, 0, ADDRESS, PORT)
        await one.connect((LOOP4, port))
        two = await bound(LOOP4, one.getsockname()[1], ADDRESS, PORT)
        return await outcome(two.connect((LOOP4, port)))

    assert run(scenario) == "EADDRNOTAVAIL"


def test_simultaneous_open(run: Any) -> None:
    """Two sockets that dial each other: refused while only one has begun, unless SYNs cross."""

    async def scenario() -> Any:
        one, two = await bound(), await bound()
        return await outcome(one.connect(two.getsockname()))

    assert run(scenario) == "ECONNREFUSED"


# Bytes.


def test_big_transfer(run: Any) -> None:
    async def scenario() -> bool:
        near, far = await pair()
        sent = bytes(range(256)) * 12000
        got = bytearray()

        async def write() -> None:
            view = memoryview(sent)
            while view:
                view = view[await near.send(view) :]
            near.shutdown(stdlib.SHUT_WR)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            while data := await far.recv(30000):
                got += data
        return bytes(got) == sent

    assert run(scenario)


def test_buffers_fill_and_drain(run: Any) -> None:
    async def scenario() -> Any:
        near, far = await pair()
        near.setsockopt(stdlib.SOL_SOCKET, stdlib.SO_SNDBUF, 30000)
        filled, blocked = 0, False
        while not blocked:
            with trio.move_on_after(0.05) as scope:
                filled += await near.send(bytes(50000))
            blocked = scope.cancelled_caught
        got = 0
        while got < filled:
            got += len(await far.recv(100000))
        await near.wait_writable()
        return got == filled, filled > 60000, await near.send(b"again")

    assert run(scenario) == (True, True, 5)


def test_nothing_sent_and_nothing_asked_for(run: Any) -> None:
    async def scenario() -> Any:
        near, far = await pair()
        return (
            await near.send(b""),
            await outcome(far.recv(0)),
            await near.send(b"x"),
            (
                await far.recv(0),
                await far.recv(5),
            ),
        )

    assert run(scenario) == (0, b"", 1, (b"", b"x"))


def test_recv_into_and_peek(run: Any) -> None:
    async def scenario() -> Any:
        near, far = await pair()
        await near.send(b"abcdef")
        await far.wait_readable() if hasattr(far, "wait_readable") else await settle()
        peeked = await far.recv(3, stdlib.MSG_PEEK)
        buffer = bytearray(4)
        count = await far.recv_into(buffer)
        return peeked, count, bytes(buffer), await far.recv(9)

    assert run(scenario) == (b"abc", 4, b"abcd", b"ef")


# Half-close.


def test_half_close_both_ways(run: Any) -> None:
    async def scenario() -> Any:
        near, far = await pair()
        near.shutdown(stdlib.SHUT_WR)
        first = await far.recv(5)
        await far.send(b"still")
        second = await near.recv(5)
        far.shutdown(stdlib.SHUT_WR)
        third = await near.recv(5)
        return first, second, third, await near.recv(5)

    assert run(scenario) == (b"", b"still", b"", b"")


def test_send_after_shutdown(run: Any) -> None:
    async def scenario() -> Any:
        near, _far = await pair()
        near.shutdown(stdlib.SHUT_WR)
        return await outcome(near.send(b"x")), near.did_shutdown_SHUT_WR

    assert run(scenario) == ("EPIPE", True)


def test_shutdown_twice(run: Any) -> None:
    async def scenario() -> Any:
        near, _far = await pair()
        return [at_once(near.shutdown, stdlib.SHUT_WR) for _ in range(2)]

    assert run(scenario) == [None, None]


def test_shutdown_when_both_have_finished(run: Any) -> None:
    async def scenario() -> Any:
        near, far = await pair()
        near.shutdown(stdlib.SHUT_WR)
        far.shutdown(stdlib.SHUT_WR)
        await settle()
        return at_once(near.shutdown, stdlib.SHUT_WR), at_once(near.shutdown, stdlib.SHUT_RDWR)

    assert run(scenario) == ("ENOTCONN", "ENOTCONN")


def test_shutdown_of_an_unconnected_socket(run: Any) -> None:
    async def scenario() -> Any:
        return at_once(tcp().shutdown, stdlib.SHUT_WR)

    assert run(scenario) == "ENOTCONN"


def test_shutdown_of_reading(run: Any) -> None:
    async def scenario() -> Any:
        near, far = await pair()
        await near.send(b"before")
        await settle()
        far.shutdown(stdlib.SHUT_RD)
        first = await far.recv(10), await far.recv(10)
        await near.send(b"after")
        await settle()
        return first, await far.recv(10)

    assert run(scenario) == ((b"before", b""), b"after")


# Resets.


def test_a_reset_is_seen_once(run: Any) -> None:
    async def scenario() -> Any:
        near, far = await pair()
        reset(far)
        await settle()
        return [await outcome(near.recv(5)) for _ in range(2)] + [await outcome(near.send(b"x"))]

    assert run(scenario) == ["ECONNRESET", b"", "EPIPE"]


def test_a_reset_meets_the_writer_first(run: Any) -> None:
    async def scenario() -> Any:
        near, far = await pair()
        reset(far)
        await settle()
        return [await outcome(near.send(b"x")) for _ in range(2)] + [await outcome(near.recv(5))]

    assert run(scenario) == ["ECONNRESET", "EPIPE", b""]


def test_so_error_takes_the_error(run: Any) -> None:
    async def scenario() -> Any:
        near, far = await pair()
        reset(far)
        await settle()
        taken = [near.getsockopt(stdlib.SOL_SOCKET, stdlib.SO_ERROR) for _ in range(2)]
        return taken, await outcome(near.recv(5))

    assert run(scenario) == ([errno.ECONNRESET, 0], b"")


def test_bytes_before_a_reset_can_still_be_read(run: Any) -> None:
    async def scenario() -> Any:
        near, far = await pair()
        await far.send(b"last words")
        await settle()
        reset(far)
        await settle()
        return [await outcome(near.recv(50)) for _ in range(3)]

    assert run(scenario) == [b"last words", "ECONNRESET", b""]


def test_close_with_unread_bytes_resets(run: Any) -> None:
    async def scenario() -> Any:
        near, far = await pair()
        await near.send(b"unread")
        await settle()
        far.close()
        await settle()
        return await outcome(near.recv(5)), await outcome(near.send(b"x"))

    assert run(scenario) == ("ECONNRESET", "EPIPE")


def test_close_without_unread_bytes_ends(run: Any) -> None:
    async def scenario() -> Any:
        near, far = await pair()
        far.close()
        await settle()
        return await outcome(near.recv(5)), await outcome(near.recv(5))

    assert run(scenario) == (b"", b"")


def test_send_to_a_peer_that_has_closed(run: Any) -> None:
    async def scenario() -> Any:
        near, far = await pair()
        far.close()
        await settle()
        first = await outcome(near.send(b"x"))
        await settle()
        return first, await outcome(near.send(b"x")), await outcome(near.recv(5))

    assert run(scenario) == (1, "EPIPE", b"")


def test_send_to_a_peer_that_has_closed_and_read_first(run: Any) -> None:
    async def scenario() -> Any:
        near, far = await pair()
        far.close()
        await settle()
        await near.send(b"x")
        await settle()
        return await outcome(near.recv(5)), await outcome(near.send(b"x"))

    assert run(scenario) == (b"", "EPIPE")


def test_a_waiting_reader_hears_of_a_reset(run: Any) -> None:
    async def scenario() -> Any:
        near, far = await pair()
        seen = []

        async def read() -> None:
            seen.append(await outcome(near.recv(5)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await settle()
            reset(far)
        return seen

    assert run(scenario) == ["ECONNRESET"]


# Closing.


def test_close_wakes_waiting_tasks(run: Any) -> None:
    async def scenario() -> Any:
        near, _far = await pair()
        seen = []

        async def read() -> None:
            seen.append(await outcome(near.recv(5)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await settle()
            near.close()
        return seen

    assert run(scenario) == ["ClosedResourceError"]


def test_close_wakes_accepting_tasks(run: Any) -> None:
    async def scenario() -> Any:
        listener, _ = await listening()
        seen = []

        async def accept() -> None:
            seen.append(await outcome(listener.accept()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept)
            await settle()
            listener.close()
        return seen

    assert run(scenario) == ["ClosedResourceError"]


def test_two_readers_at_once(run: Any) -> None:
    async def scenario() -> Any:
        near, far = await pair()
        seen = []

        async def read() -> None:
            seen.append(await outcome(near.recv(5)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await settle()
            nursery.start_soon(read)
            await settle()
            await far.send(b"x")
        return sorted(map(str, seen))

    assert run(scenario) == ["BusyResourceError", "b'x'"]


def test_operations_on_a_closed_socket(run: Any) -> None:
    async def scenario() -> Any:
        near, _far = await pair()
        near.close()
        near.close()
        return (
            await outcome(near.send(b"x")),
            await outcome(near.recv(1)),
            await outcome(near.bind((LOOP4, 0))),
            await outcome(near.connect((LOOP4, 1))),
            await outcome(near.accept()),
            at_once(near.listen),
            at_once(near.shutdown, stdlib.SHUT_WR),
            at_once(near.getpeername),
            at_once(near.setsockopt, stdlib.SOL_SOCKET, ADDRESS, 1),
            near.fileno(),
        )

    assert run(scenario) == ("EBADF",) * 9 + (-1,)


def test_operations_on_a_fresh_socket(run: Any) -> None:
    async def scenario() -> Any:
        return (
            await outcome(tcp().send(b"x")),
            await outcome(tcp().recv(1)),
            await outcome(tcp().accept()),
            at_once(tcp().listen),
        )

    assert run(scenario) == ("EPIPE", "ENOTCONN", "EINVAL", None)


def test_operations_on_a_listener(run: Any) -> None:
    async def scenario() -> Any:
        listener, _ = await listening()
        return (
            await outcome(listener.send(b"x")),
            await outcome(listener.recv(1)),
            at_once(listener.listen, 3),
            listener.getsockopt(stdlib.SOL_SOCKET, stdlib.SO_ACCEPTCONN),
            at_once(listener.shutdown, stdlib.SHUT_WR),
            await outcome(listener.bind((LOOP4, 0))),
        )

    assert run(scenario) == ("EPIPE", "ENOTCONN", None, 1, None, "EINVAL")


def test_listen_on_a_connection(run: Any) -> None:
    async def scenario() -> Any:
        near, _ = await pair()
        return at_once(near.listen), near.getsockopt(stdlib.SOL_SOCKET, stdlib.SO_ACCEPTCONN)

    assert run(scenario) == ("EINVAL", 0)


# The backlog.


def test_a_full_backlog_lets_dials_wait(run: Any) -> None:
    async def scenario() -> Any:
        _listener, port = await listening(LOOP4, 1)
        done = 0
        socks = [tcp() for _ in range(4)]
        for sock in socks:
            with trio.move_on_after(0.1):
                await sock.connect((LOOP4, port))
                done += 1
        return done

    assert run(scenario) == 2


def test_a_dial_gets_in_when_there_is_room(run: Any) -> None:
    async def scenario() -> Any:
        listener, port = await listening(LOOP4, 0)
        first, second = tcp(), tcp()
        await first.connect((LOOP4, port))
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(second.connect, (LOOP4, port))
            await trio.sleep(0.1)
            await listener.accept()
        return round(trio.current_time() - began, 1)

    assert 0.9 < run(scenario) < 1.2  # with the second SYN


def test_closing_a_listener_resets_connections_not_accepted(run: Any) -> None:
    async def scenario() -> Any:
        listener, port = await listening()
        near = tcp()
        await near.connect((LOOP4, port))
        listener.close()
        await settle()
        return await outcome(near.recv(5))

    assert run(scenario) == "ECONNRESET"


def test_a_connection_that_is_reset_before_it_is_accepted(run: Any) -> None:
    async def scenario() -> Any:
        listener, port = await listening()
        near = tcp()
        await near.connect((LOOP4, port))
        reset(near)
        await settle()
        far, _ = await listener.accept()
        return await outcome(far.recv(5))

    assert run(scenario) == "ECONNRESET"


# Cancelling.


def test_a_cancelled_connect_closes_the_socket(run: Any) -> None:
    async def scenario() -> Any:
        _listener, port = await listening(LOOP4, 0)
        first, second = tcp(), tcp()
        await first.connect((LOOP4, port))
        with trio.move_on_after(0.05):
            await second.connect((LOOP4, port))
        return second.fileno()

    assert run(scenario) == -1


def test_a_cancelled_recv_loses_nothing(run: Any) -> None:
    async def scenario() -> Any:
        near, far = await pair()
        with trio.move_on_after(0.01):
            await far.recv(5)
        await near.send(b"kept")
        await settle()
        with trio.CancelScope() as scope:
            scope.cancel()
            await far.recv(5)
        return await far.recv(5)

    assert run(scenario) == b"kept"


# Options.


def test_options_as_linux_keeps_them(run: Any) -> None:
    async def scenario() -> Any:
        sock = tcp()
        sock.setsockopt(stdlib.SOL_SOCKET, stdlib.SO_RCVBUF, 20000)
        sock.setsockopt(stdlib.SOL_SOCKET, stdlib.SO_SNDBUF, 20000)
        sock.setsockopt(stdlib.IPPROTO_TCP, stdlib.TCP_NODELAY, True)
        sock.setsockopt(stdlib.SOL_SOCKET, stdlib.SO_LINGER, struct.pack("ii", 1, 5))
        read = sock.getsockopt
        return (
            read(stdlib.SOL_SOCKET, stdlib.SO_RCVBUF),
            read(stdlib.SOL_SOCKET, stdlib.SO_SNDBUF),
            bool(read(stdlib.IPPROTO_TCP, stdlib.TCP_NODELAY)),
            read(stdlib.SOL_SOCKET, stdlib.SO_TYPE),
            read(stdlib.SOL_SOCKET, stdlib.SO_ERROR),
            struct.unpack("ii", read(stdlib.SOL_SOCKET, stdlib.SO_LINGER, 8)),
        )

    assert run(scenario) == (40000, 40000, True, stdlib.SOCK_STREAM, 0, (1, 5))


def test_accepted_sockets_inherit_options(run: Any) -> None:
    async def scenario() -> Any:
        listener, port = await listening()
        listener.setsockopt(stdlib.IPPROTO_TCP, stdlib.TCP_NODELAY, 1)
        listener.setsockopt(stdlib.SOL_SOCKET, ADDRESS, 1)
        near = tcp()
        await near.connect((LOOP4, port))
        far, _ = await listener.accept()
        return far.getsockopt(stdlib.SOL_SOCKET, ADDRESS), bool(
            far.getsockopt(stdlib.IPPROTO_TCP, stdlib.TCP_NODELAY)
        )

    assert run(scenario) == (1, True)


# The segments on the wire.


def segments_of(sock: Any) -> int:
    """Segments that a connected socket has sent so far."""
    host = CURRENT.get(None)
    if host is None:  # tcpi_segs_out of struct tcp_info
        told = sock.getsockopt(stdlib.IPPROTO_TCP, stdlib.TCP_INFO, 144)
        return int(struct.unpack_from("I", told, 136)[0])
    trace = host.network.trace
    if trace is None:
        trace = host.network.trace = Trace(keep=True)
    assert trace.digest  # every record is written
    return sum(record[4] == sock.getsockname() for record in trace.records)


def test_an_answer_carries_the_acknowledgement_of_its_request(run: Any) -> None:
    async def exchange(near: Any, far: Any) -> tuple[int, int]:
        before = segments_of(near), segments_of(far)
        await near.send(b"ping")
        await far.recv(10)
        await far.send(b"pong")
        await near.recv(10)
        await trio.sleep(0.3)  # a pause, longer than a retransmission timeout
        return segments_of(near) - before[0], segments_of(far) - before[1]

    async def scenario() -> Any:
        near, far = await pair()
        first = await exchange(near, far)
        return first, min([await exchange(near, far) for _ in range(4)])

    # At first every segment is acknowledged at once; later by the reply, if there is one.
    assert run(scenario) == ((2, 2), (2, 1))


def test_the_first_data_carries_the_acknowledgement_of_the_syn(run: Any) -> None:
    async def shake(quick: int) -> int:
        listener, port = await listening()
        near = tcp()
        near.setsockopt(stdlib.IPPROTO_TCP, stdlib.TCP_QUICKACK, quick)
        assert segments_of(near) == 0  # the simulator counts from here on
        await near.connect((LOOP4, port))
        await near.send(bytes(1400))  # as in a TLS handshake
        far, _ = await listener.accept()
        await far.recv(2000)
        await far.send(bytes(1000))
        await near.recv(2000)
        await near.send(bytes(700))
        await far.recv(2000)
        return segments_of(near)

    async def scenario() -> Any:
        return await shake(1), await shake(0)

    # The SYN and the data; and without the option, an acknowledgement before each of them.
    assert run(scenario) == (5, 3)


def test_a_delayed_acknowledgement_leaves_at_once_on_request(run: Any) -> None:
    async def scenario() -> Any:
        near, far = await pair()
        near.setsockopt(stdlib.IPPROTO_TCP, stdlib.TCP_QUICKACK, 0)
        await far.send(b"data")
        await near.recv(10)
        counts = [segments_of(near)]
        near.setsockopt(stdlib.IPPROTO_TCP, stdlib.TCP_QUICKACK, 1)
        await trio.sleep(0.01)
        counts.append(segments_of(near))
        return counts[1] - counts[0]

    assert run(scenario) == 1


# Trio's streams over TCP.


def test_streams(run: Any) -> None:
    async def scenario() -> Any:
        listeners = await trio.open_tcp_listeners(0, host=LOOP4)
        port = listeners[0].socket.getsockname()[1]
        near = await trio.open_tcp_stream(LOOP4, port)
        far = await listeners[0].accept()
        await near.send_all(b"")
        await near.wait_send_all_might_not_block()
        await near.send_all(b"hello")
        await near.send_eof()
        await near.send_eof()
        first = await far.receive_some(), await far.receive_some()
        await far.aclose()
        await near.aclose()
        try:
            await near.send_all(b"")
        except trio.ClosedResourceError:
            return first

    assert run(scenario) == (b"hello", b"")
