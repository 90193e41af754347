"""State that a small node stores, on simulated daemons."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from shoal.netsim.world import World
from shoal.node import defaults
from shoal.node.daemon.interest import keeps_all, needed
from shoal.node.errors import ControlError
from shoal.node.settings.config import NodeConfig
from shoal.state.defaults import UNUSED_KEPT, WRITE_HOLD
from shoal.state.feeds.kinds import all_parts, part_of_root
from shoal.state.replication.interest import BASE
from shoal.transport.host.seam import Host


def machine(memory: int, disk: int) -> Host:
    files = SimpleNamespace(free_space=lambda path: disk)
    return cast(
        Host, SimpleNamespace(machine=lambda: SimpleNamespace(memory_total=memory), files=files)
    )


def config(state: Any) -> NodeConfig:
    return NodeConfig(data=Path("/shoal"), state=state)


def test_small_machine_stores_only_needed_state() -> None:
    memory, disk = defaults.STATE_MEMORY, defaults.STATE_DISK
    assert keeps_all(machine(memory, disk), config("auto"))
    assert not keeps_all(machine(memory - 1, disk), config("auto"))
    assert not keeps_all(machine(memory, disk - 1), config("auto"))


def test_the_owner_decides() -> None:
    assert keeps_all(machine(1, 1), config("all"))
    assert not keeps_all(machine(2**50, 2**50), config("needed"))


def test_needed_parts_of_own_models_or_of_all() -> None:
    roots = ["3" + "0" * 63, "a" + "0" * 63, "3" + "1" * 63]
    assert set(needed(roots, chooses=False, works=False)) == {("shards", 3), ("shards", 10)}
    assert set(needed([], chooses=False, works=True)) == {("jobs", 0), ("claims", 0)}
    assert set(needed([], chooses=True, works=False)) == {("shards", part) for part in range(16)}


async def test_pulled_model_adds_its_part_until_it_is_removed(world: World) -> None:
    first = await world.host("a").start(model="tiny", layers=(0, 6))
    second = await world.host("b").start(bootstrap=[first], engine=False, state="needed")
    await first.serving()
    await trio.sleep(WRITE_HOLD + 10)
    root = next(iter(first.node.library.roots()))
    state, placements = second.node.state, second.node.state.views.placements
    plot = "shards", part_of_root(root)
    assert state.interest.stored == BASE and placements.get(root) is None
    assert set(state.views.members) == {first.peer, second.peer}
    assert "tiny" in state.views.models.names()
    await second.ask("model_pull", name="tiny")
    await trio.sleep(5)
    assert state.interest.stored == BASE | {plot}
    assert set(placements.get(root) or ()) == {first.peer}
    await second.node.library.remove(root)
    await trio.sleep(UNUSED_KEPT - 10)
    assert placements.get(root)
    await trio.sleep(20)
    assert state.interest.stored == BASE and placements.get(root) is None


async def test_small_node_can_run_a_model_that_it_knows_by_name(world: World) -> None:
    first = await world.host("a").start(model="tiny", layers=(0, 6))
    await first.serving()
    small = await world.host("b").start(bootstrap=[first], engine=False, state="needed")
    await trio.sleep(WRITE_HOLD + 10)
    assert not small.node.directory.members()[first.peer].shards
    assert (await small.generate("Once", max_tokens=4))["tokens"] == 4


async def test_group_owner_stores_all_state(world: World) -> None:
    """Otherwise its revocation would drop everything that the revoked peer said in other feeds."""
    owner = await world.host("a").start(engine=False, state="needed", private=True)
    await trio.sleep(3)
    assert owner.node.state.interest.stored == frozenset(all_parts())


async def test_node_reports_that_it_stores_all_state(world: World) -> None:
    first = await world.host("a").start(engine=False)
    answer = await first.ask("state_show")
    assert first.node.state.interest.stored is None and answer["keeps"] is None
    second = await world.host("b").start(engine=False, state="needed")
    with pytest.raises(ControlError, match=r"no peer .* is known") as caught:
        await second.ask("state_show", kind="usage", author=first.peer)
    assert "does not store all" in (caught.value.hint or "")
    answer = await second.ask("state_show", kind="usage")
    assert answer["keeps"] == {"group": [0], "member": [0], "models": [0]}
    assert answer["alone"] == {}


async def test_parts_that_no_linked_node_stores_are_reported(world: World) -> None:
    first = await world.host("a").start(engine=False, state="needed")
    second = await world.host("b").start(bootstrap=[first], engine=False)
    await trio.sleep(10)
    answer = await second.ask("state_show")
    used = {part_of_root(root) for root in first.node.library.roots()}
    parts = [part for part in range(16) if part not in used]
    assert used and answer["alone"] == {
        "claims": [0],
        "jobs": [0],
        "shards": parts,
        "tuning": [0],
        "usage": [0],
    }
    assert (await first.ask("state_show"))["alone"] == {}


async def test_jobs_and_usage_report_whether_those_of_others_are_stored(world: World) -> None:
    first = await world.host("a").start(engine=False)
    second = await world.host("b").start(engine=False, state="needed")
    for op in ("job_list", "usage"):
        assert (await first.ask(op))["stores"] is True
        assert (await second.ask(op))["stores"] is False
