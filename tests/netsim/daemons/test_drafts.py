"""Whole daemons with drafts: the same text and probabilities as without, and faster."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import Daemon, DaemonHandle
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.tasks.drafting.drafter import Drafter, Guess
from shoal.tasks.engine.interface import Rules, Sampling
from shoal.tasks.inference.gateway import GatewayEvent, GenerateRequest, Summary
from shoal.tasks.inference.messages import SpanMessage, pack_tokens
from shoal.tasks.text.process import TextDelta
from shoal.transport.errors import LinkClosed
from tests.marks import in_ci

FAR = LinkSpec(PipeSpec(0.01, rate=5e6), PipeSpec(0.01, rate=5e6))
PROMPT = "Once upon a time, there was a little girl. She liked to play. One day, she"
SPLITS = {1: (6,), 2: (3, 6), 3: (2, 4, 6), 4: (1, 3, 4, 6)}
PLAIN = GenerateRequest("tiny", PROMPT, raw=True, max_tokens=60, logprobs=True, top=2)
RULES = Rules(((300, 1.0),), 1.2, 0.5, 0.1)
PEERS: dict[str, str] = {}
Said = list[tuple[str, float]]


async def swarm(world: World, splits: Sequence[int]) -> DaemonHandle:
    """Start a chain of daemons 20 ms apart, and return another one, which asks them."""
    first: list[DaemonHandle] = []
    for number, (start, stop) in enumerate(zip((0, *splits), splits, strict=False)):
        host = world.host(f"s{number}", link=FAR)
        daemon = await host.start(Daemon(bootstrap=first[:1], model="tiny", layers=(start, stop)))
        first.append(daemon)
        PEERS[host.name] = daemon.peer
    client = await world.host("client", link=FAR).start(Daemon(bootstrap=first[:1], engine=False))
    for daemon in first:
        await daemon.serving()
    for daemon in (*first, client):
        await daemon.until(lambda status: status["peers"] == len(splits))
    await trio.sleep(2)  # until the facts of the last stage have come to the client
    return client


async def answer(client: DaemonHandle, request: GenerateRequest) -> tuple[Summary, Said]:
    said: Said = []

    async def emit(event: GatewayEvent) -> None:
        if isinstance(event, TextDelta):
            said.extend((token.text, token.logprob) for token in event.tokens)
        await trio.lowlevel.checkpoint()

    return await client.node.gateway.generate(request, emit), said


def oracle(right: float, texts: Sequence[Sequence[int]]) -> Any:
    """Return a replacement of the drafter, which knows the answers, and errs now and then."""
    random = Random(3)

    def draft(drafter: Drafter, behind: Sequence[int], most: int) -> list[Guess]:
        own = list(drafter.own.tokens)
        known = len(own) + len(behind)
        for text in texts:
            if list(text[: len(own)]) == own:
                tokens = [each if right > random.random() else 7 for each in text[known:]]
                return [Guess(each, 9) for each in tokens[:most]]
        return []

    return draft


@pytest.mark.parametrize("stages", [1, 3, *in_ci(2, 4)])
def test_text_and_probabilities_are_the_same(stages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy and drawn, with a stop string, with few tokens, and several sessions at once."""
    world = World(5)
    requests = [
        GenerateRequest("tiny", PROMPT, raw=True, max_tokens=tokens, logprobs=True, top=2, **more)
        for tokens, more in (
            (60, dict[str, Any]()),
            (60, {"sampling": Sampling(1.0, 0, 0.95, seed=9)}),
            (60, {"sampling": Sampling(0.8, 20, 1.0, seed=4), "stop": (" the",)}),
            (7, {}),
            (40, {"rules": RULES}),
            (40, {"rules": RULES, "sampling": Sampling(1.0, seed=4)}),
        )
    ]

    async def body() -> None:
        client = await swarm(world, SPLITS[stages])
        drafting = client.node.gateway.windows.drafting
        drafting.on = False
        plain = [await answer(client, request) for request in requests]
        drafting.on = True
        ids = await ids_of(client)
        for right in (1.0, 0.8, 0.2):
            texts = [[*ids, *summary.token_ids, 1, 2] for summary, _ in plain]
            with monkeypatch.context() as patch:
                patch.setattr(Drafter, "draft", oracle(right, texts))
                found = [await answer(client, request) for request in requests]
                together: list[Any] = [None] * len(requests)
                async with trio.open_nursery() as nursery:
                    for place, request in enumerate(requests):
                        nursery.start_soon(put, together, place, client, request)
            for (without, said), drafted in zip(plain * 2, [*found, *together], strict=True):
                assert same(drafted[0]) == same(without)
                assert drafted[1] == said
            counts = [summary.drafts for summary, _ in found]
            assert sum(count.right for count in counts) > 0
            if right == 1.0 and stages > 1:  # one stage is faster than the way to it
                assert found[0][0].tokens_per_s > 1.5 * plain[0][0].tokens_per_s
        assert client.node.gateway.sessions == 0

    async def put(into: list[Any], at: int, client: DaemonHandle, request: GenerateRequest) -> None:
        into[at] = await answer(client, request)

    async def timed() -> None:
        with trio.fail_after(600):
            await body()

    world.run(timed)


