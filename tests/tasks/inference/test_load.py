"""`stage.probe`: a stage tells how busy it is, and not without end."""

from typing import Any

import msgpack
import pytest
import trio

from shoal.tasks.defaults import PROBES, PROMPT_IDLE, SESSIONS_PER_GATEWAY
from shoal.tasks.engine.interface import Parts
from shoal.tasks.inference.messages import Open, Probe, SessionSampling, SpanMessage, pack_tokens
from shoal.tasks.inference.names import PrefixNames
from shoal.tasks.routing.affinity import Prefix
from shoal.tasks.routing.defaults import PROBE_NAMES
from shoal.transport.errors import CallRefused
from shoal.transport.identity import PeerId
from tests.tasks.fake_swarm import CONTEXT, ROOT, VOCABULARY, FakeSwarm, Node

SESSION = b"s" * 16


WHOLE = Parts(True, 0, 2, True)
NAMES = PrefixNames(b"secret").of("root", [7] * 1024)


async def probe(asker: Node, stage: Node, names: bytes = b"", **more: Any) -> dict[str, Any]:
    question = Probe(ROOT, WHOLE, "float32", **more).header()
    call = asker.courier.call(stage.peer, "stage.probe", question, names, timeout=5)
    return dict((await call).header)


def order(stage: Node, session: bytes, tokens: int, soon: int) -> dict[str, object]:
    return Open(
        session=session,
        epoch=1,
        root=ROOT,
        parts=WHOLE,
        dtype="float32",
        stages=(stage.peer,),
        index=0,
        tokens=tokens,
        soon=soon,
        steps=tokens,
        stop_ids=(VOCABULARY - 1,),
        sampling=SessionSampling(),
    ).header()


