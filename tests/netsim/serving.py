"""A chain of stages, jobs and a second model, which `workload.py` runs; a stage ends meanwhile."""

from collections.abc import Awaitable, Callable
from random import Random

import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.trace.trace import Trace
from shoal.netsim.world import World
from tests.netsim.daemons.test_placement import add_second
from tests.netsim.swarm import Leak

LAYERS = ((0, 2), (2, 3), (3, 4), (4, 6), (3, 4))
CRASHES = 2
PROMPTS = ["Once upon a time", "There was a whale", "In the harbour"]


class ServingSwarm:
    """Nodes that each serve some layers, and a member that asks them for texts and jobs."""

    def __init__(self, seed: int, trace: Trace) -> None:
        self.world = World(seed, trace=trace)
        self.luck = Random(seed)
        names = [f"n{number}" for number in range(len(LAYERS))]
        self.hosts = [self.world.host(name, link=self.link()) for name in names]
        self.asking = self.world.host("asking", link=self.link())

    def link(self) -> LinkSpec:
        pipe = PipeSpec(self.luck.uniform(0.002, 0.03), 0.002, 5e6, loss=0.001)
        return LinkSpec(pipe, pipe)

    async def main(self) -> None:
        """Start all, submit jobs, and generate a long text, in which a stage ends."""
        nodes: list[DaemonHandle] = []
        for host, layers in zip(self.hosts, LAYERS, strict=True):
            model = "tiny" if nodes else None
            nodes.append(await host.start(bootstrap=nodes[:2], model=model, layers=layers))
        asking = await self.asking.start(bootstrap=nodes[:2], engine=False)
        for node in nodes:
            await node.serving()
        await asking.until(lambda status: status["peers"] == len(nodes))
        await trio.sleep(5)  # until it has heard what all of them serve
        await add_second(asking)
        await asking.ask("job_submit", prompts=PROMPTS, model="tiny", max_tokens=8, seed=7)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.speak, asking)
            await trio.sleep(4)
            await self.hosts[CRASHES].crash()
        await trio.sleep(2)

    async def speak(self, asking: DaemonHandle) -> None:
        answer = await asking.generate(PROMPTS[0], max_tokens=200, raw=True)
        assert answer["tokens"] == 200


def serving_world(
    _leak: Leak | None, seed: int, trace: Trace
) -> tuple[World, Callable[[], Awaitable[None]]]:
    """Return the world and its program, which exposes no property of the machine."""
    swarm = ServingSwarm(seed, trace)
    return swarm.world, swarm.main
