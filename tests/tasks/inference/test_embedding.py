"""Embeddings over chains: the sum of every position, whatever the chain, its losses and lies."""

import math
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio
import trio.testing

from shoal.tasks.defaults import EMBEDDINGS_AT_ONCE
from shoal.tasks.errors import PromptTooLong, SessionError
from shoal.tasks.inference.conversation.items import Pooled
from shoal.tasks.inference.embedding import Embeddings, EmbedRequest, PooledAnswer, Vector
from shoal.tasks.inference.gateway import GenerateRequest
from shoal.tasks.inference.messages import PooledSpan, SampledToken
from tests.tasks.fake_swarm import CONTEXT, HIDDEN, VOCABULARY, FakeSwarm

LONG = [number % 251 for number in range(700)]  # several spans


async def _run(swarm: FakeSwarm, body: Callable[[FakeSwarm], Awaitable[None]]) -> None:
    with trio.fail_after(200):
        await swarm.run(body)


async def _embed(swarm: FakeSwarm, *inputs: Any, **more: Any) -> Embeddings:
    request = EmbedRequest("m", tuple(inputs), **more)
    return await swarm.client.gateway.embedder.embed(request)


def _expected(swarm: FakeSwarm, ids: Sequence[int]) -> tuple[float, float]:
    first, second = swarm.expected_sum(ids)
    length = math.hypot(first, second)
    return first / length, second / length


def _same(vector: Vector, expected: Sequence[float]) -> bool:
    return vector.tolist() == pytest.approx(list(expected), rel=1e-6)


def _ids(text: str) -> list[int]:
    return [ord(letter) for letter in text]


@pytest.mark.trio
@pytest.mark.parametrize("splits", [(6,), (2, 4, 6)])
@pytest.mark.parametrize("size", [1, 2, 256, 257, 700, CONTEXT])
async def test_every_position_counts_once_over_every_chain(
    autojump_clock: object, splits: tuple[int, ...], size: int
) -> None:
    swarm = FakeSwarm(splits)
    ids = [number % 251 for number in range(size)]

    async def body(_: FakeSwarm) -> None:
        found = await _embed(swarm, tuple(ids))
        assert _same(found.vectors[0], _expected(swarm, ids)) and found.tokens == size
        assert math.hypot(*found.vectors[0]) == pytest.approx(1.0)
        swarm.assert_free()
        assert swarm.client.gateway.waited_for == 0

    await _run(swarm, body)


@pytest.mark.trio
async def test_every_stage_gets_the_adapter(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 6))
    for node in swarm.stages:
        node.engine.adapters.add("a" * 64)

    async def body(_: FakeSwarm) -> None:
        for adapter in ("", "a"):
            await _embed(swarm, "some text", adapter=adapter)
        for node in swarm.stages:
            assert [each.adapter for each in node.engine.terms] == ["", "a" * 64]
        with pytest.raises(SessionError) as caught:
            await _embed(swarm, "some text", adapter="nobody")
        assert caught.value.code == "no-adapter"
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
async def test_inputs_come_back_in_order_and_a_few_are_computed_at_once(
    autojump_clock: object,
) -> None:
    swarm = FakeSwarm((2, 6))
    texts = [f"text {number}" for number in range(40)]
    most = 0

    async def body(_: FakeSwarm) -> None:
        nonlocal most

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, swarm.client.gateway.sessions)
                await trio.sleep(0.0001)

        swarm.wire.delay = 0.001
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            found = await _embed(swarm, *texts)
            nursery.cancel_scope.cancel()
        for text, vector in zip(texts, found.vectors, strict=True):
            assert _same(vector, _expected(swarm, _ids(text)))
        assert found.tokens == sum(map(len, texts))
        swarm.assert_free()

    await _run(swarm, body)
    assert most == EMBEDDINGS_AT_ONCE


@pytest.mark.trio
async def test_a_request_with_many_inputs_does_not_delay_another_for_long(
    autojump_clock: object,
) -> None:
    swarm = FakeSwarm((6,))
    swarm.wire.delay = 0.01
    took: dict[int, float] = {}

    async def one(*inputs: Any) -> None:
        await _embed(swarm, *inputs)
        took[len(inputs)] = trio.current_time()

    async def body(_: FakeSwarm) -> None:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, *(["many"] * 500))
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(one, "few")
        assert took[1] - began < (took[500] - began) / 10

    await _run(swarm, body)


@pytest.mark.trio
async def test_a_cached_prefix_is_neither_used_nor_left_behind(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 6))

    async def body(_: FakeSwarm) -> None:
        request = GenerateRequest("m", prompt="x" * 100, raw=True, max_tokens=2)

        async def ignore(_: object) -> None:
            await trio.lowlevel.checkpoint()

        await swarm.client.gateway.generate(request, ignore)
        assert swarm.stages[0].engine.kept
        for node in swarm.stages:
            node.engine.cached = 48  # a stage may claim what it likes
        text = "x" * 100
        for _again in range(2):
            found = await _embed(swarm, text)
            assert _same(found.vectors[0], _expected(swarm, _ids(text)))
            assert swarm.stages[0].engine.terms[-1].names == b""
            assert swarm.stages[0].engine.closed[-1] == b""

    await _run(swarm, body)


