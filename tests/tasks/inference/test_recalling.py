"""The head learns the tokens on which penalties depend: at first, after a crash, and no others."""

from dataclasses import replace
from typing import Any

import pytest
import trio

from shoal.tasks.engine.interface import Rules
from shoal.tasks.errors import SessionError
from shoal.tasks.inference.generation import GenerateRequest
from shoal.tasks.inference.messages import Open, SessionSampling, pack_tokens
from shoal.tasks.inference.serving.recalling import Recall
from shoal.transport.errors import CallRefused
from tests.tasks.fake_swarm import ROOT, VOCABULARY, FakeSwarm

FREQUENT = Rules(frequency=0.5)
REPEATED = Rules(repetition=1.2)
PROMPT = "hello"
IDS = [ord(letter) for letter in PROMPT]
SESSION = b"s" * 16


async def answer(swarm: FakeSwarm, rules: Rules, **more: Any) -> list[int]:
    async def emit(_event: object) -> None:
        await trio.lowlevel.checkpoint()

    request = GenerateRequest("m", PROMPT, raw=True, max_tokens=8, rules=rules)
    summary = await swarm.client.gateway.generate(replace(request, **more), emit)
    return list(summary.token_ids)


@pytest.mark.trio
@pytest.mark.parametrize("splits", [(6,), (2, 4, 6)])
async def test_only_the_head_learns_what_the_rules_need(
    autojump_clock: object, splits: tuple[int, ...]
) -> None:
    swarm = FakeSwarm(splits)

    async def body(_: FakeSwarm) -> None:
        head = swarm.stages[-1].engine
        expected = swarm.expected(IDS, 8)
        assert await answer(swarm, Rules(((3, 1.0),))) == expected
        assert head.recalled == [], "a bias needs no tokens"
        assert await answer(swarm, FREQUENT) == expected
        assert head.recalled == [(5, (), ())], "nothing of the prompt"
        assert await answer(swarm, REPEATED) == expected
        assert head.recalled[1:] == [(5, tuple(sorted(set(IDS))), ())], "without order and number"
        assert [terms.rules for terms in head.terms] == [Rules(((3, 1.0),)), FREQUENT, REPEATED]
        for stage in swarm.stages[:-1]:
            assert stage.engine.recalled == []
            assert {terms.rules for terms in stage.engine.terms} == {Rules()}
        swarm.assert_free()

    with trio.fail_after(60):
        await swarm.run(body)


@pytest.mark.trio
@pytest.mark.parametrize("splits", [(6,), (2, 4, 6)])
@pytest.mark.parametrize("lost", [0, -1])
async def test_after_a_crash_the_head_learns_the_answer_so_far(
    autojump_clock: object, splits: tuple[int, ...], lost: int
) -> None:
    swarm = FakeSwarm(splits)
    swarm.wire.delay = 0.01

    async def body(_: FakeSwarm) -> None:
        stage, head = swarm.stages[lost], swarm.stages[-1].engine
        expected = swarm.expected(IDS, 8)
        made = 0

        async def crash() -> None:
            nonlocal made
            while not any(len(state.rows) >= 8 for state in head.states.values()):  # noqa: ASYNC110
                await trio.sleep(0.001)
            stage.engine.lose_all()
            await trio.sleep(1)
            stage.engine.crashed = False

        async with trio.open_nursery() as nursery:
            nursery.start_soon(crash)
            assert await answer(swarm, REPEATED) == expected
        assert len(head.recalled) > 1
        for position, prompt, said in head.recalled:
            made = position - len(IDS)
            assert (prompt, list(said)) == (tuple(sorted(set(IDS))), expected[:made])
        assert made > 0
        await trio.sleep(1)
        swarm.assert_free()

    with trio.fail_after(600):
        await swarm.run(body)


