"""A home router's services over the simulated wire, as a program uses them."""

import re
import socket as stdlib
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from shoal.netsim.nat.portmap import igd
from shoal.netsim.nat.portmap.igd import Igd
from shoal.netsim.nat.portmap.leases import Leases
from shoal.netsim.network.packet import TCP, UDP
from shoal.netsim.world import World

LAN = "192.168.1.1"
SEARCH = (
    b"M-SEARCH * HTTP/1.1\r\nHOST: 239.255.255.250:1900\r\n"
    b'MAN: "ssdp:discover"\r\nMX: 2\r\n'
    b"ST: urn:schemas-upnp-org:device:InternetGatewayDevice:1\r\n\r\n"
)


class Home:
    """A router with its services, a host inside, and one outside."""

    def __init__(self, **knobs: Any) -> None:
        self.world = World(seed=5)
        self.gate = self.world.gateway("home", "linux-drop", **{"igd": True, **knobs})
        self.alice = self.world.host("alice", behind=self.gate)
        self.bob = self.world.host("bob")

    @property
    def leases(self) -> Leases:
        assert isinstance(self.gate.service, Igd)
        return self.gate.service.leases

    def run(self, function: Callable[[], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            with trio.fail_after(60):
                return await self.alice.run(function)

        return self.world.run(main)

    async def calls(self, port: int) -> bool:
        """Whether an outside host can connect to that outer port, where alice listens."""
        listeners = await trio.open_tcp_listeners(port, host="0.0.0.0")
        accepted = []

        async def serve(stream: trio.SocketStream) -> None:
            accepted.append(stream)

        async def dial() -> None:
            with trio.move_on_after(2):
                await (await trio.open_tcp_stream(self.gate.address, port)).aclose()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, serve, listeners)
            await self.bob.run(dial)
            await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        return bool(accepted)


def datagrams() -> trio.socket.SocketType:
    return trio.socket.socket(stdlib.AF_INET, stdlib.SOCK_DGRAM)


async def http(request: str) -> str:
    async with await trio.open_tcp_stream(LAN, 5000) as stream:
        await stream.send_all(request.encode())
        return b"".join([part async for part in stream]).decode()


async def soap(name: str, **arguments: Any) -> str:
    service = "urn:schemas-upnp-org:service:WANIPConnection:1"
    inner = "".join(f"<{key}>{value}</{key}>" for key, value in arguments.items())
    body = (
        '<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body>'
        f'<u:{name} xmlns:u="{service}">{inner}</u:{name}></s:Body></s:Envelope>'
    )
    return await http(
        f'POST /ctl/IPConn HTTP/1.1\r\nHost: {LAN}\r\nSOAPAction: "{service}#{name}"\r\n'
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    )


async def add(client: str, port: int = 9000) -> str:
    return await soap(
        "AddPortMapping", NewRemoteHost="", NewExternalPort=port, NewProtocol="TCP",
        NewInternalPort=port, NewInternalClient=client, NewEnabled=1,
        NewPortMappingDescription="x", NewLeaseDuration=600,
    )  # fmt: skip


def test_upnp_from_search_to_a_call_from_outside() -> None:
    home = Home()

    async def alice() -> None:
        with datagrams() as sock:
            await sock.sendto(SEARCH, ("239.255.255.250", 1900))
            found = (await sock.recv(2000)).decode()
        assert f"LOCATION: http://{LAN}:5000/rootDesc.xml" in found
        assert 0 < trio.current_time() <= 2.1  # spread over MX
        description = await http(f"GET /rootDesc.xml HTTP/1.1\r\nHost: {LAN}\r\n\r\n")
        assert "<controlURL>/ctl/IPConn</controlURL>" in description
        assert f">{home.gate.address}<" in await soap("GetExternalIPAddress")
        assert not await home.calls(9000)
        assert "HTTP/1.1 200" in await add(home.alice.addresses()[0])
        assert await home.calls(9000)

    home.run(alice)


def test_unicast_search_is_answered() -> None:
    home = Home()

    async def alice() -> None:
        with datagrams() as sock:
            await sock.sendto(SEARCH, (LAN, 1900))
            assert (await sock.recv(2000)).startswith(b"HTTP/1.1 200 OK")

    home.run(alice)


@pytest.mark.parametrize("works", [True, False])
def test_nat_pmp_opens_a_port_or_only_claims_to(works: bool) -> None:
    home = Home(igd="nat-pmp", igd_works=works)

    async def alice() -> None:
        with datagrams() as sock:
            await sock.sendto(struct.pack("!BBHHHI", 0, 2, 0, 9000, 9000, 600), (LAN, 5351))
            answer = struct.unpack("!BBHIHHI", await sock.recv(100))
        assert answer[2] == 0 and answer[5] == 9000
        assert await home.calls(9000) is works

    home.run(alice)


def test_lying_router_tells_another_address() -> None:
    home = Home(igd_external="203.0.113.77")

    async def alice() -> None:
        with datagrams() as sock:
            await sock.sendto(b"\0\0", (LAN, 5351))
            assert (await sock.recv(100))[8:] == bytes((203, 0, 113, 77))
        assert ">203.0.113.77<" in await soap("GetExternalIPAddress")

    home.run(alice)


def test_behind_a_carrier_the_port_stays_closed() -> None:
    world = World()
    cgn = world.gateway("cgn", "cgn", filtering="apd")
    gate = world.gateway("home", "linux-drop", behind=cgn, igd=True)
    alice = world.host("alice", behind=gate)

    async def ask() -> bytes:
        with datagrams() as sock:
            await sock.sendto(b"\0\0", (LAN, 5351))
            return bytes(await sock.recv(100))

    async def main() -> Any:
        return await alice.run(ask)

    answer: bytes = world.run(main)
    assert answer[8:10] == bytes((100, 64))


@pytest.mark.parametrize("protocols", ["upnp", "nat-pmp", "pcp"])
def test_only_the_protocols_named_are_served(protocols: str) -> None:
    home = Home(igd=protocols)

    async def alice() -> tuple[bool, bool]:
        web = True
        try:
            await (await trio.open_tcp_stream(LAN, 5000)).aclose()
        except OSError:
            web = False
        with datagrams() as sock, trio.move_on_after(1):
            await sock.connect((LAN, 5351))
            await sock.send(b"\0\0")
            try:
                return web, await sock.recv(100) != b""
            except ConnectionRefusedError:
                return web, False
        return web, False

    assert home.run(alice) == (protocols == "upnp", protocols != "upnp")


def test_services_are_not_open_to_the_outside() -> None:
    home = Home()

    async def bob() -> None:
        with trio.move_on_after(3):
            await trio.open_tcp_stream(home.gate.address, 5000)
            raise AssertionError("the web server answers outside")

    async def main() -> None:
        await home.bob.run(bob)

    home.world.run(main)


def test_reboot_forgets_leases_and_announces_it() -> None:
    home = Home()

    async def alice() -> list[bytes]:
        assert "HTTP/1.1 200" in await add(home.alice.addresses()[0])
        assert len(home.leases) == 1
        with datagrams() as sock:
            await sock.bind(("0.0.0.0", 5350))
            group = stdlib.inet_aton("224.0.0.1") + stdlib.inet_aton("0.0.0.0")
            sock.setsockopt(stdlib.IPPROTO_IP, stdlib.IP_ADD_MEMBERSHIP, group)
            await trio.sleep(20)
            home.gate.reboot(5.0)
            heard = [await sock.recv(100) for _ in range(2)]
        assert len(home.leases) == 0 and not await home.calls(9000)
        return heard

    pmp, pcp = home.run(alice)
    assert pmp[4:] == struct.pack("!I", 0) + bytes(map(int, home.gate.address.split(".")))
    assert pcp[:2] == b"\x02\x80"


def test_redial_keeps_leases_and_tells_the_new_address() -> None:
    home = Home()

    async def alice() -> None:
        await add(home.alice.addresses()[0])
        home.gate.redial(home.world.public_address())
        assert await home.calls(9000)
        assert f">{home.gate.address}<" in await soap("GetExternalIPAddress")

    home.run(alice)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ("GET / HTTP/1.1\r\n\r\n", 404),
        ("nonsense\r\n\r\n", 400),
        ("POST /ctl/IPConn HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        ("POST /ctl/IPConn HTTP/1.1\r\nContent-Length: 16385\r\n\r\n", 413),
        ("POST /ctl/IPConn HTTP/1.1\r\nContent-Length: 9999999999\r\n\r\n", 413),
        ("GET / HTTP/1.1\r\nX: " + "y" * 20000, 413),
    ],
)
def test_bad_http(request_: str, status: int) -> None:
    home = Home()

    async def alice() -> str:
        return await http(request_)

    assert re.match(rf"HTTP/1.1 {status} ", str(home.run(alice)))


