"""A stage that answers just before each deadline is replaced, although it is never silent."""

import pytest
import trio

from shoal.tasks.engine.interface import Span
from shoal.tasks.inference.conversation import replacing
from shoal.tasks.inference.gateway import GatewayEvent, GenerateRequest, Routed
from tests.tasks.fake_swarm import FakeSwarm, Node

TOKENS = 40
SLOW_S = 0.9  # of each span, below the least deadline


class Crawl:
    """Two stages and a spare of the second. The one that is chosen first is slow, or both are."""

    def __init__(self, *, both: bool) -> None:
        self.swarm = FakeSwarm((2, 4))
        second = self.swarm.stages[1]
        self.replicas = [second, Node(self.swarm, 77, second.parts)]
        self.swarm.nodes.append(self.replicas[1])
        self.both = both
        self.routes: list[tuple[str, ...]] = []
        self.seconds = 0.0

    async def run(self) -> None:
        with trio.fail_after(200):
            await self.swarm.run(self._run)

    async def _run(self, _: FakeSwarm) -> None:
        self.swarm.wire.delay = 0.01
        began = trio.current_time()
        async with trio.open_nursery() as self.nursery:
            request = GenerateRequest("m", "hello", raw=True, max_tokens=TOKENS)
            summary = await self.swarm.client.gateway.generate(request, self._emit)
            self.seconds = trio.current_time() - began
            self.nursery.cancel_scope.cancel()
        expected = self.swarm.expected([ord(letter) for letter in "hello"], TOKENS)
        assert list(summary.token_ids) == expected

    async def _emit(self, event: GatewayEvent) -> None:
        await trio.lowlevel.checkpoint()
        if isinstance(event, Routed):
            self.routes.append(tuple(hop.peer for hop in event.stages))
            for node in self.replicas if len(self.routes) == 1 else ():
                if self.both or node.peer in self.routes[0]:
                    self._slow_down(node)

    def _slow_down(self, node: Node) -> None:
        engine, submit = node.engine, node.engine.submit

        async def later(span: Span) -> None:
            await trio.sleep(SLOW_S)
            if span.session in engine.states:
                submit(span)

        def slowly(span: Span) -> None:
            self.nursery.start_soon(later, span)

        setattr(engine, "submit", slowly)  # noqa: B010


@pytest.mark.trio
async def test_a_stage_that_crawls_is_replaced(autojump_clock: object) -> None:
    crawl = Crawl(both=False)
    await crawl.run()
    assert len(crawl.routes) == 2 and crawl.routes[0][1] not in crawl.routes[1]
    assert crawl.seconds < TOKENS * SLOW_S / 2


@pytest.mark.trio
async def test_an_answer_goes_on_if_all_replicas_crawl(autojump_clock: object) -> None:
    crawl = Crawl(both=True)
    await crawl.run()
    assert len(crawl.routes) == 2, "each stage is left once at most"
    assert crawl.seconds < TOKENS * (SLOW_S + 0.2) + 5


@pytest.mark.trio
async def test_an_answer_leaves_few_stages_that_crawl(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replacing, "CRAWL_MOVES", 0)
    crawl = Crawl(both=False)
    await crawl.run()
    assert len(crawl.routes) == 1
