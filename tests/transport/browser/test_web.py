"""The page and its script in a real browser: joins, calls the node, answers the node's calls."""

from pathlib import Path

import pytest
import trio

pytest.importorskip("aiortc", reason="needs `pip install 'shoal[browser]'`")
pytest.importorskip("trio_asyncio", reason="needs `pip install 'shoal[browser]'`")

from tests.transport.browser.chromium import chromium, needs_chromium  # noqa: E402
from tests.transport.browser.house import open_node  # noqa: E402
from tests.transport.fleet import until  # noqa: E402

pytestmark = [pytest.mark.trio, pytest.mark.long, needs_chromium]


async def test_a_browser_joins_calls_the_node_and_answers_it(tmp_path: Path) -> None:
    async with open_node() as node, chromium(tmp_path) as browser:
        await browser.open(f"http://localhost:{node.gate.port}/")
        await until(lambda: node.up or node.gate.status.refused)
        (link,) = node.up
        me = await browser.text("me")
        assert (await browser.text("state"), await browser.text("node")) == ("joined", node.peer)
        assert link.peer == me
        assert link.address[0]

        answer = await browser.run(
            "const reply = await shoal.call('echo', {n: 5, list: [1, null, true, 'ü', -3, 1.5]},"
            " new TextEncoder().encode('hello'));"
            "return [reply.header, new TextDecoder().decode(reply.payload)]"
        )
        assert answer == [{"n": 5, "list": [1, None, True, "ü", -3, 1.5]}, "hello"]
        reply = await link.call("echo", {"from": "node"}, b"x" * 1000, timeout=10)
        assert (reply.header, bytes(reply.payload)) == ({"from": "node"}, b"x" * 1000)
