"""A node's ports: TCP and UDP with one number, even if other programs use some."""

import pytest
import trio

from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.errors import AddressInUse, HostError
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.host.datagrams import Datagrams
from shoal.transport.host.real import RealHost
from shoal.transport.host.seam import MulticastGroup
from shoal.transport.identity import Identity
from shoal.transport.strategies.dialer import Dialer, Strategies

pytestmark = pytest.mark.trio


class Late(RealHost):
    """A host on which the first requested TCP port is in use."""

    asked = 0

    async def listen(self, address: str, port: int) -> trio.SocketListener:
        self.asked += 1
        if self.asked == 1:
            raise AddressInUse(f"port {port} on {address} is in use")
        return await super().listen(address, port)


class WithoutIpv6(RealHost):
    """A host with IPv4 only."""

    async def datagrams(
        self, address: str, port: int, *, group: MulticastGroup | None = None, shared: bool = False
    ) -> Datagrams:
        if ":" in address:
            raise HostError(f"cannot listen on {address} port {port}: no such address")
        return await super().datagrams(address, port, group=group, shared=shared)


class Taken(RealHost):
    """A host on which all UDP ports are in use."""

    async def datagrams(
        self, address: str, port: int, *, group: MulticastGroup | None = None, shared: bool = False
    ) -> Datagrams:
        raise AddressInUse(f"port {port} on {address} is in use")


@pytest.mark.parametrize(("host", "udp"), [(WithoutIpv6(), True), (Taken(), False)])
async def test_a_node_starts_even_without_udp(host: RealHost, udp: bool) -> None:
    endpoint = Endpoint(host, Identity.from_seed(b"l" * 32), admission=OpenSwarm())
    dialer = Dialer(host, endpoint, strategies=Strategies(lan=False, mapping=False))
    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(
            lambda task_status: dialer.run("0.0.0.0", 0, task_status=task_status)
        )
        assert port and bool(dialer.ports.without_udp) is not udp
        assert endpoint.udp_port == (port if udp else 0)
        nursery.cancel_scope.cancel()


async def test_udp_follows_if_tcp_has_to_take_another_port() -> None:
    host = Late()
    endpoint = Endpoint(host, Identity.from_seed(b"l" * 32), admission=OpenSwarm())
    dialer = Dialer(host, endpoint)
    async with trio.open_nursery() as nursery:
        port: int = await nursery.start(
            lambda task_status: dialer.run("127.0.0.1", 0, task_status=task_status)
        )
        await trio.sleep(0.02)
        assert dialer.udp is not None and (dialer.udp.port, host.asked) == (port, 2)
        assert dialer.udp.send(b"\x40", ("127.0.0.1", port)), "its sockets are closed"
        nursery.cancel_scope.cancel()
