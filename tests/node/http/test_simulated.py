"""The API on a simulated host: a gateway behind a lossy home network, and the layers elsewhere.

Its listener comes from `Host`, so that whole runs of it can be repeated.
"""

import json
from typing import Any

import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.host import Host
from shoal.netsim.trace.trace import Trace
from shoal.netsim.world import World
from shoal.node.defaults import API_PORT
from tests.netsim.daemons.test_daemon import HOME, PROMPT

from .serving import events, read_head, read_response

BODY: dict[str, Any] = {
    "model": "tiny", "messages": [{"role": "user", "content": PROMPT}], "temperature": 0,
    "max_tokens": 16,
}  # fmt: skip


def request(
    daemon: DaemonHandle, body: dict[str, Any], path: str = "/v1/chat/completions"
) -> bytes:
    assert daemon.node.api is not None
    data = json.dumps(body)
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {daemon.node.api.token}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n{data}"
    ).encode()


async def two(world: World) -> tuple[Host, DaemonHandle, DaemonHandle]:
    """Start a public daemon with all layers, and one at a home with the API and no engine."""
    worker = await world.host("public").start()
    await worker.serving()
    desk = world.host("desk", behind=world.gateway("home", link=HOME))
    gateway = await desk.start(bootstrap=[worker], engine=False, api=API_PORT)
    await gateway.until(lambda status: any(each["complete"] for each in status["models"]))
    return desk, worker, gateway


async def answers(world: World) -> list[str]:
    """Return the text of a chat, and that of the same chat streamed."""
    desk, _, gateway = await two(world)

    async def ask() -> list[str]:
        async with await trio.open_tcp_stream("127.0.0.1", API_PORT) as stream:
            await stream.send_all(request(gateway, BODY))
            whole = json.loads((await read_response(stream)).body)
            await stream.send_all(request(gateway, BODY | {"stream": True}))
            streamed = events((await read_response(stream)).body)
        seeds = [part.get("seed") for part in streamed]
        assert seeds[0] is not None and 0 < seeds[0] < 2**53 and set(seeds[1:]) == {None}
        parts = (part["choices"][0]["delta"].get("content", "") for part in streamed)
        return [whole["choices"][0]["message"]["content"], "".join(parts)]

    texts = await desk.run(ask)
    assert texts[0] == (await gateway.generate(PROMPT))["text"]
    return texts


def test_answers_come_from_another_node_and_a_run_repeats() -> None:
    digests = set()
    for _ in range(2):
        trace = Trace()
        world = World(seed=3, trace=trace)
        first, streamed = world.run(answers, world)
        assert first == streamed
        digests.add(trace.digest)
    assert len(digests) == 1


def test_embeddings_are_the_same_alone_and_beside_others() -> None:
    async def body(world: World) -> None:
        desk, _, gateway = await two(world)
        texts = [PROMPT, "word " * 300, PROMPT + "!"]

        async def ask(given: Any) -> list[list[float]]:
            form = {"model": "tiny", "input": given, "encoding_format": "float"}
            async with await trio.open_tcp_stream("127.0.0.1", API_PORT) as stream:
                await stream.send_all(request(gateway, form, "/v1/embeddings"))
                found = json.loads((await read_response(stream)).body)["data"]
            return [each["embedding"] for each in found]

        together = await desk.run(ask, texts)
        assert together == [(await desk.run(ask, text))[0] for text in texts]
        assert len({tuple(vector) for vector in together}) == 3

    world = World(seed=6)
    world.run(body, world)


def test_a_client_that_goes_frees_the_session_of_every_node() -> None:
    async def body(world: World) -> None:
        desk, worker, gateway = await two(world)

        async def leave() -> None:
            long = BODY | {"stream": True, "max_tokens": 900}
            async with await trio.open_tcp_stream("127.0.0.1", API_PORT) as stream:
                await stream.send_all(request(gateway, long))
                await read_head(stream)
                assert gateway.node.gateway.sessions == worker.node.stage.sessions == 1

        await desk.run(leave)
        with trio.fail_after(5):
            while gateway.node.gateway.sessions or worker.node.stage.sessions:  # noqa: ASYNC110
                await trio.sleep(0.1)

    world = World(seed=4)
    world.run(body, world)


def test_other_computers_cannot_connect() -> None:
    async def body(world: World) -> None:
        worker = await world.host("public").start(api=API_PORT)
        other = world.host("other")
        host = worker.address.host

        async def dial(port: int) -> bool:
            try:
                await (await trio.open_tcp_stream(host, port)).aclose()
            except OSError:
                return False
            return True

        assert await other.run(dial, worker.address.port)
        assert not await other.run(dial, API_PORT)

    world = World(seed=5)
    world.run(body, world)
