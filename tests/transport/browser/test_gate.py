"""The gate over real loopback sockets: browsers come in, and what is not one does not."""

import pytest
import trio

pytest.importorskip("aiortc", reason="needs `pip install 'shoal[browser]'`")
pytest.importorskip("trio_asyncio", reason="needs `pip install 'shoal[browser]'`")

from tests.transport.browser.visitor import BROWSER, NODE, open_house  # noqa: E402

pytestmark = pytest.mark.trio


async def test_a_browser_comes_in_and_both_ends_know_each_other() -> None:
    async with open_house() as house:
        with trio.fail_after(10):
            session = await house.visitor().come(house.gate.port, house.nursery)
        assert session is not None and session.peer == NODE.peer
        (theirs,) = house.came
        assert theirs.peer == BROWSER.peer
        assert theirs.exporter == session.exporter
        assert theirs.pipe.medium == "webrtc" and theirs.pipe.remote[0] == "127.0.0.1"
        assert house.gate.status.browsers == 1
