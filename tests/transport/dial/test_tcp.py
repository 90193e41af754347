"""Dialling an address: names, and the errors of failed dials."""

import pytest

from shoal.transport.address import Address
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
