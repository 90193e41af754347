"""Full training as a fine-tuning of a node: accepted, killed, resumed, published, refused."""

from pathlib import Path
from typing import Any

import pytest
import trio.testing

from shoal.dht.errors import ModelError
from shoal.tasks.errors import SessionError
from shoal.tasks.tuning.trainer import defaults
from shoal.tasks.tuning.trainer.errors import TuningError
from tests.tasks.tuning.bigram import Bigrams
from tests.tasks.tuning.trainer.test_tunings import MODEL, Node, quiet

pytestmark = pytest.mark.trio
Clock = trio.testing.MockClock


@pytest.fixture
def node(tmp_path: Path) -> Node:
    found = Node(tmp_path)
    found.whole = Bigrams()
    return found


def wishes(**more: Any) -> dict[str, Any]:
    return {"modules": None, "full": True, "rate": 0.05, **more}


async def test_it_learns_and_publishes_a_model(node: Node, autojump_clock: Clock) -> None:
    async with node.daemon() as tunings:
        tuning = await tunings.begin(node.ask(**wishes(steps=60, name="mine")), MODEL, quiet)
        await tuning.ended.wait()
        points = await tunings.points(tuning)
    assert tuning.plan.state == "done" and tuning.plan.adapter == "ef" * 32
    assert points[-1].loss < 0.5 * points[0].loss
    assert node.whole is not None and [name for name, _ in node.whole.published] == ["mine"]
    assert not node.published, "it is no adapter"
    settings = tuning.plan.settings
    assert (settings.rank, settings.alpha, settings.modules) == (0, 0.0, ())
    assert tuning.result.name == "model"


class Killed(BaseException):
    """Stands for `kill -9`."""


async def test_killed_at_any_step_and_resumed_it_ends_with_the_same_bytes(
    tmp_path: Path, autojump_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "CHECKPOINT_PAUSE", 0.0)
    results = set[bytes]()
    for at in (0, 1, 5, 12):
        (folder := tmp_path / str(at)).mkdir()
        node = Node(folder)
        whole = node.whole = Bigrams()

        def kill(number: int, at: int = at) -> None:
            if number == at:
                raise Killed

        whole.disturb = kill
        try:
            async with node.daemon() as tunings:
                tuning = await tunings.begin(node.ask(**wishes(name="mine")), MODEL, quiet)
                await tuning.ended.wait()
        except BaseExceptionGroup as group:
            assert group.subgroup(Killed) is not None
        whole.disturb = None
        if not whole.published:
            async with node.daemon() as tunings:
                await tunings.all()[0].ended.wait()
        ((name, table),) = whole.published
        results.add(table)
        assert name == "mine"
    assert len(results) == 1


async def test_a_loss_that_is_not_finite_ends_it_with_a_hint(
    node: Node, autojump_clock: Clock
) -> None:
    assert node.whole is not None

    def diverge(number: int) -> None:
        if number > 3:
            raise SessionError("not-finite", "the loss is not finite")

    node.whole.disturb = diverge
    async with node.daemon() as tunings:
        tuning = await tunings.begin(node.ask(**wishes()), MODEL, quiet)
        await tuning.ended.wait()
    plan = tuning.plan
    assert (plan.state, plan.error) == ("failed", "bad-gradients")
    assert plan.message == "step 4 failed repeatedly: the loss is not finite"
    assert "--rate" in plan.hint and "nodes" not in plan.message


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"rank": 4}, "bad-options"),
        ({"alpha": 4.0}, "bad-options"),
        ({"modules": ("q_proj",)}, "bad-options"),
        ({"length": 50}, "no-memory"),
        ({"moves": True}, "stays"),
        ({"name": "taken-model"}, "name-taken"),
    ],
)
async def test_what_cannot_be_trained_says_why(node: Node, more: Any, code: str) -> None:
    assert node.whole is not None
    node.whole.memory = 40
    async with node.daemon() as tunings:
        with pytest.raises((TuningError, ModelError)) as refused:
            await tunings.begin(node.ask(**wishes(**{"length": 16, **more})), MODEL, quiet)
        assert getattr(refused.value, "code", "") == code and refused.value.hint
    assert node.files() == set()


async def test_a_node_that_cannot_says_so(node: Node) -> None:
    node.whole = None
    async with node.daemon() as tunings:
        with pytest.raises(TuningError, match="cannot train all weights") as refused:
            await tunings.begin(node.ask(**wishes()), MODEL, quiet)
        assert refused.value.code == "no-full"
