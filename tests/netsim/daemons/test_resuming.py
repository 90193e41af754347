"""A client of the control socket that loses its connection and comes back."""

import json
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.daemons.host import connect_local
from shoal.netsim.world import World
from shoal.node.errors import ControlError
from tests.netsim.daemons.test_daemon import PROMPT, run

RUN = {"op": "run", "model": "tiny", "prompt": PROMPT, "raw": True, "max_tokens": 400}


async def some(daemon: DaemonHandle, request: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Send a request, and drop the connection after `count` lines, which are returned."""
    data = b""
    async with await connect_local(daemon.host, daemon.node.config.folder.control_socket) as stream:
        await stream.send_all(json.dumps(request).encode() + b"\n")
        while data.count(b"\n") < count:
            received = await stream.receive_some(65536)
            assert received, data
            data += received
    return [json.loads(line) for line in data.split(b"\n")[:-1]]


@pytest.mark.parametrize("away", [0.1, 20.0])
def test_an_answer_goes_on_without_its_client(away: float) -> None:
    async def body(world: World) -> None:
        daemon = await world.host("alice").start()
        await daemon.serving()
        whole = await daemon.generate(PROMPT, max_tokens=400, raw=True)
        first, *heard = await some(daemon, RUN | {"resumable": True}, 6)
        assert first["event"] == "resumable"
        await trio.sleep(away)
        rest = await some(daemon, {"op": "resume", "token": first["token"], "since": len(heard)}, 1)
        assert "error" not in rest[-1], (heard, rest)
        while "ok" not in rest[-1]:
            since = len(heard) + len(rest)
            resume = {"op": "resume", "token": first["token"], "since": since}
            rest += await some(daemon, resume, 1)
            assert "error" not in rest[-1], rest[-1]
        pieces = [*heard, *rest[:-1]]
        text = "".join(each["text"] for each in pieces if each["event"] == "text")
        assert text == rest[-1]["ok"]["text"] == whole["text"]
        assert daemon.node.gateway.sessions == 0
        with pytest.raises(ControlError, match="no such answer"):
            await daemon.ask("resume", token="00" * 32)

    run(body)


def test_an_answer_ends_when_it_is_forgotten_or_not_resumable() -> None:
    async def body(world: World) -> None:
        daemon = await world.host("alice").start()
        await daemon.serving()
        long = RUN | {"max_tokens": 1000}
        await some(daemon, long, 3)
        await trio.sleep(0.1)
        assert daemon.node.gateway.sessions == 0
        first, *_ = await some(daemon, long | {"resumable": True}, 3)
        await trio.sleep(0.1)
        assert daemon.node.gateway.sessions == 1
        assert await daemon.ask("forget", token=first["token"]) == {"forgotten": True}
        await trio.sleep(0.1)
        assert daemon.node.gateway.sessions == 0
        assert await daemon.ask("forget", token=first["token"]) == {"forgotten": False}

    run(body)


async def all_of(daemon: DaemonHandle, request: dict[str, Any]) -> list[dict[str, Any]]:
    """Send a request and return all lines of the answer."""
    lines: list[dict[str, Any]] = []
    async with await connect_local(daemon.host, daemon.node.config.folder.control_socket) as stream:
        await stream.send_all(json.dumps(request).encode() + b"\n")
        data = b""
        while not lines or "event" in lines[-1]:
            received = await stream.receive_some(65536)
            assert received, "the connection ended"
            data += received
            lines = [json.loads(line) for line in data.split(b"\n")[:-1]]
    return lines


def test_the_seed_of_a_lost_answer_gives_the_same_text_at_another_gateway() -> None:
    async def body(world: World) -> None:
        first, other = await world.host("alice").start(), world.host("bob")
        await first.serving()
        second = await other.start(bootstrap=[first], engine=False)
        await second.until(lambda status: status["peers"] == 1)
        request = RUN | {"temperature": 1.0, "resumable": True}
        kept, routed, _ = await some(first, request, 3)
        assert kept["seed"] == routed["seed"] > 0
        *_, last = await all_of(first, {"op": "resume", "token": kept["token"]})
        texts = [last["ok"]["text"]]
        for seed in (kept["seed"], kept["seed"] + 1):
            *_, last = await all_of(second, RUN | {"temperature": 1.0, "seed": seed})
            texts.append(last["ok"]["text"])
        assert texts[0] == texts[1] != texts[2]

    run(body)
