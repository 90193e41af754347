"""Every kind of jobs declares its inputs, its stages, their resources, and how its pieces merge."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import trio

from shoal.netsim.world import World
from shoal.tasks.jobs.kinds.kind import Declared, JobStage, Resource, is_able
from shoal.tasks.jobs.kinds.table import KINDS
from shoal.tasks.tuning.moving.runner import FINETUNE

EVERY: dict[str, Declared] = {**KINDS, FINETUNE.name: FINETUNE}


def offers(*resources: Resource) -> dict[Resource, Callable[[], bool]]:
    return {name: lambda name=name: name in resources for name in ("model", "place")}  # type: ignore[misc]


def test_a_daemon_does_the_declared_kinds() -> None:
    async def body() -> None:
        node = await world.host("a").start(engine=False)
        runners = node.node.working.worker.runners
        assert set(runners) == set(EVERY) == {"generate", "embed", "evaluate", "finetune"}
        for name, runner in runners.items():
            assert runner.kind == runner.declares.name == name
            assert runner.declares is EVERY[name]
        await trio.lowlevel.checkpoint()

    world = World(seed=1)
    world.run(body)


@pytest.mark.parametrize("name", sorted(EVERY))
def test_what_a_kind_declares(name: str) -> None:
    kind = EVERY[name]
    assert kind.inputs and all(kind.inputs.values())
    assert kind.merges == ("whole" if name == "finetune" else "rows")
    assert len(kind.stages) > 1 and len({stage.needs for stage in kind.stages}) == len(kind.stages)


@pytest.mark.parametrize("name", sorted(EVERY))
def test_a_node_is_able_if_it_offers_what_all_stages_need(name: str) -> None:
    kind = EVERY[name]
    needed = {need for stage in kind.stages for need in stage.needs}
    assert is_able(kind, offers(*needed))
    for need in needed:
        assert not is_able(kind, offers(*(needed - {need})))
        assert not is_able(kind, {})


def test_each_resource_is_asked_once_and_in_order() -> None:
    asked = list[str]()

    def ask(name: str, answer: bool) -> Callable[[], bool]:
        def offered() -> bool:
            asked.append(name)
            return answer

        return offered

    stages = (*FINETUNE.stages, JobStage("more", frozenset[Resource]({"model", "place"})))
    more = replace(FINETUNE, stages=stages)
    assert is_able(more, {"model": ask("model", True), "place": ask("place", True)})
    assert asked == ["model", "place"]
    assert not is_able(more, {"model": ask("model", False), "place": ask("place", True)})
    assert asked[2:] == ["model"], "no place is remembered as lacking without a model"
