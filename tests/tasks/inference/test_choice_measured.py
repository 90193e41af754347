"""Measurements of whole chains at a gateway."""

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from shoal.tasks.engine.interface import Parts
from shoal.tasks.inference.gateway import GenerateRequest, Routed
from shoal.tasks.inference.generation import GenerationRun, RunTimes
from shoal.tasks.routing.defaults import MEASURED_LEAST, MEASURED_TOKENS
from shoal.tasks.routing.measured import MeasuredModel
from shoal.tasks.routing.paths import Hop
from shoal.transport.identity import PeerId
from tests.tasks.fake_swarm import ROOT, FakeSwarm
from tests.tasks.inference.test_standbys import NoTurn

DELAY = 0.05


def times(*gaps: float) -> RunTimes:
    found, now = RunTimes(0.0), 1.0
    for gap in (0.0, *gaps):
        now += gap
        found.note(now)
    return found


def test_the_latest_tokens_count_and_not_those_before_a_better_path() -> None:
    assert times(*[1.0] * 40, *[0.1] * MEASURED_TOKENS).latest_s == pytest.approx(0.1)
    assert times(*[0.1] * (MEASURED_LEAST - 1)).latest_s == 0.0
    assert times(*[0.1] * MEASURED_LEAST).latest_s == pytest.approx(0.1)


@pytest.mark.parametrize("rounds, expected", [(0.0, 0.1), (0.25, 0.25), (0.01, 0.1)])
def test_right_drafts_do_not_make_a_chain_look_faster(rounds: float, expected: float) -> None:
    run = GenerationRun(b"s" * 16, (), [1], 200, 0.0)
    run.times = times(*[0.1] * 20)
    run.speculation = SimpleNamespace(round_s=rounds)  # type: ignore[assignment]
    assert run.round_s == run.token_s == pytest.approx(expected)


async def measured_after(**more: Any) -> tuple[MeasuredModel, tuple[Hop, ...]]:
    """Return what a gateway has measured after an answer, and the chain of the answer."""
    swarm, routes = FakeSwarm((4, 8)), list[tuple[Hop, ...]]()

    async def emit(event: object) -> None:
        await trio.lowlevel.checkpoint()
        if isinstance(event, Routed):
            routes.append(event.stages)

    async def body(_: FakeSwarm) -> None:
        swarm.wire.delay = DELAY
        request = GenerateRequest("m", "hello", raw=True, max_tokens=MEASURED_TOKENS + 9, **more)
        await swarm.client.gateway.generate(request, emit)

    with trio.fail_after(100):
        await swarm.run(body)
    return swarm.client.gateway.choice.router.measured.of(ROOT), routes[0]


@pytest.mark.trio
async def test_an_answer_teaches_the_time_of_its_chain(autojump_clock: object) -> None:
    measured, route = await measured_after()
    assert measured.latest() == [route]
    assert 2 * DELAY <= measured.chain_s(route, 9.0, 0.0) < 6 * DELAY


@pytest.mark.trio
async def test_jobs_teach_nothing_of_chains(autojump_clock: object) -> None:
    """Many of them are answered at once, and each takes longer for that."""
    measured, _ = await measured_after(turn=NoTurn(), job="ab" * 32)
    assert measured.latest() == []


@pytest.mark.trio
async def test_a_stage_that_is_no_member_any_more_teaches_nothing(autojump_clock: object) -> None:
    """Nothing is predicted of it, so the others would count for what it took."""
    swarm, model = FakeSwarm((4, 8)), SimpleNamespace(root=ROOT, arch=None)

    async def body(_: FakeSwarm) -> None:
        await trio.lowlevel.checkpoint()
        first, last = Parts(True, 0, 4, False), Parts(False, 4, 8, True)
        own = Hop(swarm.client.peer, first, "float32")
        for peer in (PeerId("gone"), swarm.stages[1].peer):
            route = own, Hop(peer, last, "float32")
            run = GenerationRun(b"s" * 16, route, [1], 200, 0.0)
            run.times = times(*[0.1] * 20)
            choice = swarm.client.gateway.choice
            choice.measure(run, model)  # type: ignore[arg-type]
            known.append(len(choice.router.measured.of(ROOT).latest()))

    known = list[int]()
    await swarm.run(body)
    assert known == [0, 1]