def same(summary: Summary) -> tuple[Any, ...]:
    return summary.text, summary.token_ids, summary.reason


async def ids_of(client: DaemonHandle) -> list[int]:
    async with client.node.compute.models.use("tiny") as model:
        return await model.text.encode(PROMPT)


def run(body: Callable[[World], Awaitable[None]]) -> None:
    world = World(5)

    async def timed() -> None:
        with trio.fail_after(600):
            await body(world)

    world.run(timed)


async def undrafted(client: DaemonHandle) -> tuple[Summary, Said]:
    drafting = client.node.gateway.windows.drafting
    drafting.on = False
    plain = await answer(client, PLAIN)
    drafting.on = True
    return plain


def test_a_stage_that_is_lost_in_the_middle_of_windows_costs_nothing_of_the_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body(world: World) -> None:
        client = await swarm(world, SPLITS[3])
        other = Daemon(bootstrap=[client], model="tiny", layers=(2, 4))
        replica = await world.host("other", link=FAR).start(other)
        PEERS["other"] = replica.peer
        await replica.serving()
        await client.until(lambda status: status["peers"] == 4)
        plain, said = await undrafted(client)
        texts = [[*await ids_of(client), *plain.token_ids, 1, 2]]
        monkeypatch.setattr(Drafter, "draft", oracle(0.6, texts))
        for after in (0.2, 0.45):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lose, world, client, after)
                summary, drafted = await answer(client, PLAIN)
            assert same(summary) == same(plain)
            assert drafted == said
            assert summary.drafts.right > 0
            await trio.sleep(60)

    run(body)


async def lose(world: World, client: DaemonHandle, after: float) -> None:
    """Crash the stage in the middle of the chain, and start it again later."""
    await trio.sleep(after)
    ((drafted, _),) = client.node.gateway.runs.runs.values()
    (lost,) = (name for name, peer in PEERS.items() if peer == drafted.peers[1])
    await world.hosts[lost].crash()
    await trio.sleep(5)
    await world.hosts[lost].restart()


def test_hostile_windows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the gateway to the first stage, while an answer is generated."""

    async def body(world: World) -> None:
        client = await swarm(world, SPLITS[3])
        plain, said = await undrafted(client)
        monkeypatch.setattr(Drafter, "draft", lambda *_: [])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(harass, client)
            summary, drafted = await answer(client, PLAIN)
            nursery.cancel_scope.cancel()
        assert same(summary) == same(plain)
        assert drafted == said

    run(body)


async def harass(client: DaemonHandle) -> None:
    """Send windows that are too long, unknown, far away, stale or of branches that do not exist."""
    random, runs = Random(1), client.node.gateway.runs.runs
    while True:
        await trio.sleep(0.01)
        for session, _ in runs.values():
            start = random.choice([0, 1, 30, 31, 40, 60, 80, 10**6])
            tokens = [
                random.choice([0, 5, 2047, 2048, 2**32 - 1])
                for _ in range(random.choice([1, 3, 64, 65]))
            ]
            span = SpanMessage(
                session.session,
                session.epoch,
                random.choice([0, 0, 0, 1, 63]),
                start,
                random.choice([1, len(tokens)]),
                True,
                0.0,
                draft=True,
                branch=random.choice([0, 20, 35, 50, 10**6]),
            )
            with suppress(LinkClosed):
                peer = random.choice(session.peers)
                client.node.network.courier.post(
                    peer, "session.span", span.header(), pack_tokens(tokens)
                )
