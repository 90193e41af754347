"""Chains of which some stages are replaced: the others keep their state, and the text is the same.

Stages of fakes: each position's output depends on all inputs before it.
"""

from collections.abc import Awaitable, Callable

import pytest
import trio

from shoal.tasks.inference.gateway import GatewayEvent, GenerateRequest, Routed
from tests.tasks.fake_swarm import FakeSwarm, Node

PROMPT = "the quick brown fox jumps over the lazy dog"
TOKENS = 30
DELAY = 0.02


class Mended:
    """Four stages, and a spare for each."""

    def __init__(self, splits: tuple[int, ...] = (2, 4, 6, 8)) -> None:
        self.swarm = FakeSwarm(splits)
        self.stages = self.swarm.stages
        self.spares = [
            Node(self.swarm, 60 + number, stage.parts) for number, stage in enumerate(self.stages)
        ]
        self.routes: list[tuple[str, ...]] = []
        self.tokens: tuple[int, ...] = ()
        self.made = 0

    async def run(self, deed: Callable[[], Awaitable[None]], *, at: float) -> None:
        """Ask, and do `deed` after `at` seconds."""

        async def body(_: FakeSwarm) -> None:
            self.swarm.wire.delay = DELAY
            async with trio.open_nursery() as nursery:
                for spare in self.spares:
                    await nursery.start(spare.stage.run)
                nursery.start_soon(self.ask)
                await trio.sleep(at)
                self.swarm.nodes += self.spares
                await deed()
                while not self.tokens:  # noqa: ASYNC110
                    await trio.sleep(0.1)
                await trio.sleep(1)
                nursery.cancel_scope.cancel()

        with trio.fail_after(300):
            await self.swarm.run(body)
        expected = self.swarm.expected([ord(letter) for letter in PROMPT], TOKENS)
        assert list(self.tokens) == expected

    async def ask(self) -> None:
        request = GenerateRequest(model="m", prompt=PROMPT, raw=True, max_tokens=TOKENS)
        summary = await self.swarm.client.gateway.generate(request, self._emit)
        self.tokens = summary.token_ids

    async def _emit(self, event: GatewayEvent) -> None:
        await trio.lowlevel.checkpoint()
        if isinstance(event, Routed):
            self.routes.append(tuple(hop.peer for hop in event.stages))

    async def die(self, *victims: int) -> None:
        """End nodes: their links are lost at once."""
        await trio.lowlevel.checkpoint()
        dead = [self.stages[number] for number in victims]
        for node in dead:
            del self.swarm.wire.endpoints[node.peer]
        for node in dead:
            for endpoint in list(self.swarm.wire.endpoints.values()):
                endpoint.lose(node.peer)

    def computed(self, node: Node) -> int:
        """Return the number of positions that a node has computed in all."""
        return sum(span.count for span in node.engine.spans)


@pytest.mark.trio
@pytest.mark.parametrize("victims", [(0,), (1,), (2,), (3,), (0, 1), (1, 2), (2, 3), (1, 3)])
@pytest.mark.parametrize("at", [0.05, 0.2, 1.0, 2.5])
async def test_only_lost_stages_compute_again(
    autojump_clock: object, victims: tuple[int, ...], at: float
) -> None:
    mended = Mended()

    async def deed() -> None:
        await mended.die(*victims)

    await mended.run(deed, at=at)
    whole = len(PROMPT) + TOKENS
    for number, (stage, spare) in enumerate(zip(mended.stages, mended.spares, strict=True)):
        if number in victims:
            assert len(PROMPT) <= mended.computed(spare) <= whole + 4
        else:
            # Before the head has computed a part of the prompt, it begins anew.
            assert mended.computed(stage) <= whole + (len(PROMPT) if at < 0.2 else 4)
            assert not spare.engine.spans
