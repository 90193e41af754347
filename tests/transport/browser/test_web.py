"""The page and its script in a real browser: joins, calls the node, answers the node's calls."""

from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

pytest.importorskip("aiortc", reason="needs `pip install 'shoal[browser]'`")
pytest.importorskip("trio_asyncio", reason="needs `pip install 'shoal[browser]'`")

from shoal.transport.defaults import GRACE_S
from shoal.transport.errors import CallRefused
from shoal.transport.handshake.hello import Admission, invitation_ident
from shoal.transport.link.calls import Call, Reply
from tests.transport.browser.chromium import Chromium, chromium, needs_chromium
from tests.transport.browser.house import HouseNode, open_node
from tests.transport.fleet import until
from tests.transport.swarmkey import SwarmKey

pytestmark = [pytest.mark.trio, pytest.mark.ci, needs_chromium]


@asynccontextmanager
async def page(
    profile: Path, fragment: str = "", admission: Admission | None = None
) -> AsyncIterator[tuple[HouseNode, Chromium]]:
    async with open_node(admission=admission) as node, chromium(profile) as browser:
        await browser.open(f"http://localhost:{node.gate.port}/{fragment}")
        yield node, browser


async def state_of(browser: Chromium) -> str:
    """Return the state that the page shows once it is no longer joining."""
    with trio.fail_after(30):
        while (state := await browser.text("state")).startswith(("loading", "joining")):  # noqa: ASYNC110
            await trio.sleep(0.05)
    return state


async def test_the_page_says_what_it_waits_for_and_for_how_long(tmp_path: Path) -> None:
    async with page(tmp_path) as (_node, browser):
        assert await state_of(browser) == "joined"
        await browser.run("window.fetch = () => new Promise(() => {}); import('/page.js#silent')")
        with trio.fail_after(15):
            while "the node does not answer" not in (said := await browser.text("state")):
                assert said == "joined" or said.startswith("joining, "), said
                await trio.sleep(0.1)
        assert said.startswith(("joining, 4 s: asking the node;", "joining, 5 s: asking the node;"))


async def test_over_plain_http_from_elsewhere_the_page_says_what_to_do(tmp_path: Path) -> None:
    async with page(tmp_path) as (node, browser):
        assert await state_of(browser) == "joined"
        await browser.run(
            "Object.defineProperty(window, 'isSecureContext', {value: false});"
            "import('/page.js#plain')"
        )
        with trio.fail_after(5):
            while not (said := await browser.text("state")).startswith("insecure"):  # noqa: ASYNC110
                await trio.sleep(0.05)
        assert f"http://localhost:{node.gate.port}/" in said and "ssh -L" in said


async def test_a_browser_joins_calls_the_node_and_answers_it(tmp_path: Path) -> None:
    async with page(tmp_path) as (node, browser):
        assert await state_of(browser) == "joined"
        (link,) = node.up
        assert await browser.text("node") == node.peer
        assert await browser.text("me") == link.peer
        assert link.address[0]

        answer = await browser.run(
            "const reply = await shoal.call('echo', {n: 5, list: [1, null, true, 'ü', -3, 1.5]},"
            " new TextEncoder().encode('hello'));"
            "return [reply.header, new TextDecoder().decode(reply.payload)]"
        )
        assert answer == [{"n": 5, "list": [1, None, True, "ü", -3, 1.5]}, "hello"]
        reply = await link.call("echo", {"from": "node"}, b"x" * 1000, timeout=10)
        assert (reply.header, bytes(reply.payload)) == ({"from": "node"}, b"x" * 1000)

        await browser.run("document.getElementById('send').click()")
        with trio.fail_after(10):
            while await browser.text("answer") != "hello":  # noqa: ASYNC110
                await trio.sleep(0.02)


async def test_payloads_of_many_frames_and_many_calls_at_once(tmp_path: Path) -> None:
    async with page(tmp_path) as (node, browser):
        assert await state_of(browser) == "joined"
        (link,) = node.up
        payload = bytes(range(256)) * 2048  # half a megabyte
        reply = await link.call("echo", {}, payload, timeout=30)
        assert bytes(reply.payload) == payload
        same = await browser.run(
            "const sent = new Uint8Array(1 << 19).map((_, at) => at * 7);"
            "const {payload} = await shoal.call('echo', {}, sent);"
            "return payload.length === sent.length && payload.every((v, at) => v === sent[at])"
        )
        assert same
        sums = await browser.run(
            "const calls = Array.from({length: 200}, (_, n) => shoal.call('slow', {n}));"
            "return (await Promise.all(calls)).reduce((sum, reply) => sum + reply.header.n, 0)"
        )
        assert sums == 199 * 100