@pytest.mark.trio
async def test_a_probe_tells_the_present_load(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm = FakeSwarm((2,))
    (stage,), client = swarm.stages, swarm.client
    stage.serve(Parts(True, 0, 2, True), kv_tokens=4 * CONTEXT)

    async def body(_: FakeSwarm) -> None:
        none = {"sessions": 0, "running": 0, "waiting": 0}
        assert await probe(client, stage) == none | {"room": 4 * CONTEXT}
        order = Open(
            session=SESSION,
            epoch=1,
            root=ROOT,
            parts=Parts(True, 0, 2, True),
            dtype="float32",
            stages=(stage.peer,),
            index=0,
            tokens=20,
            soon=20,
            steps=5,
            stop_ids=(VOCABULARY - 1,),
            sampling=SessionSampling(),
        )
        await client.courier.call(stage.peer, "session.open", order.header(), timeout=5)
        idle = await probe(client, stage)
        assert (idle["sessions"], idle["running"], idle["waiting"]) == (1, 0, 0)
        assert idle["room"] < 4 * CONTEXT - 20  # whole blocks, and a part of the memory
        monkeypatch.setattr(stage.engine, "submit", lambda span: None)  # it computes for long
        span = SpanMessage(SESSION, 1, 0, 0, 3, True, 0.0)
        client.courier.post(stage.peer, "session.span", span.header(), pack_tokens((1, 2, 3)))
        await trio.sleep(0.1)
        busy = await probe(client, stage)
        assert (busy["running"], busy["waiting"]) == (1, 1)
        await client.courier.call(stage.peer, "session.close", {"session": SESSION}, timeout=5)
        assert await probe(client, stage) == none | {"room": 4 * CONTEXT}

    with trio.fail_after(60):
        await swarm.run(body)


@pytest.mark.trio
async def test_a_peer_may_not_probe_without_end(autojump_clock: object) -> None:
    swarm = FakeSwarm((2,))
    (stage,), client = swarm.stages, swarm.client

    async def body(_: FakeSwarm) -> None:
        for _number in range(int(PROBES[0])):
            await probe(client, stage)
        with pytest.raises(CallRefused) as refused:
            await probe(client, stage)
        assert refused.value.code == "busy"
        await trio.sleep(2 / PROBES[1])
        await probe(client, stage)

    with trio.fail_after(60):
        await swarm.run(body)


@pytest.mark.trio
async def test_a_gateway_with_many_requests_is_not_refused(autojump_clock: object) -> None:
    """It opens as many sessions as a stage takes of it, each for half a second, and asks first."""
    swarm = FakeSwarm((2,))
    (stage,), client = swarm.stages, swarm.client

    async def body(_: FakeSwarm) -> None:
        for _round in range(60):
            for _session in range(SESSIONS_PER_GATEWAY):
                await probe(client, stage)
            await trio.sleep(0.5)

    with trio.fail_after(60):
        await swarm.run(body)


@pytest.mark.trio
async def test_a_prompt_that_is_being_computed_delays_the_next_one(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm = FakeSwarm((2,))
    (stage,), client = swarm.stages, swarm.client
    served = stage.stage.table.shards[0]
    served.times.note_prompt(100, 0.1)  # a millisecond for each row

    async def body(_: FakeSwarm) -> None:
        told = await probe(client, stage, prompt=500)
        assert "wait" not in told and told["row"] == pytest.approx(0.001)
        opening = order(stage, SESSION, 1064, 1064)
        await client.courier.call(stage.peer, "session.open", opening, timeout=5)
        monkeypatch.setattr(stage.engine, "submit", lambda span: None)
        span = SpanMessage(SESSION, 1, 0, 0, 256, False, 0.0)
        client.courier.post(stage.peer, "session.span", span.header(), pack_tokens((1,) * 256))
        await trio.sleep(0.1)
        assert (await probe(client, stage, prompt=500))["wait"] == pytest.approx(0.5)
        await client.courier.call(stage.peer, "session.close", {"session": SESSION}, timeout=5)

    with trio.fail_after(60):
        await swarm.run(body)


@pytest.mark.trio
async def test_sessions_that_send_nothing_do_not_make_a_stage_look_busy(
    autojump_clock: object,
) -> None:
    swarm = FakeSwarm((2,))
    (stage,), client = swarm.stages, swarm.client
    stage.stage.table.shards[0].times.note_prompt(100, 0.1)

    async def body(_: FakeSwarm) -> None:
        opening = order(stage, SESSION, 1900, 1900)
        await client.courier.call(stage.peer, "session.open", opening, timeout=5)
        await trio.sleep(PROMPT_IDLE + 0.1)
        assert "wait" not in await probe(client, stage, prompt=500)
        await client.courier.call(stage.peer, "session.close", {"session": SESSION}, timeout=5)

    with trio.fail_after(60):
        await swarm.run(body)


@pytest.mark.trio
async def test_a_stage_says_what_it_has_cached_for_the_asker_alone(autojump_clock: object) -> None:
    swarm = FakeSwarm((2,))
    (stage,), client = swarm.stages, swarm.client
    other = Node(swarm, 90, None)
    swarm.nodes.append(other)
    prefix = Prefix.of(NAMES)

    async def body(_: FakeSwarm) -> None:
        asked = {"prompt": 1100, "every": prefix.every}
        assert "cached" not in await probe(client, stage, prefix.joined, **asked)
        opening = order(stage, SESSION, 1100, 1100)
        await client.courier.call(stage.peer, "session.open", opening, NAMES, timeout=5)
        assert (await probe(client, stage, prefix.joined, **asked))["cached"] == 1024
        assert "cached" not in await probe(other, stage, prefix.joined, **asked)
        await client.courier.call(stage.peer, "session.close", {"session": SESSION}, timeout=5)

    with trio.fail_after(60):
        await swarm.run(body)


@pytest.mark.trio
@pytest.mark.parametrize("names", [bytes(15), bytes(16 * (PROBE_NAMES + 1))])
async def test_too_many_or_malformed_names_are_refused(
    autojump_clock: object, names: bytes
) -> None:
    swarm = FakeSwarm((2,))
    (stage,), client = swarm.stages, swarm.client

    async def body(_: FakeSwarm) -> None:
        with pytest.raises(CallRefused) as refused:
            await probe(client, stage, names)
        assert refused.value.code == "bad-message"

    with trio.fail_after(60):
        await swarm.run(body)


@pytest.mark.trio
async def test_a_full_stage_says_when_it_has_room_again(autojump_clock: object) -> None:
    """One session has all the memory, and about 40 tokens to go, at 50 ms each."""
    swarm = FakeSwarm((2,))
    (stage,), client = swarm.stages, swarm.client
    stage.serve(WHOLE, kv_tokens=1024)
    served = stage.stage.table.shards[0]
    served.times.note_token(1, 0.05)
    served.answer.tokens = 40.0

    async def body(_: FakeSwarm) -> None:
        assert "back" not in await probe(client, stage, prompt=100, soon=164)
        opening = order(stage, SESSION, 1000, 1000)
        await client.courier.call(stage.peer, "session.open", opening, timeout=5)
        session = next(iter(stage.stage.table.open.values()))
        session.computed = session.reached = 940
        back = (await probe(client, stage, prompt=100, soon=164))["back"]
        assert back == pytest.approx(40 * 0.05, rel=0.01)
        later = (await probe(client, stage, prompt=100, soon=164, ahead=9))["back"]
        assert later > back
        await client.courier.call(stage.peer, "session.close", {"session": SESSION}, timeout=5)

    with trio.fail_after(60):
        await swarm.run(body)


@pytest.mark.trio
async def test_requests_of_many_gateways_that_wait_do_not_make_it_seem_endless(
    autojump_clock: object,
) -> None:
    """They have more memory reserved than the stage has, and each leaves after a while."""
    swarm = FakeSwarm((2,))
    (stage,), client = swarm.stages, swarm.client
    stage.serve(WHOLE, kv_tokens=1024)
    served = stage.stage.table.shards[0]
    served.times.note_token(1, 0.05)
    served.answer.tokens = 40.0

    async def body(_: FakeSwarm) -> None:
        await client.courier.call(
            stage.peer, "session.open", order(stage, SESSION, 1000, 1000), timeout=5
        )
        session = next(iter(stage.stage.table.open.values()))
        session.computed = session.reached = 940
        alone = (await probe(client, stage, prompt=100, soon=164))["back"]
        waiting = Open.parse(order(stage, b"w" * 16, 400, 400))
        for number in range(5):
            served.queue.wait(PeerId(f"other{number}"), waiting, 25, trio.current_time())
        back = (await probe(client, stage, prompt=100, soon=164))["back"]
        assert 1.5 * alone < back < 4 * alone, "125 blocks are reserved, and there are 64"

    with trio.fail_after(60):
        await swarm.run(body)


async def refused(asker: Node, stage: Node, header: dict[str, object]) -> tuple[str, str]:
    """Open a session. Return the code and the message of the refusal, empty ones if it opens."""
    try:
        await asker.courier.call(stage.peer, "session.open", header, timeout=5)
    except CallRefused as error:
        return error.code, error.message
    return "", ""


@pytest.mark.trio
async def test_a_session_without_room_is_told_when_to_come_back(autojump_clock: object) -> None:
    swarm = FakeSwarm((2,))
    (stage,), client = swarm.stages, swarm.client
    other = Node(swarm, 90, None)
    stage.serve(WHOLE, kv_tokens=1024)
    served = stage.stage.table.shards[0]
    served.times.note_token(1, 0.5)
    served.answer.tokens = 40.0

    async def body(_: FakeSwarm) -> None:
        assert await refused(client, stage, order(stage, SESSION, 1000, 1000)) == ("", "")
        session = next(iter(stage.stage.table.open.values()))
        session.computed = session.reached = 940
        code, message = await refused(other, stage, order(stage, b"o" * 16, 164, 164))
        assert code == "no-memory" and message.endswith("; again in 20 s")
        wrong = order(stage, SESSION, 1000, 1000)
        assert (await refused(client, stage, wrong))[0] == "session-open"
        assert "again" not in (await refused(client, stage, wrong))[1]
        await client.courier.call(stage.peer, "session.close", {"session": SESSION}, timeout=5)
        assert await refused(other, stage, order(stage, b"p" * 16, 164, 164)) == ("", "")

    with trio.fail_after(60):
        await swarm.run(body)


@pytest.mark.trio
async def test_a_prompt_that_would_wait_for_too_long_is_refused(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt of another gateway is computed beside it, and a row takes 0.2 s."""
    swarm = FakeSwarm((2,))
    (stage,), client = swarm.stages, swarm.client
    other = Node(swarm, 90, None)
    stage.stage.table.shards[0].times.note_prompt(100, 20.0)

    async def body(_: FakeSwarm) -> None:
        opening = order(stage, SESSION, 1064, 1064)
        assert await refused(client, stage, opening) == ("", "")
        monkeypatch.setattr(stage.engine, "submit", lambda span: None)
        span = SpanMessage(SESSION, 1, 0, 0, 256, False, 0.0)
        client.courier.post(stage.peer, "session.span", span.header(), pack_tokens((1,) * 256))
        await trio.sleep(0.1)
        code, message = await refused(other, stage, order(stage, b"l" * 16, 400, 400))
        assert code == "overloaded" and message.endswith("; again in 20 s")
        assert await refused(other, stage, order(stage, b"s" * 16, 200, 200)) == ("", "")
        later = order(stage, b"g" * 16, 400, 400) | {"exact": True}
        assert await refused(other, stage, later) == ("", ""), "it continues an answer"
        assert await refused(stage, stage, order(stage, b"o" * 16, 400, 400)) == ("", "")

    with trio.fail_after(60):
        await swarm.run(body)


def test_a_probe_can_be_sent() -> None:
    """In real lanes headers are packed; those of the tests above are not."""
    sent = msgpack.unpackb(msgpack.packb(Probe(ROOT, WHOLE, "float32", 9, 8, 256, 3).header()))
    assert Probe.parse(sent) == Probe(ROOT, WHOLE, "float32", 9, 8, 256, 3)
