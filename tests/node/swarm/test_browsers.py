"""Browsers are accepted on the configured address, and become links."""

import pytest
import trio

pytest.importorskip("aiortc", reason="needs `pip install 'shoal[browser]'`")
pytest.importorskip("trio_asyncio", reason="needs `pip install 'shoal[browser]'`")

from shoal.node.errors import NodeError
from shoal.node.swarm.browsers import serve_browsers
from shoal.transport.browser.bridge import open_bridge
from shoal.transport.bytestream import PathKind
from shoal.transport.host.real import RealHost
from tests.transport.browser.test_lane import link_over
from tests.transport.browser.visitor import LOOPBACK, Visitor
from tests.transport.fleet import make_node, running, until

pytestmark = pytest.mark.trio

HOST = RealHost()


async def test_a_browser_becomes_a_link() -> None:
    node, guest = make_node(1), make_node(2)
    async with running(node, guest) as nursery:
        url: str = await nursery.start(serve_browsers, HOST, node.endpoint, (LOOPBACK, 0))
        port = int(url.removeprefix(f"http://{LOOPBACK}:").removesuffix("/"))
        async with open_bridge() as bridge, trio.open_nursery() as visitors:
            with trio.fail_after(20):
                session = await Visitor(HOST, bridge).come(port, visitors)
                assert session is not None
                link = await link_over(session, guest.endpoint)
                await until(lambda: node.up)
                assert node.up[0].path_kind is PathKind.BROWSER
                assert (await link.call("echo", {"n": 1}, timeout=5)).header == {"n": 1}
            visitors.cancel_scope.cancel()


async def test_port_in_use_is_an_error() -> None:
    node = make_node(1)
    async with running(node) as nursery:
        with pytest.raises(NodeError, match="in use") as raised:
            await nursery.start(serve_browsers, HOST, node.endpoint, (LOOPBACK, node.address.port))
        assert raised.value.hint == "`--browsers 127.0.0.1:0` takes a free one"
