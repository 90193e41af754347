"""Tests of the gateway: correct tokens over correct chains, and an end of every session."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing
from msgspec.structs import replace

from shoal.tasks.defaults import EMIT_PACE, MEMORY_LOOK, MEMORY_PATIENCE, SESSION_IDLE
from shoal.tasks.engine.interface import Sampling
from shoal.tasks.errors import NoRoute, PromptTooLong, SessionError
from shoal.tasks.inference.gateway import (
    ChatTurn,
    GatewayEvent,
    GenerateRequest,
    Routed,
    Summary,
    TextDelta,
)
from shoal.tasks.inference.messages import (
    Failed,
    Quiet,
    SampledToken,
    SpanProgress,
    pack_tokens,
)
from shoal.tasks.inference.names import PrefixNames
from shoal.transport.link.calls import Refusal
from tests.tasks.fake_swarm import CONTEXT, EOS, VOCABULARY, FakeSwarm, Node, peer_of

Body = Callable[[FakeSwarm], Awaitable[None]]


async def _run(swarm: FakeSwarm, body: Body) -> None:
    with trio.fail_after(60):
        await swarm.run(body)


class Client:
    """Collects what a generation emits."""

    def __init__(self) -> None:
        self.events: list[GatewayEvent] = []

    async def emit(self, event: GatewayEvent) -> None:
        await trio.lowlevel.checkpoint()
        self.events.append(event)

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, TextDelta))


def _request(prompt: str | None = "hello", **changes: Any) -> GenerateRequest:
    return GenerateRequest(
        **{"model": "m", "prompt": prompt, "raw": True, "max_tokens": 8} | changes
    )


def _ids(prompt: str) -> list[int]:
    return [ord(letter) for letter in prompt]


async def _generate(swarm: FakeSwarm, prompt: str | None = "hello", **changes: Any) -> Summary:
    return await swarm.client.gateway.generate(_request(prompt, **changes), Client().emit)


async def _error(swarm: FakeSwarm, prompt: str | None = "hello", **changes: Any) -> SessionError:
    with pytest.raises(SessionError) as caught:
        await _generate(swarm, prompt, **changes)
    return caught.value


@pytest.mark.trio
@pytest.mark.parametrize("splits", [(6,), (2, 6), (2, 4, 6), (1, 2, 3, 4, 5, 6)])
@pytest.mark.parametrize("client_serves", [False, True])
async def test_every_split_gives_the_same_answer(
    autojump_clock: object, splits: tuple[int, ...], client_serves: bool
) -> None:
    swarm = FakeSwarm(splits, client_serves=client_serves)

    async def body(_: FakeSwarm) -> None:
        client = Client()
        summary = await swarm.client.gateway.generate(_request(), client.emit)
        expected = swarm.expected(_ids("hello"), 8)
        assert list(summary.token_ids) == expected
        assert client.text == summary.text == "".join(f"{token} " for token in expected) + "."
        assert (summary.reason, summary.prompt_tokens, summary.tokens) == ("length", 5, 8)
        assert isinstance(client.events[0], Routed)
        assert [hop.peer for hop in client.events[0].stages] == [n.peer for n in swarm.stages]
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
async def test_stages_that_are_not_members_yet_are_found(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4, 6))
    swarm.strangers = swarm.stages[1:]

    async def body(_: FakeSwarm) -> None:
        summary = await _generate(swarm)
        assert list(summary.token_ids) == swarm.expected(_ids("hello"), 8)
        assert swarm.sought == 1
        await _generate(swarm)
        assert swarm.sought == 1, "they are members now"

    await _run(swarm, body)


@pytest.mark.trio
async def test_a_search_without_a_result_fails_at_once(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4, 6))
    gone = swarm.nodes.pop(2)
    assert gone.parts is not None

    async def body(_: FakeSwarm) -> None:
        began = trio.current_time()
        with pytest.raises(NoRoute):
            await _generate(swarm)
        assert swarm.sought == 1 and trio.current_time() - began < 0.1

    await _run(swarm, body)


@pytest.mark.trio
async def test_one_stage_runs_the_loop_itself(autojump_clock: object) -> None:
    swarm = FakeSwarm((3,))

    async def body(_: FakeSwarm) -> None:
        summary = await _generate(swarm)
        assert [(span.count, span.steps) for span in swarm.stages[0].engine.spans] == [(5, 8)]
        gateway = swarm.client.gateway
        assert (gateway.answers, gateway.answer_tokens) == (1, summary.tokens)

    await _run(swarm, body)


@pytest.mark.trio
@pytest.mark.parametrize("splits", [(3,), (1, 2, 3)])
async def test_a_long_prompt_is_pipelined_in_bounded_spans(
    autojump_clock: object, splits: tuple[int, ...]
) -> None:
    swarm = FakeSwarm(splits)
    prompt = "".join(chr(65 + index % 50) for index in range(1500))

    async def body(_: FakeSwarm) -> None:
        summary = await _generate(swarm, prompt, max_tokens=3)
        assert list(summary.token_ids) == swarm.expected(_ids(prompt), 3)
        first = swarm.stages[0].engine.spans[:6]
        assert [(span.start, span.count) for span in first] == [
            (start, min(256, 1500 - start)) for start in range(0, 1500, 256)
        ]
        # Before the head has reported any progress, only stages + 1 spans are on their way.
        methods = [post[2] for post in swarm.wire.posts]
        sent = [
            index
            for index, post in enumerate(swarm.wire.posts)
            if post[0] == swarm.client.peer and post[2] == "session.span"
        ]
        assert sent[len(splits) + 1] > methods.index("session.progress")
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
async def test_the_session_starts_at_the_shortest_cached_prefix(autojump_clock: object) -> None:
    swarm = FakeSwarm((1, 2))
    swarm.stages[0].engine.cached, swarm.stages[1].engine.cached = 32, 16

    async def body(_: FakeSwarm) -> None:
        await _generate(swarm, "p" * 40)
        assert swarm.stages[0].engine.spans[0].start == 16
        swarm.stages[0].engine.cached = 48  # more than the prompt: its end is computed anyway
        swarm.stages[1].engine.cached = 48
        await _generate(swarm, "q" * 40)
        starts = [span.start for span in swarm.stages[0].engine.spans]
        assert starts[8:] == [32, *range(40, 47)]

    await _run(swarm, body)


@pytest.mark.trio
@pytest.mark.parametrize(
    ("prompt", "start"), [(1, 0), (2, 0), (16, 0), (17, 0), (18, 16), (32, 16), (33, 16), (34, 32)]
)
async def test_a_prompt_starts_with_a_block_and_two_positions_before_its_end_at_the_latest(
    autojump_clock: object, prompt: int, start: int
) -> None:
    swarm = FakeSwarm((1, 2))
    text = "abcdefghijklmnopqrstuvwxyz0123456789"[:prompt]

    async def body(_: FakeSwarm) -> None:
        expected = swarm.expected(_ids(text), 8)
        assert list((await _generate(swarm, text)).token_ids) == expected
        swarm.stages[0].engine.spans.clear()
        assert list((await _generate(swarm, text)).token_ids) == expected
        first = swarm.stages[0].engine.spans[0]
        assert (first.start, first.count) == (start, prompt - start)
        swarm.assert_free()

    await _run(swarm, body)


def _starts(swarm: FakeSwarm) -> list[int]:
    """Return where the prompts since the last call began at the first stage."""
    spans = swarm.stages[0].engine.spans
    found = [span.start for at, span in enumerate(spans) if not at or span.count > 1]
    spans.clear()
    return found


@pytest.mark.trio
@pytest.mark.parametrize("splits", [(2,), (2, 4, 6)])
async def test_the_next_turn_computes_only_what_is_new(
    autojump_clock: object, splits: tuple[int, ...]
) -> None:
    swarm = FakeSwarm(splits)
    prompt = "a long beginning that all of these prompts have"

    async def body(_: FakeSwarm) -> None:
        first = await _generate(swarm, prompt, max_tokens=30)
        assert _starts(swarm)[0] == 0
        longer = prompt + "".join(map(chr, first.token_ids)) + " and then?"
        again = await _generate(swarm, longer)
        assert list(again.token_ids) == swarm.expected(_ids(longer), 8)
        assert _starts(swarm)[0] == (len(prompt) + 30 - 1) // 16 * 16
        other = prompt[:40] + " but another end"
        changed = await _generate(swarm, other)
        assert list(changed.token_ids) == swarm.expected(_ids(other), 8)
        assert _starts(swarm)[0] == 32
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
async def test_a_chain_whose_stages_remember_differently_starts_at_the_shortest(
    autojump_clock: object,
) -> None:
    swarm = FakeSwarm((2, 4, 6))
    prompt = "".join(chr(65 + at) for at in range(50))

    async def body(_: FakeSwarm) -> None:
        await _generate(swarm, prompt)
        for at in (1, 2):  # a block was evicted at the second stage, and all but one at the third
            names = swarm.stages[at].engine.terms[0].names
            kept = swarm.stages[at].engine.kept
            for number in range((2, 1)[at - 1], 3):
                del kept[swarm.client.peer, names[16 * number : 16 * number + 16]]
        _starts(swarm)
        again = await _generate(swarm, prompt)
        assert _starts(swarm)[0] == 16
        assert list(again.token_ids) == swarm.expected(_ids(prompt), 8)
        swarm.stages[2].engine.kept.clear()
        assert list((await _generate(swarm, prompt)).token_ids) == list(again.token_ids)
        assert _starts(swarm)[0] == 0

    await _run(swarm, body)


@pytest.mark.trio
async def test_the_names_of_a_prompt_are_computed_once_for_all_stages(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For 128k tokens that takes 40 ms, in which the event loop does nothing else."""
    swarm = FakeSwarm((1, 2, 3, 4, 5, 6))
    sizes, compute = [], PrefixNames.compute

    def counted(self: PrefixNames, root: str, ids: Sequence[int], first: bytes = b"") -> bytes:
        sizes.append(len(ids))
        return compute(self, root, ids, first)

    monkeypatch.setattr(PrefixNames, "compute", counted)

    async def body(_: FakeSwarm) -> None:
        await _generate(swarm, prompt="x" * 50, max_tokens=1)
        assert sizes.count(50) == 1 and len(sizes) <= 3

    await _run(swarm, body)


