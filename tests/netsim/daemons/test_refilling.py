"""An answer waits while another node loads the layers of a stage that died without a replica."""

from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.node import defaults as node_defaults
from shoal.tasks.errors import StageLost
from shoal.tasks.inference.gateway import GenerateRequest, TextDelta
from shoal.tasks.inference.generation import Awaited, GatewayEvent, Routed, Summary
from tests.marks import in_ci

MIB = 2**20
PROMPT = "Once upon a time"
TOKENS = 300
FAR = LinkSpec(PipeSpec(0.005, rate=5e6), PipeSpec(0.005, rate=5e6))


class Fleet:
    """Nodes that share the model by themselves, and a gateway without an engine."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.nodes: list[DaemonHandle] = []
        self.events: list[GatewayEvent] = []
        self.times: list[float] = []  # when text came
        self.text = ""

    async def start(self, count: int) -> None:
        for number in range(count):
            more: dict[str, Any] = {"bootstrap": self.nodes[:1]} if self.nodes else {}
            host = self.world.host(f"n{number}", link=FAR)
            self.nodes.append(await host.start(memory=10 * MIB, **more))
            await trio.sleep(3)
        self.gateway = await self.world.host("gateway").start(
            bootstrap=self.nodes[:1], engine=False
        )
        # With guesses from the answer before, a second one would end before its stage is lost.
        self.gateway.node.compute.gateway.drafting.on = False
        for node in self.nodes:
            await node.serving()
        await self.gateway.until(lambda status: status["peers"] == count)
        await trio.sleep(2)

    async def ask(self) -> Summary:
        found: Summary = await self.gateway.host.run(self._ask)
        return found

    async def _ask(self) -> Summary:
        request = GenerateRequest(model="tiny", prompt=PROMPT, max_tokens=TOKENS)
        found: Summary = await self.gateway.node.gateway.generate(request, self._emit)
        return found

    async def _emit(self, event: GatewayEvent) -> None:
        await trio.lowlevel.checkpoint()
        self.events.append(event)
        if isinstance(event, TextDelta):
            self.text += event.text
            self.times.append(trio.current_time())

    async def lose_the_only_one(self, *, stops: bool) -> DaemonHandle:
        """Crash or stop the stage of the present chain that has no replica, in the middle of the
        answer. The links of a machine that crashes end only when they have been silent for long.
        """
        while len(self.times) < 5:  # noqa: ASYNC110
            await trio.sleep(0.01)
        layers = [(await node.status())["serving"]["shard"]["layers"] for node in self.nodes]
        (route,) = (event for event in self.events if isinstance(event, Routed))
        for hop in route.stages:
            if layers.count(f"{hop.parts.start}:{hop.parts.stop}") == 1:
                lost = next(node for node in self.nodes if node.peer == hop.peer)
                if stops:
                    await lost.stop()
                else:
                    await lost.host.crash()
                return lost
        raise AssertionError(layers)

    def pause(self) -> float:
        return max(after - before for before, after in pairwise(self.times))


def run(body: Callable[[World], Awaitable[Any]]) -> Any:
    world = World(seed=1)

    async def main() -> Any:
        with trio.fail_after(2000):
            return await body(world)

    return world.run(main)


@pytest.fixture(autouse=True)
def no_time_to_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_defaults, "DRAIN_TIME", 0.1)


async def disturbed(fleet: Fleet, *, stops: bool, away: float | None = None) -> Summary:
    """The answer, of which a stage is lost, and comes back after `away` seconds."""
    found: list[Summary] = []

    async def ask() -> None:
        found.append(await fleet.ask())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        lost = await fleet.lose_the_only_one(stops=stops)
        if away is not None:
            await trio.sleep(away)
            fleet.nodes[fleet.nodes.index(lost)] = await lost.host.restart()
    return found[0]


async def undisturbed(fleet: Fleet) -> Summary:
    whole = await fleet.ask()
    fleet.events.clear()
    fleet.times.clear()
    fleet.text = ""
    return whole


@pytest.mark.parametrize("stops", [False, *in_ci(True)])
def test_a_spare_loads_the_lost_layers_while_the_answer_waits(stops: bool) -> None:
    async def body(world: World) -> None:
        fleet = Fleet(world)
        await fleet.start(4)
        whole = await undisturbed(fleet)
        summary = await disturbed(fleet, stops=stops)
        assert summary.token_ids == whole.token_ids
        assert summary.text == fleet.text == whole.text
        assert 5 < fleet.pause() < 20
        kinds = [type(each) for each in fleet.events if not isinstance(each, TextDelta)]
        assert kinds == [Routed, Awaited, Routed]
        for node in fleet.nodes:
            assert not node.host.up or node.node.stage.sessions == 0

    run(body)


def test_without_a_spare_the_error_comes_soon_and_says_what_to_do() -> None:
    async def body(world: World) -> None:
        fleet = Fleet(world)
        await fleet.start(3)
        with pytest.RaisesGroup(StageLost) as raised:
            await disturbed(fleet, stops=True)
        (error,) = raised.value.exceptions
        assert isinstance(error, StageLost) and error.code == "stage-lost"
        assert "(no node has loaded its layers after 10 s)" in error.message
        assert error.hint and "`shoal node --model tiny`" in error.hint
        assert 10 <= trio.current_time() - fleet.times[-1] < 12

    run(body)


def test_a_machine_that_starts_again_continues_the_answer() -> None:
    """Its layers have no replica. The others might take them over, so the answer waits."""

    async def body(world: World) -> None:
        fleet = Fleet(world)
        await fleet.start(3)
        whole = await undisturbed(fleet)
        summary = await disturbed(fleet, stops=True, away=4)
        assert summary.token_ids == whole.token_ids and fleet.text == whole.text

    run(body)
