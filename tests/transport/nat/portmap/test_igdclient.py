"""UPnP against routers and neighbours that lie, stall and overflow."""

from collections.abc import Callable

import pytest
import trio

from shoal.netsim.nat.portmap import upnp
from shoal.netsim.nat.portmap.igd import Igd
from shoal.netsim.world import World
from shoal.transport.nat.portmap.defaults import BODY_BYTES, HTTP_S
from shoal.transport.nat.portmap.igd import TARGETS
from shoal.transport.nat.portmap.igdclient import IgdClient
from tests.transport.nat.portmap.home import PORT, Home

GATEWAY = "192.168.1.1"


def serve(home: Home, answer: Callable[[upnp.UpnpRequest], bytes]) -> None:
    """The router's web server answers this."""
    assert isinstance(home.gate.service, Igd)
    home.gate.service.control.answer = answer  # type: ignore[assignment, method-assign]


async def outcome(home: Home, seconds: float = 40.0) -> str:
    """What UPnP came to, for the owner."""
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        await trio.sleep(seconds)
        assert node.mapper.mapping is None
        await node.stop()
    return node.mapper.outcome.answers.get("upnp", "")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"SSH-2.0-dropbear\r\n\r\n\r\n", "found, but its answer makes no sense"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 20000, "found, but its answer is too large"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + bytes(BODY_BYTES + 1), "found, but its answer is too large"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", "found, but its answer ended early"),
        (b"HTTP/1.1 200 OK\r\n\r\n<root", "found, but it maps no ports"),
        (b"HTTP/1.1 200 OK\r\n\r\n<!DOCTYPE a><root/>", "found, but it maps no ports"),
        (b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", "found, but it maps no ports"),
    ],
)
async def test_a_description_that_is_none(world: World, answer: bytes, words: str) -> None:
    home = Home(world, igd="upnp")
    serve(home, lambda request: answer)
    assert await outcome(home) == words