@pytest.mark.trio
async def test_names_tell_nothing_to_other_gateways(autojump_clock: object) -> None:
    """A gateway's names are not those of another one, and do not contain the text."""
    swarm = FakeSwarm((2, 4), client_serves=False)
    other = Node(swarm, 201, None)
    swarm.nodes.append(other)
    prompt = "the same secret prompt of two gateways"

    async def body(_: FakeSwarm) -> None:
        for node in (swarm.client, other, swarm.client):
            await node.gateway.generate(_request(prompt), Client().emit)
        assert [start for start in _starts(swarm) if start] == [32]
        for stage in swarm.stages:
            first, second, third = stage.engine.terms
            assert [len(terms.names) for terms in stage.engine.terms] == [32, 32, 32]
            assert first.owner == third.owner == swarm.client.peer != second.owner == other.peer
            assert first.names == third.names
            halves = {first.names[:16], first.names[16:], second.names[:16], second.names[16:]}
            assert len(halves) == 4
            ids = pack_tokens(_ids(prompt))
            for names in (first.names, second.names, *stage.engine.closed):
                assert not any(ids[at : at + 8] in names for at in range(0, len(ids) - 8, 4))
                assert prompt[:8].encode() not in names

    await _run(swarm, body)


@pytest.mark.trio
async def test_two_prompts_at_once_do_not_mix(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4, 6), client_serves=True)
    prompts = ["hello", "another prompt", "x" * 700, "fourth"]

    async def body(_: FakeSwarm) -> None:
        got: dict[str, Summary] = {}

        async def one(node: Node, prompt: str) -> None:
            got[prompt] = await node.gateway.generate(_request(prompt), Client().emit)

        async with trio.open_nursery() as nursery:
            for index, prompt in enumerate(prompts):
                nursery.start_soon(one, swarm.nodes[index % 3], prompt)
        for prompt in prompts:
            assert list(got[prompt].token_ids) == swarm.expected(_ids(prompt), 8)
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
@pytest.mark.parametrize("splits", [(3,), (1, 2, 3)])
async def test_a_stop_id_ends_it(autojump_clock: object, splits: tuple[int, ...]) -> None:
    swarm = FakeSwarm(splits)

    async def body(_: FakeSwarm) -> None:
        summary = await _generate(swarm, sampling=Sampling(seed=1))  # the fake then says EOS
        assert (summary.reason, summary.token_ids, summary.text) == ("stop", (EOS,), ".")
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
@pytest.mark.parametrize("splits", [(3,), (1, 2, 3)])
async def test_a_stop_string_ends_it_everywhere(
    autojump_clock: object, splits: tuple[int, ...]
) -> None:
    swarm = FakeSwarm(splits)
    swarm.wire.delay = 0.001
    third = str(swarm.expected(_ids("hello"), 3)[2])

    async def body(_: FakeSwarm) -> None:
        summary = await _generate(swarm, stop=(third,), max_tokens=500)
        assert (summary.reason, summary.tokens) == ("stop", 3)
        swarm.assert_free()
        steps = swarm.wire.steps
        await trio.sleep(1)
        assert swarm.wire.steps < steps + 5  # nothing goes on

    await _run(swarm, body)


