"""Whole daemons with drafts: the same text and probabilities as without, and faster."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import Daemon, DaemonHandle
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.tasks.drafting.drafter import Drafter, Guess
from shoal.tasks.engine.interface import Sampling
from shoal.tasks.inference.gateway import GatewayEvent, GenerateRequest, Summary
from shoal.tasks.text.process import TextDelta

FAR = LinkSpec(PipeSpec(0.01, rate=5e6), PipeSpec(0.01, rate=5e6))
PROMPT = "Once upon a time, there was a little girl. She liked to play. One day, she"
SPLITS = {1: (6,), 2: (3, 6), 3: (2, 4, 6), 4: (1, 3, 4, 6)}
Said = list[tuple[str, float]]


async def swarm(world: World, splits: Sequence[int]) -> DaemonHandle:
    """Start a chain of daemons 20 ms apart, and return another one, which asks them."""
    first: list[DaemonHandle] = []
    for number, (start, stop) in enumerate(zip((0, *splits), splits, strict=False)):
        host = world.host(f"s{number}", link=FAR)
        daemon = await host.start(Daemon(bootstrap=first[:1], model="tiny", layers=(start, stop)))
        first.append(daemon)
    client = await world.host("client", link=FAR).start(Daemon(bootstrap=first[:1], engine=False))
    for daemon in first:
        await daemon.serving()
    for daemon in (*first, client):
        await daemon.until(lambda status: status["peers"] == len(splits))
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


@pytest.mark.parametrize("stages", SPLITS)
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
        )
    ]

    async def body() -> None:
        client = await swarm(world, SPLITS[stages])
        drafting = client.node.gateway._windows._drafting
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
            if right == 1.0:
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
    async with client.node.gateway._models.use("tiny") as model:
        return await model.text.encode(PROMPT)