@pytest.mark.parametrize("body", [b"<a", b"<a/>", b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'])
async def test_actions_that_are_answered_with_nonsense(world: World, body: bytes) -> None:
    home = Home(world, igd="upnp")
    assert isinstance(home.gate.service, Igd)
    real = home.gate.service.control.answer

    def answer(request: upnp.UpnpRequest) -> bytes:
        return real(request) if request.method == "GET" else b"HTTP/1.1 500 No\r\n\r\n" + body

    serve(home, answer)
    assert await outcome(home) == "refused with code 0"


@pytest.mark.parametrize(
    ("patience", "words"), [(HTTP_S, "found, but it took too long"), (1e9, "")]
)
async def test_a_slow_loris_is_left_after_its_time(
    world: World, monkeypatch: pytest.MonkeyPatch, patience: float, words: str
) -> None:
    """The second case is the twin, which has no timeout."""
    monkeypatch.setattr("shoal.transport.nat.portmap.igdclient.HTTP_S", patience)
    home = Home(world, igd="upnp")
    held: list[float] = []

    async def drip(self: Igd, stream: trio.SocketStream) -> None:
        began = trio.current_time()
        try:
            await stream.send_all(b"HTTP/1.1 200 OK\r\n")
            while True:
                await stream.send_all(b"X: y\r\n")
                await trio.sleep(1)
        except trio.BrokenResourceError:
            held.append(trio.current_time() - began)

    monkeypatch.setattr(Igd, "_serve_connection", drip)
    assert await outcome(home) == words
    await trio.sleep(2)
    assert held and (max(held) <= HTTP_S + 1.1) is bool(words)


async def test_a_web_server_that_is_not_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(world, igd="upnp")
    said = f"HTTP/1.1 200 OK\r\nST: {TARGETS[1]}\r\nLOCATION: http://{GATEWAY}:5999/x\r\n\r\n"
    monkeypatch.setattr("shoal.netsim.nat.portmap.igd.search_answers", lambda *_: [said.encode()])
    assert await outcome(home) == "found, but it cannot be reached"


@pytest.mark.parametrize("location", ["192.168.1.1:5000", "{mallory}:5000", "203.0.113.9:80"])
async def test_search_replies_of_other_devices_are_ignored(world: World, location: str) -> None:
    """Not even where it names the router, and never at an address it chose."""
    home = Home(world, igd=False)
    mallory = world.host("mallory", behind=home.gate)
    asked: list[str] = []

    async def answer_searches() -> None:
        with trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM) as sock:
            await sock.bind(("0.0.0.0", 1900))
            member = bytes((239, 255, 255, 250, 0, 0, 0, 0))
            sock.setsockopt(trio.socket.IPPROTO_IP, trio.socket.IP_ADD_MEMBERSHIP, member)
            while True:
                data, source = await sock.recvfrom(2048)
                assert data.startswith(b"M-SEARCH")
                at = location.format(mallory=mallory.addresses()[0])
                lines = f"HTTP/1.1 200 OK\r\nST: {TARGETS[1]}\r\nLOCATION: http://{at}/x\r\n\r\n"
                await sock.sendto(lines.encode(), source)

    async def serve_web() -> None:
        listeners = await trio.open_tcp_listeners(5000, host="0.0.0.0")
        while True:
            await listeners[0].accept()
            asked.append("mallory")

    async with trio.open_nursery() as nursery:
        mallory.start_soon(nursery, answer_searches)
        mallory.start_soon(nursery, serve_web)
        assert await outcome(home) == "no answer"
        nursery.cancel_scope.cancel()
    assert not asked


async def test_the_twin_that_trusts_other_devices_contacts_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(world, igd=False)
    mallory = world.host("mallory", behind=home.gate)
    own = mallory.addresses()[0]
    asked = trio.Event()

    async def answer_searches() -> None:
        with trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM) as sock:
            await sock.bind(("0.0.0.0", 1900))
            member = bytes((239, 255, 255, 250, 0, 0, 0, 0))
            sock.setsockopt(trio.socket.IPPROTO_IP, trio.socket.IP_ADD_MEMBERSHIP, member)
            while True:
                source = (await sock.recvfrom(2048))[1]
                lines = (
                    f"HTTP/1.1 200 OK\r\nST: {TARGETS[1]}\r\nLOCATION: http://{own}:5000/x\r\n\r\n"
                )
                await sock.sendto(lines.encode(), source)

    async def serve_web() -> None:
        listeners = await trio.open_tcp_listeners(5000, host="0.0.0.0")
        await listeners[0].accept()
        asked.set()

    real = IgdClient.__init__

    def naive(self: IgdClient, host: object, gateway: str, *rest: object) -> None:
        real(self, host, own, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(IgdClient, "__init__", naive)
    async with trio.open_nursery() as nursery:
        mallory.start_soon(nursery, answer_searches)
        mallory.start_soon(nursery, serve_web)
        node = home.start(nursery)
        with trio.fail_after(20):
            await asked.wait()
        await node.stop()
        nursery.cancel_scope.cancel()


async def test_another_computer_s_port_is_not_taken(world: World) -> None:
    """Some routers give a port to the last computer that asks; we check first."""
    home = Home(world, igd="upnp")
    assert isinstance(home.gate.service, Igd)
    control = home.gate.service.control
    real = control._add

    def careless(arguments: upnp.Arguments, client: str) -> dict[str, str]:
        proto = 6 if arguments["NewProtocol"] == "TCP" else 17
        held = home.leases.at_port(proto, int(arguments["NewExternalPort"]))
        if held is not None:
            home.leases.remove(held)
        return real(arguments, client)

    control.actions["AddPortMapping"] = careless
    home.leases.add(6, PORT, ("192.168.1.77", 4001), 86400.0)
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        mapping = await home.until(node)
        assert mapping.tcp_port == mapping.udp_port != PORT
        held = home.leases.at_port(6, PORT)
        assert held is not None and held.inner[0] == "192.168.1.77"
        await node.stop()


async def test_a_router_without_the_newer_action(world: World) -> None:
    home = Home(world, igd="upnp", igd_version=2)
    assert isinstance(home.gate.service, Igd)
    del home.gate.service.control.actions["AddAnyPortMapping"]
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        assert (await home.until(node)).tcp_port == PORT
        await node.stop()


async def test_a_router_that_cannot_list_is_believed(world: World) -> None:
    home = Home(world, igd="upnp")
    assert isinstance(home.gate.service, Igd)
    del home.gate.service.control.actions["GetSpecificPortMappingEntry"]
    async with trio.open_nursery() as nursery:
        node = home.start(nursery)
        mapping = await home.until(node)
        await trio.sleep(200)
        assert node.told == [mapping]
        await node.stop()