@pytest.mark.trio
async def test_the_context_bounds_prompt_and_answer(autojump_clock: object) -> None:
    swarm = FakeSwarm((1,))

    async def body(_: FakeSwarm) -> None:
        with pytest.raises(PromptTooLong, match=rf"{CONTEXT + 5} tokens .* {CONTEXT}"):
            await _generate(swarm, "x" * (CONTEXT + 5))
        summary = await _generate(swarm, "x" * (CONTEXT - 3), max_tokens=100)
        assert (summary.reason, summary.tokens) == ("context", 3)
        summary = await _generate(swarm, "x" * (CONTEXT - 3), max_tokens=2)
        assert (summary.reason, summary.tokens) == ("length", 2)
        assert (await _error(swarm, "")).code == "bad-request"
        assert (await _error(swarm, max_tokens=0)).code == "bad-request"
        assert (await _error(swarm, None)).code == "bad-request"
        assert (await _error(swarm, None, raw=False)).code == "bad-request"
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
async def test_messages_and_prompts_go_through_the_template(autojump_clock: object) -> None:
    swarm = FakeSwarm((1,))

    async def body(_: FakeSwarm) -> None:
        expected = swarm.expected(_ids("<user>hi"), 8)
        assert list((await _generate(swarm, "hi", raw=False)).token_ids) == expected
        messages = (ChatTurn("user", "hi"),)
        summary = await _generate(swarm, None, messages=messages, raw=False)
        assert list(summary.token_ids) == expected

    await _run(swarm, body)


@pytest.mark.trio
async def test_cancelling_anywhere_frees_everything(autojump_clock: object) -> None:
    """Stop the wire after n deliveries and cancel, for every n up to a complete answer."""
    finished = False
    at = 0
    while not finished:
        swarm = FakeSwarm((1, 2, 3))
        swarm.wire.freeze_at = at

        async def body(swarm: FakeSwarm) -> None:
            nonlocal finished
            with trio.move_on_after(1):
                await _generate(swarm, "x" * 600, max_tokens=4)
                finished = True
            swarm.assert_free()

        await _run(swarm, body)
        at += 1
    assert at > 20


