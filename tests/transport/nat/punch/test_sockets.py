"""Fresh sockets of an attempt."""

from typing import Any

import pytest
import trio

from shoal.transport.errors import HostError
from shoal.transport.host.datagrams import Datagrams, Place
from shoal.transport.nat.punch.budget import PunchBudget
from shoal.transport.nat.punch.defaults import PunchLimits
from shoal.transport.nat.punch.needs import Tools
from shoal.transport.nat.punch.sockets import Sockets, discard

pytestmark = pytest.mark.trio


class FakeSocket:
    port = 1

    def __init__(self) -> None:
        self.closed = False

    def send(self, data: bytes, to: Place) -> bool:
        return True

    async def receive(self) -> Any:
        await trio.sleep_forever()

    def close(self) -> None:
        self.closed = True


class FakeWorld:
    """A host with at most `most` sockets, and a UDP port that serves them."""

    def __init__(self, most: int = 1000) -> None:
        self.most = most
        self.closing = False
        self.served: list[Datagrams] = []

    async def datagrams(self, address: str, port: int) -> Datagrams:
        await trio.lowlevel.checkpoint()
        if self.most == 0:
            raise HostError("too many open files")
        self.most -= 1
        return FakeSocket()

    def add(self, socket: Datagrams) -> None:
        if self.closing:
            raise trio.ClosedResourceError
        self.served.append(socket)

    def remove(self, socket: Datagrams) -> None:
        self.served.remove(socket)


def make(world: FakeWorld) -> tuple[Sockets, Tools]:
    limits = PunchLimits()
    fake: Any = world
    tools = Tools(fake, fake, lambda: 1, PunchBudget(limits), limits, lambda *byte_stream: None)
    return Sockets(tools, fake), tools


async def test_all_but_the_one_in_use_are_closed() -> None:
    world = FakeWorld()
    sockets, tools = make(world)
    found = await sockets.open(5)
    assert world.served == found and tools.extra == {*found}
    sockets.close(keep=found[2])
    assert world.served == [found[2]] and tools.extra == {found[2]}
    assert [socket.closed for socket in found] == [True, True, False, True, True]  # type: ignore[attr-defined]
    discard(tools, tools.udp, found[2])  # type: ignore[arg-type]
    assert not world.served and not tools.extra


async def test_fewer_sockets_are_opened_if_the_system_refuses() -> None:
    sockets, _ = make(FakeWorld(most=3))
    assert len(await sockets.open(256)) == 3


async def test_no_socket_is_opened_once_the_attempt_has_ended() -> None:
    world = FakeWorld()
    sockets, tools = make(world)
    sockets.close(keep=None)
    assert await sockets.open(3) == [] and not tools.extra and not world.served


async def test_no_socket_is_opened_if_the_port_is_closing() -> None:
    world = FakeWorld()
    world.closing = True
    sockets, tools = make(world)
    assert await sockets.open(3) == [] and not tools.extra
