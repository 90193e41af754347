"""A stage that leaves properly during an answer, while another node serves the same layers."""

import pytest

from shoal.netsim.world import World
from shoal.node import defaults as node_defaults
from tests.tasks.inference.test_chain import Swarm, interrupted, run, same


async def leave(swarm: Swarm, name: str) -> None:
    await swarm.nodes[name].stop()


def test_a_replica_continues_when_a_stage_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a token is lost or repeated, and the pause is no deadline: the stage says that it goes.

    The answer outlasts the time that the stage gives it to finish.
    """
    monkeypatch.setattr(node_defaults, "DRAIN_TIME", 0.1)

    async def undisturbed(world: World) -> object:
        swarm = Swarm(world)
        await swarm.start()
        return await swarm.ask()

    whole = run(undisturbed)

    async def body(world: World) -> None:
        swarm, summary, gap = await interrupted(world, leave)
        assert same(summary, swarm, whole)
        assert len(swarm.routes) == 2 and swarm.routes[0] != swarm.routes[1]
        assert gap < 1, gap

    run(body)