@pytest.mark.trio
async def test_cancelling_at_every_checkpoint_frees_everything(autojump_clock: object) -> None:
    async def cancel(after: int, scope: trio.CancelScope) -> None:
        for _ in range(after):
            await trio.lowlevel.checkpoint()
        scope.cancel()

    finished = False
    ticks = 0

    async def body(swarm: FakeSwarm) -> None:
        nonlocal finished
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancel, ticks, scope)
                await _generate(swarm, max_tokens=2)
                finished = not scope.cancel_called
        await trio.testing.wait_all_tasks_blocked()
        swarm.assert_free()

    while not finished:
        await _run(FakeSwarm((1, 2)), body)
        ticks += 1
    assert ticks > 10


@pytest.mark.trio
async def test_an_emit_that_fails_frees_everything(autojump_clock: object) -> None:
    swarm = FakeSwarm((1, 2))

    async def emit(event: GatewayEvent) -> None:
        if isinstance(event, TextDelta):
            raise BrokenPipeError

    async def body(_: FakeSwarm) -> None:
        with pytest.raises(BrokenPipeError):
            await swarm.client.gateway.generate(_request(), emit)
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
async def test_closing_is_bounded_in_time(autojump_clock: object) -> None:
    swarm = FakeSwarm((1, 2))
    swarm.stages[1].engine.closing = trio.Event()

    async def body(_: FakeSwarm) -> None:
        began = trio.current_time()
        await _generate(swarm)
        assert trio.current_time() - began == pytest.approx(2.0, abs=0.1)

    await _run(swarm, body)


@pytest.mark.trio
async def test_a_stage_that_dies_is_named_and_the_others_are_freed(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4, 6))
    dead = swarm.stages[1]

    async def body(_: FakeSwarm) -> None:
        swarm.wire.freeze_at = 12
        errors: list[SessionError] = []

        async def asking() -> None:
            errors.append(await _error(swarm))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(asking)
            await trio.testing.wait_all_tasks_blocked()
            del swarm.wire.endpoints[dead.peer]
            for node in (swarm.client, swarm.stages[0], swarm.stages[2]):
                node.endpoint.lose(dead.peer)
        (error,) = errors
        assert error.code == "stage-lost"
        assert f"stage 2 of 3 ({dead.peer}, layers 2:4)" in error.message
        for node in (swarm.client, swarm.stages[0], swarm.stages[2]):
            assert node.stage.sessions == node.gateway.sessions == 0
            assert node.engine.states == {}

    await _run(swarm, body)


@pytest.mark.trio
async def test_a_stage_lost_to_its_neighbour_only_is_named_as_well(
    autojump_clock: object,
) -> None:
    swarm = FakeSwarm((2, 4, 6))
    _, second, head = swarm.stages

    async def body(_: FakeSwarm) -> None:
        swarm.wire.freeze_at = 12
        errors: list[SessionError] = []

        async def asking() -> None:
            errors.append(await _error(swarm))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(asking)
            await trio.testing.wait_all_tasks_blocked()
            session = swarm.session
            failed = Failed(session, 1, "stage-lost", "the link ended: silent", second.peer)
            link = head.endpoint.link(swarm.client.peer)
            assert link is not None
            link.deliver("session.failed", failed.header())
        (error,) = errors
        assert error.code == "stage-lost"
        assert error.message.startswith(f"stage 2 of 3 ({second.peer}, layers 2:4) is lost")
        assert error.message.endswith(f"says stage 3 of 3 ({head.peer}, layers 4:6)")
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
async def test_another_replica_takes_over_if_a_stage_changes_its_layers(
    autojump_clock: object,
) -> None:
    swarm = FakeSwarm((2, 4))
    moving = swarm.stages[1]
    swarm.nodes.append(Node(swarm, 77, moving.parts))

    async def body(_: FakeSwarm) -> None:
        said: list[Summary] = []

        async def asking() -> None:
            said.append(await _generate(swarm))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(asking)
            while not any(node.stage.sessions for node in (moving, swarm.nodes[-1])):
                await trio.lowlevel.checkpoint()
            used = next(node for node in (moving, swarm.nodes[-1]) if node.stage.sessions)
            used.stage.withdraw()
        assert list(said[0].token_ids) == swarm.expected(_ids("hello"), 8)

    await _run(swarm, body)


@pytest.mark.trio
async def test_an_engine_that_fails_names_its_stage(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4, 6))
    swarm.stages[1].engine.fail_at = 7

    async def body(_: FakeSwarm) -> None:
        error = await _error(swarm)
        assert error.code == "gap"
        assert error.message.startswith("stage 2 of 3 (")
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
async def test_a_result_that_is_not_finite_ends_its_own_session_only(
    autojump_clock: object,
) -> None:
    swarm = FakeSwarm((2, 4, 6))
    swarm.stages[1].engine.fail_at = 7
    swarm.stages[1].engine.fail_code = "not-finite"
    long = "hello to all of you"  # its prompt ends behind the position that fails

    async def body(_: FakeSwarm) -> None:
        errors: list[SessionError] = []
        answers: list[Summary] = []

        async def fails() -> None:
            errors.append(await _error(swarm))

        async def lives() -> None:
            answers.append(await _generate(swarm, long))

        async with trio.open_nursery() as nursery:
            for work in (lives, fails, lives):
                nursery.start_soon(work)
        (error,) = errors
        assert error.code == "not-finite" and error.message.startswith("stage 2 of 3 (")
        for answer in (*answers, await _generate(swarm, long)):
            assert list(answer.token_ids) == swarm.expected(_ids(long), 8)
        assert len(answers) == 2
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
async def test_silence_ends_it(autojump_clock: object) -> None:
    swarm = FakeSwarm((1,))
    swarm.wire.freeze_at = 1

    async def body(_: FakeSwarm) -> None:
        assert (await _error(swarm)).code == "silent"
        assert swarm.client.gateway.sessions == 0
        await trio.sleep(1.2 * SESSION_IDLE)  # no message arrives any more, not even the close
        swarm.assert_free()

    with trio.fail_after(1000):
        await swarm.run(body)


