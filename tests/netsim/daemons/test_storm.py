"""Swarms in a storm: after any faults, all is as it should be."""

import gc
from collections import Counter
from typing import Any

import pytest
import trio

from shoal.netsim.faults import Faults
from shoal.netsim.sockets.base import SimSocket
from shoal.netsim.world import World
from shoal.node.daemon.daemon import Node
from shoal.node.daemon.work.jobs import Working
from shoal.node.swarm.remembering import Remembering
from tests.netsim.daemons.storm import Storm

MANY = range(100, 160)


@pytest.mark.parametrize(
    "seed", [pytest.param(3, marks=pytest.mark.ci), pytest.param(4, marks=pytest.mark.long)]
)
def test_all_is_well_after_a_storm(seed: int) -> None:
    assert Storm(seed, nodes=5, seconds=60.0).run() == []


@pytest.mark.long
@pytest.mark.parametrize("seed", MANY)
def test_all_is_well_after_many_storms(seed: int) -> None:
    assert Storm(seed).run() == []


@pytest.mark.parametrize(
    ("part", "method", "said"),
    [
        (Remembering, "write", "ended with"),
        pytest.param(Working, "leave", "ended with", marks=pytest.mark.long),
        (Node, "_enter_swarm", "does not run"),
    ],
)
def test_a_storm_finds_a_daemon_that_breaks(
    part: type, method: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(part, method, broken)
    assert any(said in line for line in Storm(3, nodes=5, seconds=10.0).run())


@pytest.mark.ci
def test_a_storm_finds_members_that_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.node.swarm.bootstrap.Bootstrap._keep", _nothing)
    assert any("is not linked with" in line for line in Storm(3, nodes=5, seconds=10.0).run())


async def _nothing(*_: Any) -> None:
    pass


@pytest.mark.parametrize("end", ["stop", "crash", "sleep", "unplug"])
def test_dead_members_are_not_listed(end: str) -> None:
    """The end of a member is noticed within 5 s, on either side of a NAT."""

    async def main() -> None:
        faults = Faults(world)
        first = await world.host("a").start(engine=False)
        home = world.gateway("home")
        second = await world.host("b", behind=home).start(engine=False, bootstrap=[first])
        third = await world.host("c").start(engine=False, bootstrap=[first])
        for daemon in (first, second, third):
            await daemon.until(lambda status: status["peers"] == 2)
        for daemon, left in ((second, 1), (third, 0)):
            if end == "stop":
                await daemon.stop()
            elif end == "crash":
                await faults.crash(daemon.host)
            elif end == "sleep":
                faults.sleep(daemon.host)
            else:
                faults.link_down(daemon.host)
            await trio.sleep(5)
            assert (await first.status())["peers"] == left

    world = World(seed=1)
    world.run(main)


def _counted(world: World) -> Counter[str]:
    """Count what a run may leave behind: tasks, sockets, connections, Unix sockets, objects."""
    gc.collect()
    found: Counter[str] = Counter()
    tasks = [trio.lowlevel.current_root_task()]
    while tasks:
        task = tasks.pop()
        assert task is not None
        found["tasks"] += 1
        tasks += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    for item in gc.get_objects():
        # A closed object is still referenced by the code that looked at it last.
        if isinstance(item, Node) or (isinstance(item, SimSocket) and item.fileno() != -1):
            found[type(item).__name__] += 1
    for host in world.hosts.values():
        found["names"] += len(host.local.names)
    return found


async def _left(world: World) -> Counter[str]:
    """Return the same counts without what lasts only seconds: a dial of a dead peer takes ten."""
    found = _counted(world)
    for _ in range(3):
        await trio.sleep(17)
        found &= _counted(world)
    return found


@pytest.mark.ci
@pytest.mark.parametrize("way", ["crash", "stop"])
def test_a_hundred_lives_leave_nothing_behind(way: str) -> None:
    async def main() -> None:
        first = await world.host("a").start(engine=False)
        host = world.host("b")
        daemon = await host.start(bootstrap=[first], engine=False)
        # until it has dialled back, and the first node listens on TCP 443 for good
        await trio.sleep(60)
        seen = []
        for number in range(100):
            if way == "crash":
                await trio.sleep(0.013 * (number % 40))
                await host.crash()
            else:
                await daemon.stop()
            if number in (9, 99):
                await trio.sleep(900)  # until it is no longer a member
                assert (await first.status())["peers"] == 0
                seen.append(await _left(world))
            if way == "crash":
                daemon = await host.restart()
            else:
                program: Any = host.program
                daemon = await host.start(program)
        assert seen[0] == seen[1]
        await daemon.until(lambda status: status["peers"] == 1)

    world = World(seed=1)
    world.run(main)