@pytest.mark.trio
async def test_inputs_that_do_not_fit_together_are_computed_one_by_one(
    autojump_clock: object,
) -> None:
    swarm = FakeSwarm((6,))
    swarm.stages[0].engine.kv_tokens = 1000

    async def body(_: FakeSwarm) -> None:
        inputs = [tuple(LONG[number:]) for number in range(5)]
        found = await _embed(swarm, *inputs)
        for ids, vector in zip(inputs, found.vectors, strict=True):
            assert _same(vector, _expected(swarm, ids))
        swarm.stages[0].engine.kv_tokens = 100
        with pytest.raises(SessionError) as caught:
            await _embed(swarm, *inputs)
        assert caught.value.code == "no-memory"
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
@pytest.mark.parametrize(
    ("inputs", "code", "more"),
    [
        (("a", ""), "bad-request", {}),
        ((("a"), (1, VOCABULARY)), "bad-request", {}),
        (("a", "x" * (CONTEXT + 1)), "prompt-too-long", {}),
        (("a",), "bad-dimensions", {"dimensions": HIDDEN + 1}),
    ],
)
async def test_a_request_is_refused_before_anything_is_computed(
    autojump_clock: object, inputs: Any, code: str, more: Any
) -> None:
    swarm = FakeSwarm((6,))

    async def body(_: FakeSwarm) -> None:
        with pytest.raises(SessionError) as caught:
            await _embed(swarm, *inputs, **more)
        assert caught.value.code == code
        assert isinstance(caught.value, PromptTooLong) == (code == "prompt-too-long")
        assert swarm.stages[0].engine.spans == []
        await _embed(swarm, "a", dimensions=HIDDEN)

    await _run(swarm, body)


@pytest.mark.trio
async def test_a_stage_that_crashes_is_a_pause(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4, 6))
    swarm.wire.delay = 0.01
    engine = swarm.stages[1].engine

    async def body(_: FakeSwarm) -> None:
        async def crash_once() -> None:
            while len(engine.spans) < 2:  # noqa: ASYNC110
                await trio.sleep(0.001)
            engine.lose_all()
            await trio.sleep(3)
            engine.crashed = False

        async with trio.open_nursery() as nursery:
            nursery.start_soon(crash_once)
            found = await _embed(swarm, tuple(LONG))
        assert _same(found.vectors[0], _expected(swarm, LONG))
        swarm.assert_free()

    await _run(swarm, body)


def _states(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


@pytest.mark.trio
@pytest.mark.parametrize(
    ("method", "position", "payload"),
    [
        ("session.pooled", 5, _states(1.0)),
        ("session.pooled", 5, _states(1.0, 2.0, 3.0)),
        ("session.pooled", 5, _states(1.0, math.nan)),
        ("session.pooled", 5, _states(math.inf, 1.0)),
        ("session.pooled", 6, _states(1.0, 1.0)),
        ("session.pooled", 0, _states(1.0, 1.0)),
        ("session.token", 5, b""),
    ],
)
@pytest.mark.parametrize("asks", ["embedding", "text"])
async def test_a_head_that_sends_something_else_ends_the_session(
    autojump_clock: object, asks: str, method: str, position: int, payload: bytes
) -> None:
    swarm = FakeSwarm((2, 4))
    if asks == "text":  # there, any sum is wrong
        method, position, payload = "session.pooled", 5, _states(1.0, 1.0)

    async def body(_: FakeSwarm) -> None:
        swarm.wire.freeze_at = 0
        errors: list[str] = []

        async def asking() -> None:
            with pytest.raises(SessionError) as caught:
                if asks == "text":
                    request = GenerateRequest("m", prompt="hello", raw=True, max_tokens=8)
                    await swarm.client.gateway.generate(request, _ignore)
                else:
                    await _embed(swarm, "hello")
            errors.append(caught.value.code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(asking)
            await trio.testing.wait_all_tasks_blocked()
            message = PooledSpan(swarm.session, 1, position)
            if method == "session.token":
                message = SampledToken(swarm.session, 1, position, 7, -1.0, True, 0.1)  # type: ignore[assignment]
            link = swarm.stages[1].endpoint.link(swarm.client.peer)
            assert link is not None
            link.deliver(method, message.header(), payload)
        assert errors == ["bad-stage"]

    await _run(swarm, body)


async def _ignore(_: object) -> None:
    await trio.lowlevel.checkpoint()


@pytest.mark.trio
async def test_another_chain_begins_the_sum_again() -> None:
    answer = PooledAnswer(4, 2)
    assert not await answer.add([Pooled(2, (5.0, 5.0))])
    await answer.begin(())
    assert not await answer.add([Pooled(2, (1.0, 1.0))])
    assert await answer.add([Pooled(4, (2.0, 3.0))])
    assert answer.vector().tolist() == pytest.approx([0.6, 0.8])