@pytest.mark.trio
async def test_a_refused_open_tries_another_replica(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4))
    full = swarm.stages[1]
    full.engine.kv_tokens = 0
    spare = Node(swarm, 77, full.parts)
    swarm.nodes.append(spare)

    async def body(_: FakeSwarm) -> None:
        client = Client()
        summary = await swarm.client.gateway.generate(_request(), client.emit)
        assert list(summary.token_ids) == swarm.expected(_ids("hello"), 8)
        assert [event.stages[1].peer for event in client.events if isinstance(event, Routed)] == [
            spare.peer
        ]
        spare.engine.kv_tokens = 0
        error = await _error(swarm)  # the refusal says more than "no route"
        assert error.code == "no-memory"
        assert "stage 2 of 2" in error.message
        assert "the prompt has 5 tokens and the answer up to 8" in str(error.hint)
        swarm.assert_free()

    await _run(swarm, body)


async def _asked(swarm: FakeSwarm, nodes: list[Node], count: int) -> int:
    """Return how often these nodes were asked to open during a number of requests."""
    before = swarm.opens(nodes)
    for _ in range(count):
        await _generate(swarm)
    return swarm.opens(nodes) - before


@pytest.mark.trio
async def test_malicious_stages_do_not_use_up_the_attempts_of_each_request(
    autojump_clock: object,
) -> None:
    swarm = FakeSwarm((2,))
    false = [Node(swarm, 70 + number, swarm.stages[0].parts) for number in range(5)]
    swarm.nodes += false
    for node in false:
        node.engine.kv_tokens = 0

    async def body(_: FakeSwarm) -> None:
        with suppress(SessionError):  # three of the five may be asked first
            await _generate(swarm)
        await _generate(swarm)  # only two are left that are not known
        assert await _asked(swarm, false, 20) < 5  # each once at most
        assert await _asked(swarm, false, 20) == 0
        for node in false:
            node.engine.kv_tokens = 1000
        await trio.sleep(61)
        assert await _asked(swarm, false, 20) > 10  # one of six again
        swarm.assert_free()

    with trio.fail_after(1000):
        await swarm.run(body)


@pytest.mark.trio
async def test_a_stage_that_refused_is_tried_again_if_there_is_no_other(
    autojump_clock: object,
) -> None:
    swarm = FakeSwarm((2, 4))
    swarm.stages[1].engine.kv_tokens = 0

    async def body(_: FakeSwarm) -> None:
        assert (await _error(swarm)).code == "no-memory"
        swarm.stages[1].engine.kv_tokens = 1000
        await _generate(swarm)
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
async def test_a_stage_cannot_choose_the_code_freely(autojump_clock: object) -> None:
    """A refusal with "no-route" would end a client's command with another exit code."""
    swarm = FakeSwarm((2,))
    refusal = Refusal("no-route", "try again later")
    swarm.stages[0].courier.handle("session.open", lambda call: refusal)

    async def body(_: FakeSwarm) -> None:
        error = await _error(swarm)
        assert error.code == "stage-failed"
        assert error.message.endswith("try again later")

    await _run(swarm, body)


def _token(session: bytes, epoch: int = 1, position: int = 5, token: int = 1) -> SampledToken:
    return SampledToken(session, epoch, position, token, 0, False, 0)


@pytest.mark.trio
@pytest.mark.parametrize("stopping", [False, True])
async def test_a_slow_reader_gets_all_of_it(autojump_clock: object, stopping: bool) -> None:
    """Tokens that accumulate are converted together, but with stop strings one by one."""
    swarm = FakeSwarm((1, 2))
    swarm.wire.delay = 0.01
    expected = swarm.expected(_ids("hello"), 40)
    stop = (str(expected[29]),) if stopping else ()
    deltas: list[str] = []

    async def emit(event: GatewayEvent) -> None:
        if isinstance(event, TextDelta):
            deltas.append(event.text)
            await trio.sleep(0.5)

    async def body(_: FakeSwarm) -> None:
        request = _request(max_tokens=40, stop=stop)
        summary = await swarm.client.gateway.generate(request, emit)
        count = 30 if stopping else 40
        assert list(summary.token_ids) == expected[:count]
        assert summary.text == "".join(deltas)
        assert (summary.tokens, len(deltas) > 20) == (count, stopping)
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
async def test_a_fast_model_is_written_in_pieces_the_first_and_last_at_once(
    autojump_clock: object,
) -> None:
    swarm = FakeSwarm((3,))
    swarm.wire.delay = 0.001
    times: list[float] = []

    async def emit(event: GatewayEvent) -> None:
        times.append(trio.current_time())

    async def body(_: FakeSwarm) -> None:
        began = trio.current_time()
        summary = await swarm.client.gateway.generate(_request(max_tokens=100), emit)
        assert summary.tokens == 100
        assert times[1] - began == pytest.approx(summary.ttft_s)
        assert 5 <= len(times) <= 30
        last = began + summary.ttft_s + 99 / summary.tokens_per_s
        assert times[-1] == pytest.approx(last)

    await _run(swarm, body)


