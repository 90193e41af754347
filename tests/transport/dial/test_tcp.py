"""Dialling an address: names, and the errors of failed dials."""

import errno

import pytest

from shoal.transport.address import Address
from shoal.transport.errors import DialFailed
from shoal.transport.host.real import RealHost
from tests.transport.fleet import LOOPBACK, dial_code, make_node, running, until

pytestmark = pytest.mark.trio


async def test_a_name_is_resolved() -> None:
    a, b = make_node(1), make_node(2)
    async with running(a, b):
        address = Address("localhost", b.endpoint.port, b.endpoint.peer, "dns4")
        assert (await a.endpoint.dial(address, timeout=5)).alive
        assert await dial_code(a, Address("no-such-name.invalid", 1)) == "bad-name"


async def test_failed_dials_have_codes() -> None:
    a, b, c = make_node(1), make_node(2), make_node(3)
    async with running(a, b, c):
        wrong = Address(LOOPBACK, b.endpoint.port, c.endpoint.peer)
        assert await dial_code(a, wrong) == "wrong-peer"
        assert await dial_code(a, Address(LOOPBACK, a.endpoint.port)) == "self"
        b.scope.cancel()
        await until(lambda: b.stopped)
        assert await dial_code(a, b.address) == "refused"
        listener = await RealHost().listen(LOOPBACK, 0)
        silent = Address(LOOPBACK, listener.socket.getsockname()[1])
        assert await dial_code(a, silent, timeout=0.05) == "timeout"
        listener.socket.close()


async def test_a_failed_dial_names_the_address_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(host: RealHost, ip: str, port: int, source_port: int | None = None) -> None:
        raise OSError(errno.EHOSTUNREACH, f"Error connecting to {(ip, port)!r}: No route to host")

    monkeypatch.setattr(RealHost, "connect", connect)
    a = make_node(1)
    async with running(a):
        with pytest.raises(DialFailed) as caught:
            await a.endpoint.dial(Address(LOOPBACK, 4001), timeout=5)
    assert caught.value.message.count(LOOPBACK) == 1
    assert "No route to host" in caught.value.message
