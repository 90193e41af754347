"""`stage.probe`: a stage tells how busy it is, and not without end."""

from typing import Any

import pytest
import trio

from shoal.tasks.defaults import PROBES
from shoal.tasks.engine.interface import Parts, Sampling
from shoal.tasks.inference.session import Open, Probe, SpanMessage, pack_tokens
from shoal.transport.errors import CallRefused
from tests.tasks.fake_swarm import CONTEXT, ROOT, VOCABULARY, FakeSwarm, Node

SESSION = b"s" * 16


async def probe(asker: Node, stage: Node) -> dict[str, Any]:
    question = Probe(ROOT, Parts(True, 0, 2, True), "float32").fields()
    return dict((await asker.courier.call(stage.peer, "stage.probe", question, timeout=5)).header)


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
            sampling=Sampling(),
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
        for _number in range(PROBES[0]):
            await probe(client, stage)
        with pytest.raises(CallRefused) as refused:
            await probe(client, stage)
        assert refused.value.code == "busy"
        await trio.sleep(2 / PROBES[1])
        await probe(client, stage)

    with trio.fail_after(60):
        await swarm.run(body)