@pytest.mark.trio
async def test_it_fails_after_repeated_refusals(autojump_clock: object) -> None:
    swarm = FakeSwarm((2,))
    swarm.nodes += [Node(swarm, 70 + number, swarm.stages[0].parts) for number in range(5)]
    for node in swarm.nodes:
        node.engine.kv_tokens = 0

    async def body(_: FakeSwarm) -> None:
        began = trio.current_time()
        error = await _error(swarm)
        assert error.code == "no-memory" and "(still after 3" in error.message
        assert MEMORY_PATIENCE < trio.current_time() - began < MEMORY_PATIENCE + 2 * MEMORY_LOOK
        assert swarm.opens(swarm.nodes) <= 3 * (5 + MEMORY_PATIENCE / MEMORY_LOOK)

    await _run(swarm, body)


@pytest.mark.trio
async def test_the_figures_separate_computing_from_transport(autojump_clock: object) -> None:
    """Seven deliveries of 10 ms per token; the fake engines report 3 ms of computing."""
    swarm = FakeSwarm((1, 2, 3))
    swarm.wire.delay = 0.01

    async def body(_: FakeSwarm) -> None:
        summary = await _generate(swarm)
        assert summary.tokens_per_s == pytest.approx(7 / 0.48)  # before the last none is fed
        assert summary.hop_ms == pytest.approx((480 - 7 * 3) / 7 / 3)
        assert summary.ttft_s == pytest.approx(0.08)

    await _run(swarm, body)


HOSTILE: list[tuple[int, str, Callable[[bytes], Any], str]] = [
    (1, "token", _token, "not-yours"),  # of a middle stage
    (3, "token", _token, "not-yours"),  # of a stranger
    (2, "token", lambda session: _token(session, epoch=2), "stale-epoch"),
    (2, "token", lambda session: _token(b"x" * 16), "unknown"),
    (3, "progress", lambda session: SpanProgress(session, 1, 1), "not-yours"),
    (1, "progress", lambda session: SpanProgress(session, 1, 1), "not-yours"),
    (3, "failed", lambda session: Failed(session, 1, "x", "x"), "not-yours"),
    (3, "quiet", lambda session: Quiet(session, 1, peer_of(2), True), "not-yours"),
    (1, "quiet", lambda session: Quiet(session, 2, peer_of(1), True), "stale-epoch"),
]


@pytest.mark.trio
@pytest.mark.parametrize(("sender", "kind", "make", "code"), HOSTILE)
async def test_messages_from_the_wrong_sender_are_refused(
    autojump_clock: object, sender: int, kind: str, make: Callable[[bytes], Any], code: str
) -> None:
    swarm = FakeSwarm((2, 4, 6))
    stranger = Node(swarm, 250, None)

    async def body(_: FakeSwarm) -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                swarm.wire.freeze_at = 0
                nursery.start_soon(_generate, swarm)
                await trio.testing.wait_all_tasks_blocked()
                session = swarm.session
                node = [*swarm.stages, stranger][sender]
                header = make(session).header()
                link = node.endpoint.link(swarm.client.peer)
                assert link is not None
                link.deliver(f"session.{kind}", header)
                assert [item.code[:7] for item in swarm.wire.refusals] == [code[:7]]
                await trio.testing.wait_all_tasks_blocked()
                assert swarm.client.gateway.sessions == 1  # and it goes on
                scope.cancel()

    await _run(swarm, body)


