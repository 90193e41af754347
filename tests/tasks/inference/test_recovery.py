"""Tests of answers whose stages crash: a pause, the same tokens, and no endless repetition."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio

from shoal.tasks.defaults import (
    CRASHES,
    CRASHES_IN_ALL,
    LOAD_PATIENCE,
    MEMORY_LOOK,
    MEMORY_PATIENCE,
    RESUME_PATIENCE,
    RETURN_LOOK,
    RETURN_PATIENCE,
)
from shoal.tasks.errors import NoRoute, SessionError, StageLost
from shoal.tasks.inference.gateway import (
    GatewayEvent,
    GenerateRequest,
    Routed,
    Summary,
    TextDelta,
)
from shoal.tasks.inference.surviving.recovery import Crashes, patience, returning
from tests.marks import in_ci
from tests.tasks.fake_swarm import FakeSwarm, Node, peer_of

PROMPT = "hello"
IDS = [ord(letter) for letter in PROMPT]
TOKENS = 8
DELAY = 0.01  # seconds per message and per computed span
BACK = 3.0  # seconds until a crashed stage serves again


class Asking:
    """A swarm with one request, what its client gets, and when."""

    def __init__(self, splits: Sequence[int] = (2, 4, 6), *, client_serves: bool = False) -> None:
        self.swarm = FakeSwarm(splits, client_serves=client_serves)
        self.swarm.wire.delay = DELAY
        self.stages = self.swarm.stages
        self.text = ""
        self.routes: list[Routed] = []
        self.summary: Summary | None = None
        self.error: SessionError | NoRoute | None = None
        self.took = 0.0
        self.first = trio.Event()

    async def ask(self, **changes: Any) -> None:
        settings: dict[str, Any] = {"model": "m", "raw": True, "max_tokens": TOKENS}
        request = GenerateRequest(prompt=PROMPT, **settings | changes)
        began = trio.current_time()
        try:
            self.summary = await self.swarm.client.gateway.generate(request, self._emit)
        except (SessionError, NoRoute) as error:
            self.error = error
        self.took = trio.current_time() - began

    async def _emit(self, event: GatewayEvent) -> None:
        await trio.lowlevel.checkpoint()
        if isinstance(event, Routed):
            self.routes.append(event)
        if isinstance(event, TextDelta):
            self.text += event.text
            self.first.set()

    async def run(self, meanwhile: Callable[[], Awaitable[None]], **changes: Any) -> None:
        """Run the request and `meanwhile` together. Afterwards nothing of it may be left."""

        async def body(_: FakeSwarm) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: self.ask(**changes))
                await meanwhile()
            await trio.sleep(1)
            self.swarm.assert_free()

        with trio.fail_after(10_000):
            await self.swarm.run(body)

    def is_right(self, count: int = TOKENS) -> bool:
        """Return whether the client got the whole answer, each token once."""
        expected = self.swarm.expected(IDS, count)
        summary, text = self.summary, "".join(f"{token} " for token in expected) + "."
        assert self.error is None, self.error
        return (
            summary is not None
            and list(summary.token_ids) == expected
            and self.text == summary.text == text
        )


async def undisturbed(splits: Sequence[int]) -> float:
    """Return how many seconds the answer takes without a crash."""
    asking = Asking(splits)
    await asking.run(trio.lowlevel.checkpoint)
    assert asking.is_right()
    return asking.took


@pytest.mark.trio
@pytest.mark.parametrize(
    ("splits", "crashed"),
    [
        ((6,), (0,)),
        ((2, 4, 6), (1,)),
        *in_ci(((2, 4, 6), (0,)), ((2, 4, 6), (2,)), ((2, 4, 6), (0, 2))),
    ],
)
async def test_a_crash_at_any_message_costs_a_pause(
    autojump_clock: object, splits: tuple[int, ...], crashed: tuple[int, ...]
) -> None:
    """Also of two stages at once, with hidden states on the way, and after the last token."""
    took = await undisturbed(splits)
    step = 0
    while step * DELAY < took + 2 * DELAY:
        asking = Asking(splits)

        async def meanwhile(asking: Asking = asking, at: float = step * DELAY) -> None:
            await trio.sleep(at)
            async with trio.open_nursery() as nursery:
                for index in crashed:
                    nursery.start_soon(asking.stages[index].crash)

        await asking.run(meanwhile)
        assert asking.is_right(), step
        assert asking.took < took * 2 + BACK + 3 * RETURN_LOOK, step
        step += 1


@pytest.mark.trio
@pytest.mark.parametrize("second", [0, 1, 2])
@pytest.mark.parametrize("later", [0.7, 1.5, 3.05, 3.55, 3.58, 3.65])
async def test_a_second_crash_while_the_first_is_repaired(
    autojump_clock: object, second: int, later: float
) -> None:
    """While the worker starts, while it loads, and while the tokens are computed again."""
    asking = Asking()

    async def meanwhile() -> None:
        await trio.sleep(0.3)
        async with trio.open_nursery() as nursery:
            if second == 1 and later < BACK:  # the same worker, which starts once more
                asking.stages[1].engine.lose_all()
            else:
                nursery.start_soon(asking.stages[1].crash)
            await trio.sleep(later)
            nursery.start_soon(asking.stages[second].crash)

    await asking.run(meanwhile)
    assert asking.is_right()
    assert asking.took < 2 * BACK + later + 2


@pytest.mark.trio
@pytest.mark.parametrize("client_serves", [False, True])
async def test_the_other_stages_are_not_asked_while_one_loads(
    autojump_clock: object, client_serves: bool
) -> None:
    """They keep what they have, and would else reserve memory again and again."""
    asking = Asking(client_serves=client_serves)
    before = 0

    async def meanwhile() -> None:
        nonlocal before
        await trio.sleep(0.3)
        before = asking.swarm.opens([asking.stages[2]])
        await asking.stages[1].crash(load=20)

    await asking.run(meanwhile)
    assert asking.is_right()
    assert asking.swarm.opens([asking.stages[2]]) == before
    assert len(asking.routes) == 2


@pytest.mark.trio
async def test_a_replica_takes_over_without_a_pause(autojump_clock: object) -> None:
    took = await undisturbed((2, 4, 6))
    asking = Asking()
    spare = Node(asking.swarm, 77, asking.stages[1].parts)

    async def meanwhile() -> None:
        await trio.sleep(0.3)
        asking.swarm.nodes.append(spare)
        assert asking.swarm.wire.nursery is not None
        await asking.swarm.wire.nursery.start(spare.stage.run)
        await asking.stages[1].crash()

    await asking.run(meanwhile)
    assert asking.is_right()
    assert asking.took < 2 * took
    assert [route.stages[1].peer for route in asking.routes] == [asking.stages[1].peer, spare.peer]


@pytest.mark.trio
async def test_a_new_request_waits_for_a_stage_that_loads(autojump_clock: object) -> None:
    asking = Asking()

    async def body(_: FakeSwarm) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asking.stages[2].crash)
            await trio.sleep(0.1)
            await asking.ask()
        assert asking.is_right() and BACK - 1 < asking.took < BACK + 2

    await asking.swarm.run(body)


@pytest.mark.trio
async def test_a_stage_that_is_too_busy_with_loading_to_be_heard_is_waited_for(
    autojump_clock: object,
) -> None:
    asking = Asking()
    endpoint = asking.swarm.client.endpoint

    async def meanwhile() -> None:
        await trio.sleep(0.3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: asking.stages[1].crash(load=30))
            await trio.sleep(2)
            endpoint.hush(asking.stages[1].peer)
            await trio.sleep(10)
            endpoint.hear(asking.stages[1].peer)

    await asking.run(meanwhile)
    assert asking.is_right()


@pytest.mark.trio
async def test_the_client_may_leave_while_it_waits(autojump_clock: object) -> None:
    asking = Asking()

    async def body(swarm: FakeSwarm) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asking.ask)
            await asking.first.wait()
            nursery.start_soon(asking.stages[1].crash, 1.0, 1000.0)
            await trio.sleep(30)
            nursery.cancel_scope.cancel()
        assert trio.current_time() < 40
        await trio.sleep(1)
        swarm.assert_free()

    await asking.swarm.run(body)


class Turns:
    """Turn of a job that ends when `over` is set to True, and comes back when `free` is set."""

    def __init__(self) -> None:
        self.over = False
        self.waits = 0
        self.free = trio.Event()

    def is_over(self) -> bool:
        return self.over

    async def come(self) -> None:
        self.waits += 1
        await self.free.wait()
        self.over = False


@pytest.mark.trio
@pytest.mark.parametrize("wait", [1, 60])
async def test_a_job_yields_while_it_waits(autojump_clock: object, wait: float) -> None:
    """Its turn may come again before the stage is back, and after that."""
    asking, turn = Asking(), Turns()

    async def meanwhile() -> None:
        await trio.sleep(0.3)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(asking.stages[1].crash, 1.0, 20.0)
            await trio.sleep(2)
            turn.over = True
            await trio.sleep(2 * RETURN_LOOK + wait)
            assert turn.waits == 1
            turn.free.set()

    await asking.run(meanwhile, turn=turn, job="cd" * 32)
    assert asking.is_right() and turn.waits == 1


@pytest.mark.trio
@pytest.mark.parametrize("replicas", [1, 4])
async def test_a_poisonous_request_is_not_repeated_without_end(
    autojump_clock: object, replicas: int
) -> None:
    asking = Asking()
    nodes = [Node(asking.swarm, 70 + n, asking.stages[1].parts) for n in range(1, replicas)]
    crashes = 0

    async def meanwhile() -> None:
        asking.swarm.nodes += nodes
        nursery = asking.swarm.wire.nursery
        assert nursery is not None
        for node in nodes:
            await nursery.start(node.stage.run)
        for node in (asking.stages[1], *nodes):

            def crash(node: Node = node) -> None:
                nonlocal crashes
                crashes += 1
                nursery.start_soon(node.crash)

            node.engine.poison, node.engine.crash = len(IDS) + 2, crash

    await asking.run(meanwhile)
    error = asking.error
    assert isinstance(error, SessionError) and error.code == "worker-crashed"
    assert f"{CRASHES} times" in error.message and "may be the cause" in str(error.hint)
    assert crashes == CRASHES


@pytest.mark.trio
@pytest.mark.parametrize("replicas", [1, 2])
async def test_stages_that_preempt_without_end_are_given_up_and_asked_rarely(
    autojump_clock: object, replicas: int
) -> None:
    """A stage may lie about it. It ends each session as soon as the prompt arrives."""
    asking = Asking((6,))
    node = Node(asking.swarm, 70, asking.stages[0].parts)

    async def meanwhile() -> None:
        nursery = asking.swarm.wire.nursery
        assert nursery is not None
        await nursery.start(node.stage.run)
        asking.swarm.nodes += [node][: replicas - 1]
        for each in (asking.stages[0], node):
            each.engine.poison = 0
            each.engine.crash = each.engine.preempt_all

    await asking.run(meanwhile)
    error = asking.error
    assert isinstance(error, SessionError) and error.code == "preempted" and error.hint
    assert RESUME_PATIENCE <= asking.took < RESUME_PATIENCE + 2 * MEMORY_LOOK
    assert asking.swarm.opens([asking.stages[0], node]) < 2 * RESUME_PATIENCE / MEMORY_LOOK


@pytest.mark.trio
async def test_a_preempted_request_continues_at_once_and_may_be_preempted_often(
    autojump_clock: object,
) -> None:
    asking = Asking((6,))
    engine = asking.stages[0].engine
    times = 0

    def crash() -> None:
        nonlocal times
        times += 1
        engine.poison = len(IDS) + times + 1
        engine.preempt_all()

    async def meanwhile() -> None:
        await trio.lowlevel.checkpoint()
        engine.poison, engine.crash = len(IDS) + 1, crash

    await asking.run(meanwhile, max_tokens=40)
    assert asking.is_right(40) and times > CRASHES_IN_ALL
    assert asking.took < 40 * 5 * DELAY, "no pauses while the answer gets further"


@pytest.mark.trio
async def test_a_request_that_gets_further_may_see_more_crashes(autojump_clock: object) -> None:
    asking = Asking()

    async def meanwhile() -> None:
        for _ in range(CRASHES + 2):
            seen = asking.text
            while asking.text == seen:  # noqa: ASYNC110
                await trio.sleep(DELAY)
            await asking.stages[1].crash()

    await asking.run(meanwhile, max_tokens=40)
    assert asking.is_right(40)


@pytest.mark.trio
@pytest.mark.parametrize("loads", [False, True])
async def test_patience_ends(autojump_clock: object, loads: bool) -> None:
    asking = Asking()

    async def meanwhile() -> None:
        await trio.sleep(0.3)
        with trio.move_on_after(2000):
            await asking.stages[1].crash(*(1, 5000) if loads else (5000, 1))

    await asking.run(meanwhile)
    error, most = asking.error, RETURN_PATIENCE + LOAD_PATIENCE * loads
    assert isinstance(error, SessionError) and error.hint
    assert error.code == ("no-shard" if loads else "worker-crashed")
    assert f"still after {most:.0f} s" in error.message
    assert most < asking.took < most + 2


@pytest.mark.trio
@pytest.mark.parametrize("news", [0.0, 5.0])
async def test_a_node_that_moved_away_is_not_waited_for(
    autojump_clock: object, news: float
) -> None:
    """The news that it serves other layers may arrive later than its message about the session."""
    asking = Asking()

    async def meanwhile() -> None:
        await trio.sleep(0.3)
        asking.stages[1].stage.withdraw()
        await trio.sleep(news)
        asking.stages[1].parts = None

    await asking.run(meanwhile)
    assert isinstance(asking.error, StageLost) and asking.took < news + 2


def test_refusals_that_pass() -> None:
    one, two = peer_of(1), peer_of(2)
    loading, started, full, strange = (
        SessionError(code, "")
        for code in ("no-shard", "worker-crashed", "no-memory", "unreachable")
    )
    assert returning({one: loading, two: full}) == {one, two}
    assert returning({one: loading, two: strange}) == {one}
    assert patience({one: loading}, False) == RETURN_PATIENCE + LOAD_PATIENCE
    assert patience({one: loading, two: started}, False) == RETURN_PATIENCE
    assert patience({one: loading, two: full}, False) == MEMORY_PATIENCE
    assert patience({one: loading, two: full}, True) == RESUME_PATIENCE


def test_crashes_are_counted_by_progress_and_in_all() -> None:
    error = StageLost(peer_of(1), "it is lost", cause="worker-crashed")
    crashes, count = Crashes(), 0
    with pytest.raises(SessionError, match=f"{CRASHES_IN_ALL} times") as raised:
        for made in range(100):
            count += 1
            crashes.note(error, made, 0.0)
    assert count == CRASHES_IN_ALL and raised.value.code == "worker-crashed"
