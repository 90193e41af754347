"""The control operation `plan`, on whole daemons."""

from dataclasses import replace
from typing import Any

import pytest
import trio

from shoal.cli.errors import CommandError
from shoal.netsim.world import World
from shoal.node.control.plans import fleet_of
from shoal.node.errors import ControlError
from shoal.state.membership.record import Capacity, DeviceSpeed, MemberRecord, ShardRecord
from shoal.tasks.engine.interface import Parts
from shoal.tasks.placement.demand import as_claimed
from shoal.transport.identity import PeerId
from tests.tasks.placement.fleets import model
from tests.tasks.placement.test_placing import ROOT

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


def test_a_plan_counts_what_members_and_this_node_measured() -> None:
    """As the placement does that nodes make by themselves."""
    device = DeviceSpeed("cpu", "", 10**9, 1e10, 1e11, 1e11, 4)
    shard = ShardRecord(ROOT, True, 0, 6, True, "float32", 1)
    names = [PeerId(name) for name in ("a", "b", "c")]
    probed = [
        MemberRecord(name, 1, capacity=Capacity(1, 10**9, True, 1e9, (device,)), shards=(shard,))
        for name in names
    ]
    measured = replace(probed[1], shards=(replace(shard, costs=(1e-2, 1e-4, 1e-9)),))

    def slower(peer: PeerId, root: str, parts: Parts, token_s: float) -> float:
        assert root == ROOT and parts == Parts(True, 0, 6, True) and token_s > 0
        return 5.0 if peer == "c" else 1.0

    alike = fleet_of(probed, ROOT, model(6), as_claimed).fleet.machines
    assert len({each.rates for each in alike}) == 1
    members = [probed[0], measured, probed[2]]
    a, b, c = (each.rates for each in fleet_of(members, ROOT, model(6), slower).fleet.machines)
    assert a == alike[0].rates != b and c.factor == 4 * a.factor, "by the next lower power of two"
