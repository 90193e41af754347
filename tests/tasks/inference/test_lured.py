"""Members that claim a thousand times their speed: an answer tries one of them, and comes back."""

import pytest
import trio

from shoal.tasks.engine.interface import Span
from shoal.tasks.inference.choice import Choice
from shoal.tasks.inference.conversation import standing
from shoal.tasks.inference.gateway import GatewayEvent, GenerateRequest, Routed
from shoal.tasks.inference.generation import Model
from shoal.tasks.routing.beliefs import Times
from shoal.tasks.routing.paths import Hop
from tests.tasks.fake_swarm import ROOT, FakeSwarm, Node

TOKENS = 300
HONEST_S, LIAR_S = 0.1, 0.3  # of each step
CLAIMED = Times(LIAR_S / 1000, LIAR_S / 1000)
JOIN_S = 3.0


class Lured:
    """Two honest stages, and members that join later, claim to be faster than the second one, and
    take longer."""

    def __init__(self, patch: pytest.MonkeyPatch, liars: int) -> None:
        self.swarm = FakeSwarm((2, 4))
        self.honest = self.swarm.stages[1]
        self.liars = [Node(self.swarm, 80 + number, self.honest.parts) for number in range(liars)]
        self.swarm.nodes += self.liars
        self.swarm.strangers += self.liars
        for node in (*self.swarm.stages, *self.liars):
            assert node.parts is not None
            node.serve(node.parts, kv_heads=1)
        self.routes: list[tuple[str, ...]] = []
        self.within_s = TOKENS * 2 * HONEST_S + 5  # it leaves the liar before MOVE_AGAIN
        self.leaves_s = 1e9  # when the second stage is no member any more
        patch.setattr(standing, "STANDBY_WORTH", 9.0)  # seconds: nothing here takes long to rebuild
        patch.setattr(Choice, "knows", lambda _, chain: True)
        patch.setattr(Choice, "_claimed", lambda _, members, model, hop: self._claimed(model, hop))

    def _claimed(self, model: Model, hop: Hop) -> Times:
        lies = any(hop.peer == liar.peer for liar in self.liars)
        return CLAIMED if lies else Times(HONEST_S, HONEST_S)

    async def answer(self) -> list[str]:
        """Answer once, and return the second stages in their order."""
        self.routes.clear()
        with trio.fail_after(self.within_s):
            await self.swarm.run(self._run)
        return [route[1] for route in self.routes]

    async def _run(self, _: FakeSwarm) -> None:
        async with trio.open_nursery() as self.nursery:
            for node in (*self.swarm.stages, *self.liars):
                self._slow_down(node, LIAR_S if node in self.liars else HONEST_S)
            self.nursery.start_soon(self._join)
            request = GenerateRequest("m", "hello", raw=True, max_tokens=TOKENS)
            summary = await self.swarm.client.gateway.generate(request, self._emit)
            self.nursery.cancel_scope.cancel()
        expected = self.swarm.expected([ord(letter) for letter in "hello"], TOKENS)
        assert list(summary.token_ids) == expected

    async def _join(self) -> None:
        await trio.sleep(JOIN_S)
        await self.swarm._introduce()
        await trio.sleep(self.leaves_s - JOIN_S)
        self.swarm.strangers.append(self.honest)

    async def _emit(self, event: GatewayEvent) -> None:
        await trio.lowlevel.checkpoint()
        if isinstance(event, Routed):
            self.routes.append(tuple(hop.peer for hop in event.stages))

    def _slow_down(self, node: Node, seconds: float) -> None:
        engine, submit = node.engine, node.engine.submit

        async def later(span: Span) -> None:
            await trio.sleep(seconds)
            if span.session in engine.states:
                submit(span)

        setattr(engine, "submit", lambda span: self.nursery.start_soon(later, span))  # noqa: B010

    def slower(self, node: Node) -> float:
        """Return how much slower than its claim the gateway believes a second stage to be."""
        assert node.parts is not None
        choice = self.swarm.client.gateway.choice
        return choice.slower(node.peer, ROOT, node.parts, self._claim_of(node).token_s)

    def _claim_of(self, node: Node) -> Times:
        return CLAIMED if node in self.liars else Times(HONEST_S, HONEST_S)


@pytest.mark.trio
@pytest.mark.parametrize("liars", [1, 3])
async def test_an_answer_leaves_a_liar_and_tries_no_other(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch, liars: int
) -> None:
    lured = Lured(monkeypatch, liars)
    first, tried, last = await lured.answer()
    assert first == last == lured.honest.peer != tried


@pytest.mark.trio
async def test_what_an_answer_measured_of_a_liar_is_believed_by_the_next_one(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    lured = Lured(monkeypatch, 1)
    await lured.answer()
    assert lured.slower(lured.liars[0]) > 300
    assert lured.slower(lured.honest) < 1.5


@pytest.mark.trio
async def test_an_answer_does_not_return_to_a_stage_that_is_gone(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    lured = Lured(monkeypatch, 1)
    lured.leaves_s, lured.within_s = 6.0, TOKENS * 2 * LIAR_S
    first, last = await lured.answer()
    assert first == lured.honest.peer != last
