"""Dial-backs and observation over real sockets on loopback."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from shoal.transport.host.datagrams import Datagrams, Place
from shoal.transport.host.real import RealHost
from shoal.transport.nat.reach import asking, defaults, stun
from shoal.transport.nat.reach.dialback import Awaited
from shoal.transport.nat.reach.dialler import Dialler
from shoal.transport.nat.reach.looking import Looker
from shoal.transport.nat.reach.stun import MessageClass
from shoal.transport.nat.reach.volunteer import ReachVolunteer
from tests.transport.fleet import LOOPBACK, clock, make_node, running

pytestmark = pytest.mark.trio


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return clock()


class Port:
    """One UDP socket, as `StunPort`."""

    def __init__(self, socket: Datagrams) -> None:
        self.socket = socket
        self.port = socket.port

    def send(self, data: bytes, to: Place, socket: Datagrams | None = None) -> bool:
        return self.socket.send(data, to)


@asynccontextmanager
async def two() -> AsyncIterator[tuple[object, Awaited, Port, Looker, ReachVolunteer]]:
    """An asker's link to a volunteer, with a record of received dial-backs."""
    host = RealHost()
    asker, server = make_node(1), make_node(2)
    awaited = Awaited()
    port = Port(await host.datagrams(LOOPBACK, 0))
    looker = Looker(host, port)
    served = Port(await host.datagrams(LOOPBACK, 0))
    async with running(asker, server) as nursery:
        volunteer = ReachVolunteer(host, server.endpoint, served, Dialler(host, lambda _: LOOPBACK))
        await nursery.start(volunteer.run)

        async def hear() -> None:
            while True:
                for data, source in await port.socket.receive():
                    message = stun.decode(data)
                    assert message is not None
                    if message.kind is MessageClass.SUCCESS:
                        looker.on_answer(message, source)
                    elif message.nonce is not None:
                        awaited.on_nonce(message.nonce, source)

        async def serve() -> None:
            while True:
                for data, source in await served.socket.receive():
                    message = stun.decode(data)
                    assert message is not None
                    answer = volunteer.answer(data, message, source)
                    if answer is not None:
                        served.send(answer, source)

        nursery.start_soon(hear)
        nursery.start_soon(serve)
        link = await asker.endpoint.dial(server.address, timeout=5)
        yield link, awaited, port, looker, volunteer
        nursery.cancel_scope.cancel()
    port.socket.close()
    served.socket.close()


async def test_dial_back_by_udp(autojump_clock: trio.testing.MockClock) -> None:
    async with two() as (link, awaited, port, _, _):
        place = LOOPBACK, port.port
        assert await asking.dialled_back(RealHost(), link, awaited, "udp", place) is True  # type: ignore[arg-type]


async def test_dial_back_by_tcp(autojump_clock: trio.testing.MockClock) -> None:
    listener = await RealHost().listen(LOOPBACK, 0)
    place = LOOPBACK, listener.socket.getsockname()[1]
    async with two() as (link, awaited, _, _, _), trio.open_nursery() as nursery:

        async def accept() -> None:
            stream = await listener.accept()
            first = b""
            while len(first) < 17:
                first += await stream.receive_some(100)
            assert first[:1] == defaults.DIALBACK_BYTE
            assert awaited.on_connection(first, stream.socket.getpeername())
            assert await stream.receive_some(100) == b""  # and nothing else
            stream.socket.close()

        nursery.start_soon(accept)
        assert await asking.dialled_back(RealHost(), link, awaited, "tcp", place) is True  # type: ignore[arg-type]
    listener.socket.close()


async def test_a_dial_back_without_a_listener_is_reported_as_sent(
    autojump_clock: trio.testing.MockClock,
) -> None:
    listener = await RealHost().listen(LOOPBACK, 0)
    place = LOOPBACK, listener.socket.getsockname()[1]
    listener.socket.close()
    async with two() as (link, awaited, _, _, _):
        for transport in "tcp", "udp":
            found = await asking.dialled_back(RealHost(), link, awaited, transport, place)  # type: ignore[arg-type]
            assert found is False


async def test_a_nonsense_reply_does_no_harm(autojump_clock: trio.testing.MockClock) -> None:
    """A dialled victim may send anything, but nothing is read."""
    listener = await RealHost().listen(LOOPBACK, 0)
    place = LOOPBACK, listener.socket.getsockname()[1]
    async with two() as (link, awaited, _, _, _), trio.open_nursery() as nursery:

        async def flood() -> None:
            stream = await listener.accept()
            with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
                while True:
                    await stream.send_all(b"\xff" * 65536)
            stream.socket.close()

        nursery.start_soon(flood)
        assert await asking.dialled_back(RealHost(), link, awaited, "tcp", place) is False  # type: ignore[arg-type]
    listener.socket.close()


async def test_look(autojump_clock: trio.testing.MockClock) -> None:
    async with two() as (_, _, port, looker, volunteer):
        assert volunteer._udp is not None
        there = LOOPBACK, volunteer._udp.port
        second = volunteer._second
        assert second is not None
        seen = await looker.look([there, (LOOPBACK, second.port)])
        assert seen == [(LOOPBACK, port.port)] * 2
