"""The control operation `plan`, on whole daemons."""

from typing import Any

import pytest
import trio

from shoal.cli.errors import CommandError
from shoal.netsim.world import World
from shoal.node.errors import ControlError

MIB = 2**20


def test_a_plan_for_the_members_of_a_swarm() -> None:
    world = World(seed=1)

    async def main() -> None:
        with trio.fail_after(500):
            first = await world.host("a").start(memory=10 * MIB)
            second = await world.host("b").start(memory=10 * MIB, bootstrap=[first])
            await first.serving()
            await second.serving()
            await first.until(lambda status: status["peers"] == 1)
            found = await first.ask("plan", name="tiny")
            assert (found["machines"], found["layers"]) == (2, 6)
            assert found["best"]["stages"] in (0, 2) and found["added"] is None
            more = await first.ask("plan", name="tiny", prompt=64, add="memory=1GiB,bandwidth=50")
            assert more["added"]["stages"] == 1 and more["added"]["tokens_per_s"] > 0
            peer: Any = (await second.status())["peer"]
            less = await first.ask("plan", name="tiny", prompt=64, remove=peer)
            assert less["removed"]["stages"] == 0
            for wrong in ({"remove": "12D3KooWzzzz"}, {"add": "x"}, {"name": "nosuch"}):
                with pytest.raises((ControlError, CommandError)):
                    await first.ask("plan", **{"name": "tiny", **wrong})

    world.run(main)
