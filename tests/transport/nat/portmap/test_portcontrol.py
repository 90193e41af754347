"""NAT-PMP and PCP on the wire: whose datagrams count, and what lost ones cost."""

import struct
from collections.abc import Callable

import pytest
import trio

from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.nat.portmap.igd import Igd
from shoal.netsim.nat.portmap.pcp import PortControlServer as Answering
from shoal.netsim.network.packet import UDP, Packet
from shoal.netsim.world import World
from shoal.transport.nat.portmap import mapper
from shoal.transport.nat.portmap.defaults import HUSH_S
from shoal.transport.nat.portmap.mapping import Granted, MappingRefused, Proto
from shoal.transport.nat.portmap.portcontrol import PcpClient, PmpClient, PortControl
from tests.transport.nat.portmap.home import PORT, PROFILE, Home

GATEWAY = "192.168.1.1"
MAPPED = struct.pack("!BBHIHHI", 0, 130, 0, 7, PORT, 6666, 3600)


def service(home: Home) -> Answering:
    assert isinstance(home.gate.service, Igd)
    return home.gate.service._ports


def answers(home: Home, change: Callable[[bytes], bytes | None]) -> None:
    """The router's answers pass through `change`."""
    ports = service(home)
    real = ports.answer

    def answer(data: bytes, source: tuple[str, int]) -> bytes | None:
        said = real(data, source)
        return None if said is None else change(said)

    ports.answer = answer  # type: ignore[method-assign]


class Clients:
    """Both clients on alice's computer."""

    def __init__(self, home: Home, nursery: trio.Nursery) -> None:
        self.news = 0
        self.home = home
        seam = SimulatedHost(home.alice, PROFILE, nursery)
        own = home.alice.addresses()[0]
        self.control = PortControl(seam, GATEWAY, own, on_news=self._hear)
        self.pmp = PmpClient(self.control, 3600)
        self.pcp = PcpClient(self.control, 3600, lambda proto, port: bytes(12))

    def _hear(self) -> None:
        self.news += 1

    async def open(self, nursery: trio.Nursery) -> None:
        await self.home.alice.run(self.control.open, nursery)

    async def deliver(self, source: tuple[str, int], data: bytes) -> None:
        """A datagram comes to the clients' socket, wherever from."""
        assert self.control._socket is not None
        await trio.lowlevel.checkpoint()
        to = self.home.alice.addresses()[0], self.control._socket.port
        packet = Packet(UDP, source, to, 28 + len(data), data, "mallory", "")
        self.home.alice.receive(packet, self.home.alice.attachments[0])


@pytest.mark.parametrize(("source", "port"), [("192.168.1.99", PORT), (GATEWAY, 6666)])
async def test_a_spoofed_answer_from_another_address_is_not_heard(
    world: World, source: str, port: int
) -> None:
    """Though it comes before the router's. The second is the twin: with the router's own
    address it counts, as NAT-PMP has no other proof."""
    home = Home(world, igd="nat-pmp")
    async with trio.open_nursery() as nursery:
        clients = Clients(home, nursery)
        await clients.open(nursery)
        nursery.start_soon(clients.deliver, (source, 5351), MAPPED)
        found = await home.alice.run(clients.pmp.map, Proto.TCP, PORT, PORT)
        assert isinstance(found, Granted) and found.port == port
        nursery.cancel_scope.cancel()