@pytest.mark.trio
@pytest.mark.parametrize(
    "make",
    [
        lambda s: _token(s, position=6),  # a hole
        lambda s: _token(s, position=4),  # again
        lambda s: _token(s, token=VOCABULARY),  # no such id
        lambda s: SpanProgress(s, 1, 5),  # the prompt's last position answers with a token
        lambda s: SpanProgress(s, 1, 0),
    ],
)
async def test_a_head_that_breaks_the_protocol_ends_the_session(
    autojump_clock: object, make: Callable[[bytes], Any]
) -> None:
    swarm = FakeSwarm((2, 4))

    async def body(_: FakeSwarm) -> None:
        swarm.wire.freeze_at = 0
        errors: list[SessionError] = []

        async def asking() -> None:
            errors.append(await _error(swarm))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(asking)
            await trio.testing.wait_all_tasks_blocked()
            session = swarm.session
            message = make(session)
            method = "session.progress" if isinstance(message, SpanProgress) else "session.token"
            link = swarm.stages[1].endpoint.link(swarm.client.peer)
            assert link is not None
            link.deliver(method, message.header())
        assert [error.code for error in errors] == ["bad-stage"]
        assert f"stage 2 of 2 ({swarm.stages[1].peer}" in errors[0].message
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
async def test_messages_after_the_final_token_are_ignored(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4))

    async def body(_: FakeSwarm) -> None:
        swarm.wire.freeze_at = 0
        summaries: list[Summary] = []

        async def asking() -> None:
            summaries.append(await _generate(swarm))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(asking)
            await trio.testing.wait_all_tasks_blocked()
            session = swarm.session
            link = swarm.stages[1].endpoint.link(swarm.client.peer)
            assert link is not None
            for position in (5, 6):
                token = SampledToken(session, 1, position, 1, 0, position == 5, 0)
                link.deliver("session.token", token.header())
        assert [summary.token_ids for summary in summaries] == [(1,)]
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
async def test_a_head_that_does_not_stop_is_stopped(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4))

    async def body(_: FakeSwarm) -> None:
        swarm.wire.freeze_at = 0
        errors: list[SessionError] = []

        async def asking() -> None:
            errors.append(await _error(swarm, max_tokens=2))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(asking)
            await trio.testing.wait_all_tasks_blocked()
            session = swarm.session
            link = swarm.stages[1].endpoint.link(swarm.client.peer)
            assert link is not None
            for position in range(5, 100):
                token = _token(session, position=position)
                link.deliver("session.token", token.header())
        assert [error.code for error in errors] == ["bad-stage"]
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
@pytest.mark.parametrize("meets", [True, False])
async def test_a_chain_leads_through_members_that_were_not_linked(
    meets: bool, autojump_clock: object
) -> None:
    """In a large swarm few members are linked, so the links of a session are made on demand."""
    swarm = FakeSwarm((2, 4, 6))
    for node in swarm.nodes:
        node.endpoint.cut |= {other.peer for other in swarm.nodes if other is not node}
    swarm.meets = meets

    async def body(_: FakeSwarm) -> None:
        if not meets:
            assert (await _error(swarm)).code == "unreachable"
            assert swarm.met == []
            return
        summary = await _generate(swarm)
        assert list(summary.token_ids) == swarm.expected(_ids("hello"), 8)
        assert len({frozenset(pair) for pair in swarm.met}) == 6  # all links between four
        swarm.met.clear()
        await _generate(swarm)
        assert swarm.met == []

    await _run(swarm, body)


@pytest.mark.trio
async def test_a_quiet_link_is_not_replaced(autojump_clock: object) -> None:
    """Its peer is silent, so a request uses another chain."""
    swarm = FakeSwarm((6,))
    swarm.meets = True
    swarm.client.endpoint.hush(swarm.stages[0].peer)

    async def body(_: FakeSwarm) -> None:
        with pytest.raises(NoRoute):
            await _generate(swarm)
        assert swarm.met == []

    await _run(swarm, body)


class Turns:
    """Turn that ends during `waiting`. Counts the calls of `come`."""

    def __init__(self) -> None:
        self.waiting = False
        self.waits = 0
        self.free = trio.Event()

    def is_over(self) -> bool:
        return self.waiting

    async def come(self) -> None:
        self.waits += 1
        await self.free.wait()
        self.waiting = False


@pytest.mark.trio
@pytest.mark.parametrize("splits", [(3,), (1, 2, 3)])
@pytest.mark.parametrize("at", [0, 1, 4])
async def test_an_interrupted_job_continues_where_it_was(
    autojump_clock: object, splits: tuple[int, ...], at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversing = "shoal.tasks.inference.conversation.conversing"
    monkeypatch.setattr(f"{conversing}.JOB_PACE", EMIT_PACE)  # so that there are pieces enough
    swarm, turn = FakeSwarm(splits), Turns()
    swarm.wire.delay = 0.05
    pieces: list[str] = []

    async def emit(event: GatewayEvent) -> None:
        await trio.lowlevel.checkpoint()
        if isinstance(event, TextDelta):
            pieces.append(event.text)
        turn.waiting = turn.waiting or (len(pieces) == at and not turn.waits)

    async def body(_: FakeSwarm) -> None:
        expected = await _generate(swarm)
        done: list[Summary] = []

        async def generate() -> None:
            done.append(
                await swarm.client.gateway.generate(_request(turn=turn, job="cd" * 32), emit)
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(generate)
            await trio.sleep(20)
            assert turn.waits == 1 and not done
            assert swarm.client.gateway.sessions == 0, "its chain is given up"
            swarm.assert_free()
            turn.free.set()
        (summary,) = done
        assert (summary.text, summary.token_ids) == (expected.text, expected.token_ids)
        assert "".join(pieces) == expected.text

    await _run(swarm, body)


@pytest.mark.trio
async def test_the_engine_hears_of_an_interactive_request_before_its_session(
    autojump_clock: object,
) -> None:
    swarm = FakeSwarm((3,))
    node = swarm.stages[0]

    async def body(_: FakeSwarm) -> None:
        async with trio.open_nursery() as nursery:
            job = _request(turn=Turns(), job="cd" * 32)
            nursery.start_soon(node.gateway.generate, job, Client().emit)
            with trio.fail_after(1):
                while not node.stage.sessions:
                    await trio.lowlevel.checkpoint()
            assert node.engine.holds == 0
            nursery.start_soon(node.gateway.generate, _request(), Client().emit)
            for _step in range(3):
                await trio.lowlevel.checkpoint()
            assert node.engine.holds == 1 and node.stage.sessions == 1
            nursery.cancel_scope.cancel()

    await _run(swarm, body)


@pytest.mark.trio
async def test_interactive_requests_are_counted(autojump_clock: object) -> None:
    swarm, turn = FakeSwarm((3,)), Turns()
    swarm.wire.delay = 0.1

    async def body(_: FakeSwarm) -> None:
        gateway, stage = swarm.client.gateway, swarm.stages[0].stage
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gateway.generate, _request(turn=turn, job="cd" * 32), Client().emit)
            await trio.sleep(0.3)
            assert (gateway.sessions, gateway.waited_for, stage.waited_for) == (1, 0, 0)
            nursery.start_soon(gateway.generate, _request(), Client().emit)
            await trio.sleep(0.3)
            assert (gateway.sessions, gateway.waited_for, stage.waited_for) == (2, 1, 1)
            assert swarm.client.engine.holds == 0, "no job computes on this node"
        assert (gateway.sessions, gateway.waited_for, stage.waited_for) == (0, 0, 0)

    await _run(swarm, body)


@pytest.mark.trio
async def test_a_stage_that_refuses_a_job_is_not_avoided(autojump_clock: object) -> None:
    swarm, turn = FakeSwarm((3,)), Turns()
    swarm.wire.delay = 0.1

    async def body(_: FakeSwarm) -> None:
        gateway = swarm.client.gateway
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gateway.generate, _request(), Client().emit)
            await trio.sleep(0.3)
            error = await _error(swarm, turn=turn, job="cd" * 32)
            assert error.code == "busy" and not gateway.avoided()

    await _run(swarm, body)