async def test_codes_cross_both_ways(tmp_path: Path) -> None:
    async with page(tmp_path) as (node, browser):
        assert await state_of(browser) == "joined"
        (link,) = node.up

        def never(call: Call) -> Reply:
            raise CallRefused("no-such-job", "there is none")

        async def long(call: Call) -> Reply:
            await trio.sleep(30)
            return Reply()

        node.node.endpoint.handle("never", never)
        node.node.endpoint.handle("long", long)
        code = "try { await shoal.call(...args) } catch (error) { return error.code }"
        assert await browser.run(code, "nothing") == "unknown-method"
        assert await browser.run(code, "never") == "no-such-job"
        assert (
            await browser.run(
                code.replace("...args", "args[0], {}, undefined, {timeout: 100}"), "long"
            )
            == "timeout"
        )
        await browser.run("shoal.handle('bad', () => { throw new Error('secret') })")
        for method, wanted in (("nothing", "unknown-method"), ("bad", "failed")):
            with pytest.raises(CallRefused) as caught:
                await link.call(method, timeout=10)
            assert caught.value.code == wanted and "secret" not in str(caught.value)


async def test_the_identity_stays_and_a_reload_replaces_the_link(tmp_path: Path) -> None:
    async with page(tmp_path) as (node, browser):
        assert await state_of(browser) == "joined"
        me = await browser.text("me")
        await browser.open(f"http://localhost:{node.gate.port}/?again")
        assert await state_of(browser) == "joined"
        assert await browser.text("me") == me
        await until(lambda: node.lost)
        assert [link.peer for link in node.up] == [me, me]
        await browser.run("shoal.close()")
        await until(lambda: len(node.lost) == 2)
        assert node.lost[-1] == "closed"


class Book:
    """One invitation."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.uses = 0

    def find(self, ident: bytes) -> bytes | None:
        return self.key if ident == invitation_ident(self.key) else None

    def used(self, ident: bytes) -> None:
        self.uses += 1


KEY = bytes(range(200, 232))
INVITATION = bytes(range(190, 206))


@pytest.mark.parametrize(
    ("fragment", "state", "kind"),
    [
        (f"#key={urlsafe_b64encode(KEY).decode()}", "joined", "swarm"),
        (f"#invitation={urlsafe_b64encode(INVITATION).decode()}", "joined", "invitation"),
        (f"#key={urlsafe_b64encode(bytes(32)).decode()}", "wrong-swarm", ""),
        (f"#invitation={urlsafe_b64encode(bytes(16)).decode()}", "not-admitted", ""),
        ("#swarm=open", "wrong-swarm", ""),
        ("#peer=12D3KooWnobody", "wrong-peer", ""),
    ],
)
async def test_admission(tmp_path: Path, fragment: str, state: str, kind: str) -> None:
    book = Book(INVITATION)
    async with page(tmp_path, fragment, SwarmKey(KEY, book)) as (node, browser):
        assert (await state_of(browser)).split(":")[0] == state
        assert [link.identities.admitted.kind for link in node.up] == ([kind] if kind else [])
        assert book.uses == (kind == "invitation")


async def test_a_page_that_is_left_says_so(tmp_path: Path) -> None:
    async with page(tmp_path) as (node, browser):
        assert await state_of(browser) == "joined"
        began = trio.current_time()
        await browser.open("about:blank")
        await until(lambda: node.lost)
        assert node.lost == ["closed"] and trio.current_time() - began < 3


async def test_a_browser_that_is_gone_is_missed(tmp_path: Path) -> None:
    async with page(tmp_path) as (node, browser):
        assert await state_of(browser) == "joined"
        await browser.kill()
        began = trio.current_time()
        await until(lambda: node.lost and not node.gate.status.browsers, timeout=GRACE_S + 10)
        assert node.lost == ["silent"]
        assert trio.current_time() - began < GRACE_S + 5
