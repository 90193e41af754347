"""A lane over a data channel, an endpoint of the node's at each end: calls, posts, streams."""

from typing import Any, cast

import pytest
import trio

pytest.importorskip("aiortc", reason="needs `pip install 'shoal[browser]'`")
pytest.importorskip("trio_asyncio", reason="needs `pip install 'shoal[browser]'`")

from shoal.transport.browser.bridge import open_bridge
from shoal.transport.browser.clear import BrowserSession, Clear
from shoal.transport.bytestream import PathKind
from shoal.transport.errors import DialFailed
from shoal.transport.handshake.hello import Admission
from shoal.transport.handshake.secured import SecureStream
from shoal.transport.handshake.tls import Tls
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity
from shoal.transport.link.link import Link
from shoal.transport.link.serving import IncomingStream
from tests.transport.browser.house import open_node
from tests.transport.browser.visitor import BROWSER, Visitor
from tests.transport.fleet import make_node, running, until
from tests.transport.swarmkey import SwarmKey

pytestmark = pytest.mark.trio

KEY = b"k" * 32


async def link_over(session: BrowserSession, endpoint: Any) -> Link:
    """The dialler's side of a hello over a proven channel."""
    path = SecureStream(session.byte_stream, cast(Tls, Clear(session)))
    link: Link = await endpoint._introducing.join(
        path, PathKind.BROWSER, 0, "a node", endpoint._nursery
    )
    return link


@pytest.mark.parametrize("admission", [None, SwarmKey(KEY)])
async def test_calls_and_streams_go_both_ways(admission: Admission | None) -> None:
    visitor_node = make_node(2, admission=admission)
    assert visitor_node.endpoint.peer == BROWSER.peer
    async with open_node(admission=admission) as node, running(visitor_node):
        async with open_bridge() as bridge, trio.open_nursery() as nursery:
            visitor = Visitor(RealHost(), bridge)
            with trio.fail_after(20):
                session = await visitor.come(node.gate.port, nursery)
                assert session is not None
                link = await link_over(session, visitor_node.endpoint)
                await until(lambda: node.up)
                (theirs,) = node.up
                assert theirs.peer == BROWSER.peer

                payload = bytes(range(256)) * 1024
                reply = await link.call("echo", {"n": 1}, payload, timeout=10)
                assert (reply.header, bytes(reply.payload)) == ({"n": 1}, payload)
                reply = await theirs.call("echo", {"n": 2}, b"back", timeout=10)
                assert bytes(reply.payload) == b"back"
                await stream_through(node.node.endpoint, link)
                link.close()
                await until(lambda: node.lost)
            assert node.lost == ["closed"]
            nursery.cancel_scope.cancel()


async def stream_through(endpoint: Any, link: Link) -> None:
    """A stream that comes back in capital letters."""

    async def upper(incoming: IncomingStream) -> None:
        data = b""
        while piece := await incoming.stream.receive(100):
            data += piece
        await incoming.stream.send(data.upper())
        await incoming.stream.finish()

    endpoint.handle_stream("upper", upper)
    stream = await link.open_stream("upper")
    await stream.send(b"hello")
    await stream.finish()
    assert await stream.receive(100) == b"HELLO"


async def test_a_key_that_is_not_the_node_s_is_refused() -> None:
    visitor_node = make_node(3, admission=SwarmKey(b"x" * 32))
    identity = Identity.from_seed(bytes([3]) * 32)
    async with open_node(admission=SwarmKey(KEY)) as node, running(visitor_node):
        async with open_bridge() as bridge, trio.open_nursery() as nursery:
            with trio.fail_after(20):
                visitor = Visitor(RealHost(), bridge, identity)
                session = await visitor.come(node.gate.port, nursery)
                assert session is not None
                with pytest.raises(DialFailed) as caught:
                    await link_over(session, visitor_node.endpoint)
            assert caught.value.code == "wrong-swarm" and not node.up
            await until(lambda: not node.gate.status.browsers)
            nursery.cancel_scope.cancel()