@pytest.mark.trio
async def test_the_gateway_watches_its_stages_while_it_generates(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4, 6))
    seen: list[bool] = []

    async def body(_: FakeSwarm) -> None:
        async def emit(event: object) -> None:
            if not isinstance(event, Routed):
                seen.extend(swarm.client.endpoint.watches(each.peer) for each in swarm.stages)

        await swarm.client.gateway.generate(_request(), emit)
        assert not any(swarm.client.endpoint.watches(each.peer) for each in swarm.stages)

    await _run(swarm, body)
    assert seen and all(seen[: len(swarm.stages)])


@pytest.mark.trio
@pytest.mark.parametrize("splits", [(6,), (2, 6)])
async def test_the_most_likely_tokens_come_with_each_token(
    autojump_clock: object, splits: tuple[int, ...]
) -> None:
    swarm = FakeSwarm(splits)

    async def body(_: FakeSwarm) -> None:
        client = Client()
        request = _request(logprobs=True, top=3)
        summary = await swarm.client.gateway.generate(request, client.emit)
        tokens = [
            token
            for event in client.events
            if isinstance(event, TextDelta)
            for token in event.tokens
        ]
        assert len(tokens) == len(summary.token_ids) == 8
        for token, number in zip(tokens, summary.token_ids, strict=True):
            places = [(f"{(number + place) % VOCABULARY} ", -1.0 - place) for place in range(3)]
            assert [(each.text, each.logprob) for each in token.top] == places
        await _generate(swarm)
        assert [span.top for span in swarm.stages[-1].engine.spans if span.want == "token"][-1] == 0
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
async def test_every_stage_gets_the_adapter_and_other_names(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4, 6))
    for node in swarm.stages:
        node.engine.adapters |= {"a" * 64, "b" * 64}
    prompt = "a long beginning that all of these prompts have"

    async def body(_: FakeSwarm) -> None:
        for adapter in ("", "a", "b", "a"):
            await _generate(swarm, prompt, adapter=adapter)
        for node in swarm.stages:
            terms = node.engine.terms
            assert [each.adapter for each in terms] == ["", "a" * 64, "b" * 64, "a" * 64]
            assert len({each.names for each in terms[:3]}) == 3
            assert terms[3].names == terms[1].names
        assert _starts(swarm) == [0, 0, 0, 32]
        with pytest.raises(SessionError) as caught:
            await _generate(swarm, prompt, adapter="nobody")
        assert caught.value.code == "no-adapter"
        swarm.assert_free()

    await _run(swarm, body)


@pytest.mark.trio
@pytest.mark.parametrize("top", [((1, -1.0), (2, -2.0)), ((VOCABULARY, -1.0),)])
async def test_a_head_that_sends_other_likely_tokens_ends_the_session(
    autojump_clock: object, top: Any
) -> None:
    swarm = FakeSwarm((2, 4))

    async def body(_: FakeSwarm) -> None:
        swarm.wire.freeze_at = 0
        errors: list[SessionError] = []

        async def asking() -> None:
            errors.append(await _error(swarm, logprobs=True, top=1))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(asking)
            await trio.testing.wait_all_tasks_blocked()
            link = swarm.stages[1].endpoint.link(swarm.client.peer)
            assert link is not None
            link.deliver("session.token", replace(_token(swarm.session), top=top).header())
        assert [error.code for error in errors] == ["bad-stage"]

    await _run(swarm, body)


@pytest.mark.trio
async def test_a_refused_adapter_does_not_make_stages_avoided(autojump_clock: object) -> None:
    swarm = FakeSwarm((2, 4, 6), adapters=True)
    swarm.stages[1].engine.refuse_adapter = "bad-adapter"

    async def body(_: FakeSwarm) -> None:
        with pytest.raises(SessionError) as caught:
            await _generate(swarm, "hello", adapter="a")
        assert caught.value.code == "bad-adapter" and "stage 2 of 3" in caught.value.message
        assert not swarm.client.gateway.avoided()
        assert list((await _generate(swarm, "hello")).token_ids) == swarm.expected(_ids("hello"), 8)
        swarm.assert_free()

    await _run(swarm, body)