async def test_an_answer_from_another_port_of_the_router_is_not_heard(world: World) -> None:
    home = Home(world, igd=False)
    async with trio.open_nursery() as nursery:
        clients = Clients(home, nursery)
        await clients.open(nursery)
        for port in (5350, 53, 40000):
            nursery.start_soon(clients.deliver, (GATEWAY, port), MAPPED)
        found = await home.alice.run(clients.pmp.map, Proto.TCP, PORT, PORT)
        assert isinstance(found, MappingRefused) and found.silent
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("flip", "works"), [(24, False), (36, False), (40, False), (None, True)])
async def test_a_pcp_answer_for_another_nonce_protocol_or_port_is_not_ours(
    world: World, flip: int | None, works: bool
) -> None:
    home = Home(world, igd="pcp")

    def change(data: bytes) -> bytes:
        if flip is None or len(data) < 60:
            return data
        return data[:flip] + bytes([data[flip] ^ 23]) + data[flip + 1 :]  # 6 ^ 23 is 17

    answers(home, change)
    async with trio.open_nursery() as nursery:
        clients = Clients(home, nursery)
        await clients.open(nursery)
        found = await home.alice.run(clients.pcp.map, Proto.TCP, PORT, PORT)
        assert isinstance(found, Granted) is works
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("change", [lambda data: b"", lambda data: data * 100, lambda data: None])
async def test_nonsense_and_silence_end_in_a_few_seconds(
    world: World, change: Callable[[bytes], bytes | None]
) -> None:
    home = Home(world, igd="pcp,nat-pmp")
    answers(home, change)
    async with trio.open_nursery() as nursery:
        clients = Clients(home, nursery)
        await clients.open(nursery)
        assert not (await home.alice.run(clients.pmp.probe)).works
        assert not (await home.alice.run(clients.pcp.probe)).works
        assert 7.4 < trio.current_time() < 7.6
        nursery.cancel_scope.cancel()


async def test_three_lost_datagrams_are_survived(world: World) -> None:
    home = Home(world, igd="pcp")
    count = 0

    def lose(data: bytes) -> bytes | None:
        nonlocal count
        count += 1
        return data if count % 4 == 0 else None

    answers(home, lose)
    async with trio.open_nursery() as nursery:
        node = home.start(nursery, protocols=["pcp"])
        assert (await home.until(node)).udp_port == PORT
        await node.stop()


@pytest.mark.parametrize(("hush", "least", "most"), [(HUSH_S, 8, 12), (0.0, 50, 2000)])
async def test_forged_announcements_cost_a_renewal_in_ten_seconds_at_most(
    world: World, monkeypatch: pytest.MonkeyPatch, hush: float, least: int, most: int
) -> None:
    """A host that forges the router's address causes few renewals; the second case is the twin."""
    monkeypatch.setattr(mapper, "HUSH_S", hush)
    monkeypatch.setattr(mapper, "SPREAD_S", 0.0)
    home = Home(world, igd="nat-pmp")
    renewals = 0

    def count(said: bytes) -> bytes:
        nonlocal renewals
        renewals += said[1] == 130
        return said

    answers(home, count)
    data = struct.pack("!BBHI", 0, 128, 0, 0) + bytes((203, 0, 113, 9))
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        mapping = await home.until(node)
        for _ in range(1000):
            packet = Packet(UDP, (GATEWAY, 5351), ("224.0.0.1", 5350), 40, data, "mallory", "")
            home.alice.receive(packet, home.alice.attachments[0])
            await trio.sleep(0.1)
        assert least <= renewals <= most
        assert node.mapping.same_place(mapping), "and what they say is not believed"
        await node.stop()


async def test_announcements_of_other_hosts_are_ignored(world: World) -> None:
    home = Home(world, igd="nat-pmp")
    async with trio.open_nursery() as nursery:
        clients = Clients(home, nursery)
        await clients.open(nursery)
        data = struct.pack("!BBHI", 0, 128, 0, 0) + bytes((203, 0, 113, 9))
        for source, heard in (("192.168.1.99", 0), (GATEWAY, 1)):
            packet = Packet(UDP, (source, 5351), ("224.0.0.1", 5350), 40, data, "mallory", "")
            home.alice.receive(packet, home.alice.attachments[0])
            await trio.sleep(0.01)
            assert clients.news == heard
        nursery.cancel_scope.cancel()


async def test_where_announcements_cannot_be_heard_the_clock_is_watched(world: World) -> None:
    """In this test another program uses the port for announcements exclusively."""
    home = Home(world, igd="pcp")

    async def take() -> trio.socket.SocketType:
        sock = trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM)
        await sock.bind(("0.0.0.0", 5350))
        return sock

    taken = await home.alice.run(take)
    with taken:
        async with trio.open_nursery() as nursery:
            node = home.start(nursery)
            await home.until(node)
            await trio.sleep(20)
            home.gate.reboot(1.0)
            await trio.sleep(70)
            assert home.held == {"tcp": PORT, "udp": PORT}
            await node.stop()
