"""UDP sockets of the operating system: send, take all, close under a reader; dials from a port."""

import pytest
import trio
import trio.testing

from shoal.transport.errors import AddressInUse
from shoal.transport.host.real import RealHost
from tests.transport.fleet import LOOPBACK

pytestmark = pytest.mark.trio
HOST = RealHost()


async def test_all_received_datagrams_are_taken_at_once() -> None:
    one, two = await HOST.datagrams(LOOPBACK, 0), await HOST.datagrams(LOOPBACK, 0)
    for number in range(5):
        assert one.send(bytes([number]), (LOOPBACK, two.port))
    await trio.sleep(0.01)
    found = await two.receive()
    assert found == [(bytes([number]), (LOOPBACK, one.port)) for number in range(5)]
    one.close()
    two.close()


async def test_unsendable_datagrams_raise_nothing() -> None:
    socket = await HOST.datagrams(LOOPBACK, 0)
    assert not socket.send(bytes(70_000), (LOOPBACK, socket.port))
    assert not socket.send(b"x", ("2001:db8::1", 9))
    socket.close()
    assert not socket.send(b"x", (LOOPBACK, 9))


async def test_a_refusal_by_the_other_end_does_not_disturb_the_reader() -> None:
    socket, gone = await HOST.datagrams(LOOPBACK, 0), await HOST.datagrams(LOOPBACK, 0)
    gone.close()
    socket.send(b"x", (LOOPBACK, gone.port))
    await trio.sleep(0.01)
    socket.send(b"me", (LOOPBACK, socket.port))
    with trio.fail_after(5):
        assert [data for data, _ in await socket.receive()] == [b"me"]
    socket.close()


async def test_closing_ends_a_reader_and_further_reads() -> None:
    socket = await HOST.datagrams(LOOPBACK, 0)
    async with trio.open_nursery() as nursery:

        async def read() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await socket.receive()

        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        socket.close()
    with pytest.raises(trio.ClosedResourceError):
        await socket.receive()
    socket.close()


async def test_a_port_is_exclusive_unless_shared() -> None:
    first = await HOST.datagrams(LOOPBACK, 0)
    with pytest.raises(AddressInUse):
        await HOST.datagrams(LOOPBACK, first.port)
    shared = await HOST.datagrams(LOOPBACK, 0, shared=True)
    again = await HOST.datagrams(LOOPBACK, shared.port, shared=True)
    for socket in (first, shared, again):
        socket.close()


async def test_a_dial_leaves_from_the_listen_port() -> None:
    listener, other = await HOST.listen(LOOPBACK, 0), await HOST.listen(LOOPBACK, 0)
    port = listener.socket.getsockname()[1]
    stream = await HOST.connect(LOOPBACK, other.socket.getsockname()[1], source_port=port)
    accepted = await other.accept()
    assert accepted.socket.getpeername()[1] == port
    for each in (stream, accepted, listener, other):
        await each.aclose()
