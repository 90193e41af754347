"""The gate's HTTP over real loopback sockets: bounds in size, time and number."""

import sys

import pytest
import trio
import trio.testing

pytest.importorskip("aiortc", reason="needs `pip install 'shoal[browser]'`")
pytest.importorskip("trio_asyncio", reason="needs `pip install 'shoal[browser]'`")

from shoal.transport.browser.defaults import BrowserLimits
from shoal.transport.browser.gate import BrowserGate, GateStatus
from shoal.transport.errors import HostError
from shoal.transport.host.real import RealHost
from tests.transport.browser.requests import http
from tests.transport.browser.visitor import (
    LOOPBACK,
    NODE,
    House,
    exchange,
    join_document,
    open_house,
)
from tests.transport.fleet import clock

pytestmark = pytest.mark.trio


@pytest.fixture
def virtual_time() -> trio.testing.MockClock:
    return clock()


DOCUMENT = join_document(bytes(32))


async def join(house: House, body: bytes = DOCUMENT, **headers: str) -> int:
    named = {"Content_Type": "application/json", **headers}
    request = http("POST", "/webrtc", house.name, body, **named)
    status, _ = await exchange(house.host, house.gate.port, request)
    return status


async def test_the_page_and_its_scripts_are_served() -> None:
    async with open_house() as house:
        for target, word in (("/", b"<title>shoal"), ("/shoal.js", b"export async function join")):
            request = http("GET", target, house.name)
            status, body = await exchange(house.host, house.gate.port, request)
            assert status == 200 and word in body


async def test_tcp_and_udp_have_one_number() -> None:
    async with open_house() as house:
        assert house.gate.udp_port == house.gate.port
        assert house.gate.candidates(LOOPBACK) == [(LOOPBACK, house.gate.port)]


async def test_requests_for_unknown_hosts_are_refused() -> None:
    async with open_house(hosts=("shoal.example.org",)) as house:
        port = house.gate.port
        for host, wanted in (
            (f"evil.example:{port}", 421),
            (f"localhost:{port}", 200),
            ("shoal.example.org", 200),
        ):
            assert (await exchange(house.host, port, http("GET", "/", host)))[0] == wanted


async def test_origins() -> None:
    async with open_house(origins=("https://friend.example",)) as house:
        assert await join(house, Origin="https://evil.example") == 403
        assert await join(house, Origin="https://friend.example") == 200
        assert await join(house, Origin=f"http://{house.name}") == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"x" * 1_048_576, 413), (b'{"v":1,"offer":"' + b"v" * 12000 + b'"}', 400), (b"{}", 400)],
)
async def test_documents_that_break_a_bound(body: bytes, status: int) -> None:
    async with open_house() as house:
        assert await join(house, body) == status
        assert house.gate.status == GateStatus(0, 0, 0, 0, 0, 1)


async def test_a_slow_request_ends_in_time(virtual_time: trio.testing.MockClock) -> None:
    async with open_house() as house:
        began = trio.current_time()
        stream = await house.host.connect(LOOPBACK, house.gate.port)
        answer = b""  # and the connection ends, however long it drips on
        async with stream, trio.open_nursery() as nursery:

            async def drip() -> None:
                for letter in b"GET / HTTP/1.1\r\nX: " + b"x" * 40:
                    await stream.send_all(bytes([letter]))
                    await trio.sleep(0.5)

            nursery.start_soon(drip)
            while piece := await stream.receive_some(1000):
                answer += piece
            nursery.cancel_scope.cancel()
        assert answer.startswith(b"HTTP/1.1 408")
        assert trio.current_time() - began < 3 * BrowserLimits().request_s


async def test_one_source_holds_so_many_connections_and_no_more() -> None:
    limits = BrowserLimits(connections_per_subnet=2, request_s=30)
    async with open_house(limits) as house:
        port = house.gate.port
        idle = [await house.host.connect(LOOPBACK, port) for _ in range(2)]
        await trio.sleep(0.05)
        third = await house.host.connect(LOOPBACK, port)
        with trio.fail_after(5):
            assert await third.receive_some(1) == b""
        await third.aclose()
        for stream in idle:
            await stream.aclose()
        await trio.sleep(0.05)
        assert (await exchange(house.host, port, http("GET", "/", house.name)))[0] == 200


async def test_offers_come_at_a_rate() -> None:
    async with open_house(BrowserLimits(joins_per_minute=6)) as house:
        assert [await join(house) for _ in range(4)] == [200, 200, 200, 429]
        assert (await exchange(house.host, house.gate.port, http("GET", "/", house.name)))[0] == 200


async def test_behind_a_web_server_the_browser_s_address_counts() -> None:
    limits = BrowserLimits(joins_per_minute=2)
    async with open_house(limits, proxies=(LOOPBACK,)) as house:
        assert await join(house, X_Forwarded_For="198.51.100.1") == 200
        assert await join(house, X_Forwarded_For="6.6.6.6, 198.51.100.1") == 429
        assert await join(house, X_Forwarded_For="203.0.113.1") == 200
        assert await join(house, X_Forwarded_For="rubbish") == 200  # the web server's own
    async with open_house(
        limits
    ) as house:  # a client that is not a configured proxy is not trusted
        assert await join(house, X_Forwarded_For="198.51.100.1") == 200
        assert await join(house, X_Forwarded_For="203.0.113.1") == 429


async def test_so_many_join_at_once_and_no_more(virtual_time: trio.testing.MockClock) -> None:
    async with open_house(BrowserLimits(joining=2, joins_per_minute=100)) as house:
        assert [await join(house) for _ in range(3)] == [200, 200, 503]
    async with open_house(BrowserLimits(browsers=1, joins_per_minute=100)) as house:
        assert [await join(house) for _ in range(2)] == [200, 503]
        await trio.sleep(BrowserLimits().join_s + 1)
        assert await join(house) == 200


async def test_where_aiortc_is_missing_the_owner_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "shoal.transport.browser.bridge", None)
    gate = BrowserGate(RealHost(), NODE, print)
    with pytest.raises(HostError) as caught:
        await gate.run(LOOPBACK, 0)
    assert caught.value.hint is not None and "shoal[browser]" in caught.value.hint
