"""Chains of which some stages are replaced: the others keep their state, and the text is the same.

Stages of fakes: each position's output depends on all inputs before it.
"""

from collections.abc import Awaitable, Callable

import pytest
import trio

from shoal.tasks.inference.gateway import GatewayEvent, GenerateRequest, Routed
from shoal.tasks.inference.messages import Quiet
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
            # Before the head has computed a part of the prompt, it starts again.
            assert mended.computed(stage) <= whole + (len(PROMPT) if at < 0.2 else 4)
            assert not spare.engine.spans


@pytest.mark.trio
@pytest.mark.parametrize("victim", [1, 2, 3])
async def test_where_a_log_is_incomplete_earlier_stages_compute_again(
    autojump_clock: object, victim: int
) -> None:
    mended = Mended()
    for stage in mended.stages:
        stage.stage._budget.limit = 100

    async def deed() -> None:
        await mended.die(victim)

    await mended.run(deed, at=2.5)
    whole = len(PROMPT) + TOKENS
    for number, stage in enumerate(mended.stages):
        again = len(PROMPT) <= mended.computed(stage) - whole
        assert again is (number < victim) or number == victim


@pytest.mark.trio
async def test_a_crash_of_a_worker_is_mended_by_itself(autojump_clock: object) -> None:
    """Without spares: its daemon stays, and the others keep their state."""
    mended = Mended()
    mended.spares = []

    async def deed() -> None:
        await mended.stages[1].crash(start=0.5, load=1.0)

    await mended.run(deed, at=1.0)
    whole = len(PROMPT) + TOKENS
    assert all(mended.computed(mended.stages[number]) <= whole + 4 for number in (0, 2, 3))
    assert len(mended.routes) == 2


@pytest.mark.trio
async def test_stages_may_be_lost_one_after_the_other(autojump_clock: object) -> None:
    """A second stage is lost while the state of the first is rebuilt."""
    mended = Mended()
    for number, stage in enumerate(mended.stages):
        mended.spares.append(Node(mended.swarm, 80 + number, stage.parts))

    async def deed() -> None:
        await mended.die(2)
        await trio.sleep(0.1)
        mended.stages[2] = mended.spares[2]
        await mended.die(1, 2)

    await mended.run(deed, at=1.5)


@pytest.mark.trio
async def test_a_stage_that_reports_its_neighbours_again_and_again_is_left_out(
    autojump_clock: object,
) -> None:
    mended = Mended()
    liar = mended.stages[1]
    for number in range(4):
        mended.spares.append(Node(mended.swarm, 80 + number, mended.stages[2].parts))

    async def deed() -> None:
        link = liar.endpoint.link(mended.swarm.client.peer)
        assert link is not None
        for _ in range(6):
            sessions = list(liar.stage.table.open.values())
            if not sessions:
                break
            order = sessions[0].open
            lie = Quiet(order.session, order.epoch, sessions[0].next, True, True)
            link.deliver("session.quiet", lie.header())
            await trio.sleep(0.5)
        assert liar.stage.sessions == 0

    await mended.run(deed, at=0.5)
    assert len(mended.routes) <= 5


@pytest.mark.trio
async def test_a_stage_that_withholds_its_log_is_replaced(autojump_clock: object) -> None:
    mended = Mended()
    mended.stages[0].stage._changes._give = lambda *_: None  # type: ignore[method-assign]

    async def deed() -> None:
        await mended.die(1)

    await mended.run(deed, at=2.0)
    assert mended.spares[0].engine.spans and mended.spares[1].engine.spans


@pytest.mark.trio
@pytest.mark.parametrize(("at", "again"), [(1.0, False), (2.5, False), (1.5, True)])
async def test_what_a_stage_lied_is_not_found_behind_the_one_that_replaced_it(
    autojump_clock: object, at: float, again: bool
) -> None:
    """Stages cache under names that stand for the stages before them. With `again`, the stage
    behind the liar is replaced too."""
    mended, expected = Mended(), list[int]()
    liar, fresh = mended.stages[1].engine, mended.spares[1 : 2 + again]
    liar.row = lambda before, value: [value, 1, 2]  # type: ignore[method-assign]

    async def body(swarm: FakeSwarm) -> None:
        swarm.wire.delay = DELAY
        expected[:] = swarm.expected([ord(letter) for letter in PROMPT], TOKENS)
        async with trio.open_nursery() as nursery:
            for spare in fresh:
                await nursery.start(spare.stage.run)
            nursery.start_soon(mended.ask)
            await trio.sleep(at)
            swarm.nodes += fresh
            await mended.die(1)
            await trio.sleep(0.3)
            if again:
                await mended.die(2)
            while not mended.tokens:  # noqa: ASYNC110
                await trio.sleep(0.1)
            lied, mended.tokens = mended.tokens, ()
            await mended.ask()
            assert list(lied) != expected
            nursery.cancel_scope.cancel()

    with trio.fail_after(300):
        await mended.swarm.run(body)
    assert mended.routes[-1] == mended.routes[-2] and fresh[-1].peer in mended.routes[-1]
    assert list(mended.tokens) == expected
    assert [bool(node.engine.terms[0].names) for node in fresh] == [True, False][: len(fresh)]
