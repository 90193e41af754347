"""A node behind a gateway, and observers on the internet, called directly without links."""

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.host import Host as Computer
from shoal.netsim.world import World
from shoal.transport.host.datagrams import Datagrams, Place
from shoal.transport.identity import PeerId
from shoal.transport.nat.reach import stun
from shoal.transport.nat.reach.natkind import NatRequest, Observer
from shoal.transport.nat.reach.probing import classify
from shoal.transport.nat.reach.reachability import UdpKind
from shoal.transport.nat.reach.stun import MessageClass, StunMessage
from shoal.transport.nat.reach.volunteer import Responder

PORTS = (4001, 4002)


class Volunteer:
    """An observer on the internet, honest unless a subclass says otherwise."""

    def __init__(self, computer: Computer, ports: tuple[int, ...] = PORTS) -> None:
        self.computer = computer
        self.ip = computer.addresses()[0]
        self.ports = ports
        self.sockets: list[Datagrams] = []
        self.host: SimulatedHost
        self.responder = Responder()

    @property
    def observer(self) -> Observer:
        return Observer(PeerId(self.computer.name), self.ip, self.ports)

    async def open(self, nursery: trio.Nursery) -> None:
        self.host = SimulatedHost(self.computer, PROFILES["desktop"], nursery)
        for port in self.ports:
            socket = await self.computer.run(self.host.datagrams, "0.0.0.0", port)
            self.sockets.append(socket)
            self.computer.start_soon(nursery, self._serve, socket)

    async def _serve(self, socket: Datagrams) -> None:
        while True:
            for data, source in await socket.receive():
                message = stun.decode(data)
                if message is not None:
                    answer = self.answer(data, message, source)
                    if answer is not None:
                        socket.send(answer, source)

    def answer(self, data: bytes, message: StunMessage, source: Place) -> bytes | None:
        return self.responder.answer(data, message, source, self.host.now())

    async def send_back(self, request: NatRequest) -> bool:
        """Dial back from a new port."""
        socket = await self.computer.run(self.host.datagrams, "0.0.0.0", 0)
        for _ in range(3):
            message = StunMessage(MessageClass.INDICATION, bytes(12), nonce=request.nonce)
            socket.send(stun.encode(message), request.place)
            await trio.sleep(0.1)
        socket.close()
        return True


class Liar(Volunteer):
    """Observer that reports a false port for every peer, and never dials back."""

    def answer(self, data: bytes, message: StunMessage, source: Place) -> bytes | None:
        false = source[0], 1024 + (source[1] * 7) % 60000
        return stun.encode(StunMessage(MessageClass.SUCCESS, message.transaction, mapped=false))

    async def send_back(self, request: NatRequest) -> bool:
        return True


Make = Callable[[Computer], Volunteer]


async def kind_of(
    world: World,
    computer: Computer,
    volunteers: list[Volunteer],
    *,
    meanwhile: Callable[[], Awaitable[Any]] | None = None,
) -> UdpKind:
    """Classify the NAT in front of `computer`."""
    async with trio.open_nursery() as nursery:
        for volunteer in volunteers:
            await volunteer.open(nursery)
        by_peer = {volunteer.observer.peer: volunteer for volunteer in volunteers}

        async def ask_back(request: NatRequest) -> bool:
            await trio.sleep(0.05)  # as a call over a link would take
            sent = await by_peer[request.peer].send_back(request)
            await trio.sleep(0.05)
            return sent

        host = SimulatedHost(computer, PROFILES["desktop"], nursery)
        if meanwhile is not None:
            nursery.start_soon(meanwhile)
        found: UdpKind = await computer.run(
            classify,
            host,
            [volunteer.observer for volunteer in volunteers],
            computer.addresses(),
            ask_back,
        )
        nursery.cancel_scope.cancel()
    return found


def volunteers(world: World, count: int, make: Make = Volunteer) -> list[Volunteer]:
    return [make(world.host(f"observer{number}")) for number in range(count)]