@pytest.mark.trio
async def test_a_head_that_lost_the_session_meanwhile_is_asked_again(
    autojump_clock: object,
) -> None:
    swarm = FakeSwarm((2, 6))

    async def body(_: FakeSwarm) -> None:
        head = swarm.stages[-1].engine
        for code in ("unknown-session", "worker-crashed"):
            head.refuse_recall = code
            assert await answer(swarm, FREQUENT) == swarm.expected(IDS, 8)
        head.refuse_recall = "bad-span"
        with pytest.raises(SessionError, match="as the test wants"):
            await answer(swarm, FREQUENT)
        await trio.sleep(1)
        swarm.assert_free()

    with trio.fail_after(600):
        await swarm.run(body)


@pytest.mark.trio
async def test_a_bias_for_an_unknown_token_is_refused_before_a_session_opens(
    autojump_clock: object,
) -> None:
    swarm = FakeSwarm((6,))

    async def body(_: FakeSwarm) -> None:
        with pytest.raises(SessionError, match=f"token {VOCABULARY}, but .* {VOCABULARY - 1}$"):
            await answer(swarm, Rules(((3, 1.0), (VOCABULARY, -1.0))))
        assert swarm.stages[0].engine.terms == []

    with trio.fail_after(60):
        await swarm.run(body)


@pytest.mark.trio
async def test_tokens_that_wait_for_the_engine_take_no_more_memory_than_their_message(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm = FakeSwarm((6,))
    sizes = []

    async def held(_: object, __: int, prompt: Any, said: Any) -> None:
        await trio.lowlevel.checkpoint()
        sizes.append(memoryview(prompt).nbytes + memoryview(said).nbytes)

    async def body(_: FakeSwarm) -> None:
        monkeypatch.setattr(swarm.stages[0].engine, "recall", held)
        assert await answer(swarm, REPEATED) == swarm.expected(IDS, 8)
        assert sizes == [4 * len(set(IDS))]

    with trio.fail_after(60):
        await swarm.run(body)


@pytest.mark.trio
async def test_what_a_hostile_gateway_may_not_tell(autojump_clock: object) -> None:
    swarm = FakeSwarm((6,))
    stage, client = swarm.stages[0], swarm.client
    assert stage.parts is not None
    parts = stage.parts

    async def tell(message: Recall, payload: bytes = b"") -> str:
        try:
            header = message.header()
            await client.courier.call(stage.peer, "session.recall", header, payload, timeout=5)
        except CallRefused as refused:
            return refused.code
        return "ok"

    async def opened(session: bytes, rules: Rules) -> None:
        sampling = SessionSampling(bias=rules.bias, frequency=rules.frequency)
        message = Open(
            session=session, epoch=1, root=ROOT, parts=parts, dtype="float32",
            stages=(stage.peer,), index=0, tokens=50, soon=50, steps=5, stop_ids=(),
            sampling=sampling,
        )  # fmt: skip
        await client.courier.call(stage.peer, "session.open", message.header(), timeout=5)

    async def body(_: FakeSwarm) -> None:
        await opened(SESSION, FREQUENT)
        await opened(b"t" * 16, Rules(((3, 1.0),)))
        right = Recall(SESSION, 1, 0, 9, 1)
        assert await tell(right, pack_tokens((1, 2, 2))) == "ok"
        assert stage.engine.recalled == [(9, (1,), (2, 2))]
        for message, payload, code in (
            (replace_(right, session=b"u" * 16), b"", "unknown-session"),
            (replace_(right, session=b"t" * 16), b"", "bad-message"),
            (replace_(right, epoch=2), b"", "stale-epoch"),
            (replace_(right, index=1), b"", "unknown-session"),
            (replace_(right, position=51), b"", "bad-message"),
            (right, pack_tokens([1] * 10), "bad-message"),
            (right, pack_tokens((VOCABULARY,)), "bad-message"),
            (right, b"\0\0\0", "bad-message"),
        ):
            assert await tell(message, payload) == code, message
        assert len(stage.engine.recalled) == 1
        other = swarm.nodes[-1]
        assert other is client, "another gateway has no such session"

    with trio.fail_after(60):
        await swarm.run(body)


def replace_(message: Recall, **changes: Any) -> Recall:
    return Recall.parse(message.header() | changes)