def test_idle_connections_end_and_others_are_served_meanwhile() -> None:
    home = Home()

    async def alice() -> None:
        idle = [await trio.open_tcp_stream(LAN, 5000) for _ in range(igd.CONNECTIONS)]
        await trio.sleep(1)
        # the maximum at a time is reached
        assert await http("GET /rootDesc.xml HTTP/1.1\r\n\r\n") == ""
        await trio.sleep(igd.PATIENCE_S)
        for stream in idle:
            assert await stream.receive_some(10) == b""
        assert "200 OK" in await http("GET /rootDesc.xml HTTP/1.1\r\n\r\n")

    home.run(alice)


def test_unknown_protocol_is_refused() -> None:
    with pytest.raises(ValueError, match="igd is 'magic'"):
        Home(igd="magic")


def test_forwarded_ports_are_of_their_protocol() -> None:
    home = Home()
    home.leases.add(TCP, 9000, (home.alice.addresses()[0], 9000), 60.0)
    assert (UDP, 9000) not in home.gate.forwards


def test_gateway_switched_on_later_serves_too() -> None:
    world = World()

    async def ask() -> Any:
        with datagrams() as sock:
            await sock.sendto(b"\0\0", (LAN, 5351))
            return await sock.recv(100)

    async def main() -> Any:
        late = world.gateway("late", "linux-drop", igd=True)
        host = world.host("host", behind=late)
        await trio.sleep(0.1)
        with trio.fail_after(5):
            return await host.run(ask)

    assert world.run(main)[:2] == b"\0\x80"
