"""Hostile sharers, and hostile gateways of shared models, in simulated swarms."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.world import World
from shoal.node.errors import ControlError
from shoal.tasks.sharing import defaults
from shoal.tasks.sharing.messages import (
    AnswerEnd,
    ConversationTurn,
    FrameKind,
    Frames,
    ShareAsk,
    ShareBody,
    pack_body,
    pack_frame,
)
from shoal.transport.errors import CallRefused
from shoal.transport.lane.frame import Priority
from shoal.transport.link.calls import Call, Reply
from shoal.transport.link.serving import IncomingStream
from shoal.transport.link.stream import Stream
from shoal.transport.message import pack
from tests.fake_engine import Asked, FakeEngine

from .test_sharing import TEXT, engine, offered, run, share

Behave = Callable[[Stream], Awaitable[None]]
BODY = pack_body(ShareBody(messages=(ConversationTurn("user", "Hello"),)))
END = pack_frame(FrameKind.END, pack(AnswerEnd("stop", 1, 1)))


async def two(world: World) -> tuple[DaemonHandle, DaemonHandle]:
    sharer = await world.host("sharer").start(engine=False)
    gateway = await world.host("gateway").start(bootstrap=[sharer], engine=False)
    for node in (sharer, gateway):
        await node.until(lambda status: status["peers"] == 1)
    return sharer, gateway


def says(kind: FrameKind, payload: bytes) -> Behave:
    async def behave(stream: Stream) -> None:
        await stream.send(pack_frame(kind, payload))
        await trio.sleep(600)

    return behave


async def flood(stream: Stream) -> None:
    while True:
        await stream.send(pack_frame(FrameKind.TEXT, b"x" * 60_000))


async def huge(stream: Stream) -> None:
    await stream.send(b"\x02\xff\xff\xff\xff")
    await trio.sleep(600)


async def silent(_: Stream) -> None:
    await trio.sleep(10_000)


async def never_begins(stream: Stream) -> None:
    while True:
        await stream.send(pack_frame(FrameKind.WAITING))
        await trio.sleep(5)


async def ends_early(stream: Stream) -> None:
    await stream.send(pack_frame(FrameKind.TEXT, b"One"))
    await stream.finish()
    await trio.sleep(600)


async def dies(_: Stream) -> None:
    raise ValueError


FAILED = pack({"code": "unknown-model", "message": "\x1b[31m \u202e" + "x" * 900})
LIES: dict[str, tuple[Behave, str]] = {
    "1 GB of text": (flood, "bad-share"),
    "a huge frame": (huge, "bad-share"),
    "no UTF-8": (says(FrameKind.TEXT, b"\xff\xfe"), "bad-share"),
    "malformed figures": (says(FrameKind.END, b"\x80"), "bad-share"),
    "figures out of range": (says(FrameKind.END, pack({"reason": "stop", "prompt_tokens": -1,
                                                       "tokens": 1})), "bad-share"),
    "a code that would mislead": (says(FrameKind.FAILED, FAILED), "share-failed"),
    "an unknown frame, then nothing": (says(FrameKind(1), b"x"), "share-lost"),
    "silence": (silent, "share-lost"),
    "no beginning": (never_begins, "busy"),
    "an early end": (ends_early, "share-lost"),
    "a crash": (dies, "share-lost"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
async def test_a_sharer_that_lies_fails_the_request_alone(world: World, lie: str) -> None:
    behave, code = LIES[lie]
    sharer, gateway = await two(world)

    async def on_ask(incoming: IncomingStream) -> None:
        await incoming.stream.receive(65536)
        await behave(incoming.stream)

    async with engine(sharer):
        await share(sharer)
        await offered(gateway)
        sharer.node.endpoint.handle_stream("share.ask", on_ask)
        with pytest.raises(ControlError) as caught, trio.fail_after(1000):
            await gateway.ask("run", model="llama", prompt="Hello", max_tokens=100)
        assert caught.value.code == code
        assert caught.value.message.isprintable() and len(caught.value.message) < 4000
        assert gateway.node.compute.sharing.running == 0


async def test_implausible_figures_are_cut(world: World) -> None:
    sharer, gateway = await two(world)

    async def on_ask(incoming: IncomingStream) -> None:
        await incoming.stream.receive(65536)
        await incoming.stream.send(pack_frame(FrameKind.TEXT, b"One"))
        await incoming.stream.send(pack_frame(FrameKind.END, pack(AnswerEnd("stop", 2**24, 2**24))))
        await trio.sleep(60)

    async with engine(sharer):
        await share(sharer)
        await offered(gateway)
        sharer.node.endpoint.handle_stream("share.ask", on_ask)
        answer = await run(gateway, max_tokens=100)
        assert answer["tokens"] == 100 and answer["prompt_tokens"] < 2000


async def test_a_probe_that_lies_or_hangs_delays_shortly(world: World) -> None:
    sharer, gateway = await two(world)
    other = await world.host("other").start(bootstrap=[sharer], engine=False)

    async def hang(_: Call) -> Reply:
        await trio.sleep_forever()
        raise AssertionError

    def nonsense(_: Call) -> Reply:
        return Reply({"ahead": -1, "free": "x", "first_s": float("nan")})

    async with engine(sharer), engine(other):
        for node in (sharer, other):
            await share(node)
        await offered(gateway, 2)
        for probe in (hang, nonsense):
            sharer.node.endpoint.handle("share.probe", probe)
            began = trio.current_time()
            answer = await run(gateway)
            assert answer["shared_by"] == other.peer
            assert trio.current_time() - began < defaults.PROBE_TIME + 2


# Hostile gateways.


class Asking:
    """A gateway that sends what it likes."""

    def __init__(self, gateway: DaemonHandle, sharer: DaemonHandle) -> None:
        link = gateway.node.endpoint.link(sharer.peer)
        assert link is not None
        self.link = link

    async def open(self, body: bytes = BODY, size: int | None = None, **more: Any) -> Stream:
        size = len(body) if size is None else size
        fields = ShareAsk("llama", size, 1000).fields() | more
        stream = await self.link.open_stream("share.ask", fields, priority=Priority.ACTIVATION)
        await stream.send(body)
        return stream

    async def hears(self, stream: Stream) -> list[tuple[int, bytes]]:
        """Return all frames of an answer."""
        frames, found = Frames(), list[tuple[int, bytes]]()
        with trio.fail_after(60):
            try:
                while piece := await stream.receive(65536):
                    found += frames.feed(piece)
                await stream.finish()
            except CallRefused:
                pass
        return found


async def test_malformed_requests_are_refused_and_reach_no_engine(world: World) -> None:
    sharer, gateway = await two(world)
    async with engine(sharer) as fake:
        await share(sharer)
        await offered(gateway)
        asking = Asking(gateway, sharer)
        for body, more in (
            (b"\xc1" * 10, {}), (pack({"prompt": "x"}), {}), (BODY, {"raw": True}),
            (BODY, {"model": 5}), (BODY, {"model": "other"}), (BODY, {"temperature": 1e9}),
            (BODY, {"size": 2**40}), (pack({"messages": [["root", "x"]]}), {}),
        ):  # fmt: skip
            stream = await asking.open(body, **more)
            ((kind, payload),) = await asking.hears(stream)
            assert kind == FrameKind.FAILED and b"code" in payload
            await trio.sleep(1)
        assert not fake.asked
        assert (await run(gateway))["text"] == TEXT


async def test_texts_that_arrive_are_few_and_only_for_shared_models(world: World) -> None:
    sharer, gateway = await two(world)
    async with engine(sharer):
        await share(sharer)
        await offered(gateway)
        asking = Asking(gateway, sharer)
        streams = [await asking.open(BODY[:5], size=2**20) for _ in range(defaults.PER_PEER + 4)]
        await trio.sleep(3)
        assert sum([await _ended(each) for each in streams]) == 4
        for stream in streams:
            await stream.aclose()
        await trio.sleep(3)
        stream = await asking.open(BODY[:5], size=2**20, model="other")
        await trio.sleep(3)
        assert await _ended(stream)  # no text of it is read


async def test_bytes_behind_a_request_do_not_stall_the_node(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharer, gateway = await two(world)
    reads, receive = list[int](), Stream.receive

    async def counted(stream: Stream, limit: int) -> bytes:
        reads.append(limit)
        return await receive(stream, limit)

    async with engine(sharer):
        await share(sharer)
        await offered(gateway)
        monkeypatch.setattr(Stream, "receive", counted)
        stream = await Asking(gateway, sharer).open(b"\xc1" * 2**19, size=1)
        await trio.sleep(defaults.CLOSE_TIME + 5)
        assert len(reads) < 500  # each byte was read alone, without giving way
        await stream.aclose()


async def test_one_gateway_cannot_take_all_places_nor_fill_the_line(world: World) -> None:
    async def endless(asked: Asked) -> None:
        await asked.begin()
        while True:
            await asked.words("x", pause=0.5)

    sharer, gateway = await two(world)
    other = await world.host("other").start(bootstrap=[sharer], engine=False)
    async with engine(sharer, behave=endless) as fake:
        await share(sharer, at_once=3)
        await offered(other)
        asking = Asking(gateway, sharer)
        streams = [await asking.open() for _ in range(12)]
        await trio.sleep(3)
        assert fake.running == 2
        own = (await sharer.ask("shares"))["shares"][0]
        assert (own["running"], own["waiting"]) == (2, defaults.PER_PEER - 2)
        refused = [each for each in streams if each.failed is not None or await _ended(each)]
        assert len(refused) == 12 - defaults.PER_PEER
        fake.behave = _once
        assert (await run(other))["text"] == "one"
        for stream in streams:
            await stream.aclose()
        await trio.sleep(2)
        assert fake.running == 0


async def _once(asked: Asked) -> None:
    await asked.begin()
    await asked.words("one")
    await asked.end(tokens=1)


async def _ended(stream: Stream) -> bool:
    """Return whether a refusal has arrived."""
    with trio.move_on_after(0.1):
        return (await stream.receive(5))[:1] == bytes([FrameKind.FAILED])
    return False


async def test_requests_come_at_a_bounded_rate(world: World) -> None:
    sharer, gateway = await two(world)
    async with engine(sharer) as fake:
        await share(sharer)
        await offered(gateway)
        asking, answered = Asking(gateway, sharer), 0
        began = trio.current_time()
        for _ in range(300):
            found = await asking.hears(await asking.open())
            answered += any(kind == FrameKind.END for kind, _ in found)
        burst, per_s = defaults.ASKS
        assert burst <= answered == len(fake.asked) < 300
        assert answered <= burst + 1 + per_s * (trio.current_time() - began)


async def test_a_body_that_does_not_arrive_and_answers_that_are_not_read_end(
    world: World,
) -> None:
    async def much(asked: Asked) -> None:
        await asked.begin()
        for _ in range(20_000):
            await asked.words("x" * 250)
        await asked.end()

    sharer, gateway = await two(world)
    async with engine(sharer, behave=much) as fake:
        await share(sharer)
        await offered(gateway)
        asking = Asking(gateway, sharer)
        stream = await asking.open(BODY[:5], size=len(BODY))
        await trio.sleep(defaults.BODY_TIME + 5)
        assert (await asking.hears(stream))[0][0] == FrameKind.FAILED and not fake.asked
        stream = await asking.open(max_tokens=30_000)
        began = trio.current_time()
        with trio.fail_after(300):
            await _until_idle(fake)
        assert trio.current_time() - began > defaults.SLOW_TIME
        await stream.aclose()


async def _until_idle(fake: FakeEngine) -> None:
    await trio.sleep(5)
    while fake.running:  # noqa: ASYNC110
        await trio.sleep(1)


async def test_a_gateway_that_ends_its_direction_stops_the_engine(world: World) -> None:
    async def endless(asked: Asked) -> None:
        await asked.begin()
        while True:
            await asked.words("x", pause=0.5)

    sharer, gateway = await two(world)
    async with engine(sharer, behave=endless) as fake:
        await share(sharer)
        await offered(gateway)
        asking = Asking(gateway, sharer)
        for leave in (Stream.finish, Stream.aclose):
            stream = await asking.open()
            await trio.sleep(2)
            assert fake.running == 1
            await leave(stream)
            await trio.sleep(2)
            assert fake.running == 0
