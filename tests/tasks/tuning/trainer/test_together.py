"""Fine-tunings that average with others: they learn more than each alone, agree bit for bit, refuse
poison, and outlive joins, leaves and crashes."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
from safetensors.numpy import load

from shoal.netsim.world import World
from shoal.tasks.tuning.averaging import codecs
from shoal.tasks.tuning.interface import (
    NOT_COUNTED,
    AdapterTensors,
    Batch,
    LearnedName,
    TensorName,
)
from shoal.tasks.tuning.trainer.errors import TuningError
from shoal.tasks.tuning.trainer.optimiser import Array
from shoal.tasks.tuning.trainer.running import Tuning
from shoal.tasks.tuning.trainer.tunings import Tunings
from tests.tasks.tuning.bigram import SHAPES, TABLE, Bigram
from tests.tasks.tuning.numpy_chain import LAYERS, NumpyChain, settings
from tests.tasks.tuning.trainer.together import Trainer, lines, turned


class Crew:
    """Trainers of one world, each linked with all that came before."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.trainers: list[Trainer] = []

    async def made(self, rows: int = 12, **changes: Any) -> Trainer:
        place = len(self.trainers) + 1
        trainer = Trainer(self.world.host(f"t{place}"), place, rows)
        trainer.others = [each.address for each in self.trainers]
        for name, value in changes.items():
            setattr(trainer, name, value)
        self.trainers.append(trainer)
        await trainer.machine.start(trainer)
        return trainer


def run(body: Callable[[Crew], Awaitable[None]]) -> None:
    world = World(seed=1)
    world.run(lambda: body(Crew(world)))


async def until(holds: Callable[[], bool], seconds: float = 900.0) -> None:
    with trio.fail_after(seconds):
        while not holds():  # noqa: ASYNC110
            await trio.sleep(0.1)


def is_done(*tunings: Tuning) -> Callable[[], bool]:
    def done() -> bool:
        failed = [each.plan.message for each in tunings if each.plan.state == "failed"]
        assert not failed, failed
        return all(each.plan.state == "done" for each in tunings)

    return done


def held_out() -> Batch:
    """Rows that no trainer has."""
    rows = [[int(word) for word in line.split()] for line in lines(1000, 40)]
    tokens, targets = np.zeros((40, 16), np.int32), np.full((40, 16), NOT_COUNTED, np.int32)
    for at, row in enumerate(rows):
        tokens[at, : len(row) - 1], targets[at, : len(row) - 1] = row[:-1], row[1:]
    return Batch(tokens, targets)


async def loss(trainer: Trainer) -> float:
    """Return the loss of the adapter that a trainer has published."""
    found = load(trainer.published[-1]["bytes"])
    tensors = {
        TensorName(layer, "q_proj", side): found[
            f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{side}.weight"
        ]
        for layer in range(LAYERS)
        for side in ("A", "B")
    }
    total, counted = await NumpyChain().loss(held_out(), AdapterTensors(settings().terms, tensors))
    return total / counted


WISHES: dict[str, Any] = {"rank": 16, "steps": 60}


def published(numbers: tuple[int, ...], **wishes: Any) -> float:
    """Return the loss of what trainers publish that average with each other. They publish the same.

    `numbers` say whose rows each of them has.
    """
    found = list[float]()

    async def body(crew: Crew) -> None:
        trainers = [await crew.made(rows=8, number=number) for number in numbers]
        tunings = [await each.begin(**{**WISHES, "held_out": 0.0, **wishes}) for each in trainers]
        await until(is_done(*tunings))
        assert len({each.published[0]["bytes"] for each in trainers}) == 1
        found.append(await loss(trainers[0]))
        for trainer in trainers:  # nothing is left of the run
            assert not trainer.node.state.keys("tuning") and not trainer.parcels.stored

    run(body)
    return found[0]


def test_two_learn_more_than_each_alone_and_publish_the_same() -> None:
    both = published((1, 2))
    for number in (1, 2):
        assert both < 0.9 * published((number,))
        assert both < 0.9 * published((number,), together=None, every=None)  # it trains A as well


def test_one_of_three_that_poisons_is_refused() -> None:
    found = list[float]()

    async def body(crew: Crew, *, poisoned: bool) -> None:
        trainers = [await crew.made(), await crew.made()]
        if poisoned:
            trainers.append(await crew.made(spoil=turned))
        tunings = [await each.begin(**WISHES) for each in trainers]
        await until(is_done(*tunings[:2]))
        found.append(await loss(trainers[0]))
        companies = [tuning.progress.company for tuning in tunings]
        assert all(each is not None for each in companies)
        refused = [each.refused for each in companies[:2] if each is not None]
        assert min(refused) >= 5 if poisoned else max(refused) == 0
        if poisoned:
            assert companies[2] is not None
            assert "the others refused the update of this node" in companies[2].told
            assert companies[0] is not None and "held-out loss" in companies[0].told

    run(partial(body, poisoned=False))
    run(partial(body, poisoned=True))
    assert found[1] < 1.03 * found[0], found


def test_one_joins_late_and_one_leaves() -> None:
    async def body(crew: Crew) -> None:
        one, two = await crew.made(), await crew.made()
        first, second = [await each.begin(steps=120) for each in (one, two)]
        await until(lambda: _round(first) >= 3)
        late = await crew.made()
        third = await late.begin(steps=60)
        await until(lambda: _round(third) >= 4 and _peers(third) == 2)
        before = trio.current_time()
        await two.tunings.stop(second)
        reached = _round(first)
        await until(lambda: _round(first) >= reached + 3)
        assert trio.current_time() - before < 60  # no round waits for the one that has left
        await until(is_done(first, third))

    run(body)


def _round(tuning: Tuning) -> int:
    return 0 if tuning.progress.company is None else tuning.progress.company.round


def _peers(tuning: Tuning) -> int:
    return 0 if tuning.progress.company is None else tuning.progress.company.peers


@pytest.mark.parametrize("more", [{}, {"full": True, "rank": None, "modules": None}])
def test_one_that_crashes_resumes_in_the_run(more: dict[str, Any]) -> None:
    """From its checkpoint, when its node runs again, and without a command."""

    async def body(crew: Crew) -> None:
        one, two = await crew.made(), await crew.made()
        first, second = [await each.begin(steps=200, **more) for each in (one, two)]
        await until(lambda: second.progress.saved > 0)
        saved = second.progress.saved
        await two.machine.crash()
        two.others = [one.address]
        await until(lambda: _round(first) >= 8)
        await two.machine.restart()
        back = two.tunings.all()[0]
        await until(lambda: back.progress.step > 0)
        assert back.progress.saved >= saved > 0, "it began at the checkpoint"
        await until(lambda: _round(back) >= 9)
        await until(is_done(first, back))
        assert (await two.tunings.points(back))[-1].step == 200

    run(body)


@pytest.mark.parametrize("at", [3, 10, 17, 25])
def test_alone_a_killed_one_ends_with_the_same_bytes(at: int) -> None:
    """In the middle of a round, and at its end."""
    wanted, found = list[bytes](), list[bytes]()

    async def whole(crew: Crew) -> None:
        trainer = await crew.made()
        await until(is_done(await trainer.begin(steps=30)))
        wanted.append(trainer.published[0]["bytes"])

    async def stopped(crew: Crew) -> None:
        trainer = await crew.made()
        tuning = await trainer.begin(steps=30)
        await until(lambda: tuning.progress.step >= at)
        await trainer.tunings.stop(tuning)
        assert 0 < tuning.progress.saved < 30
        await trainer.machine.crash()
        await trainer.machine.restart()
        tuning = trainer.tunings.all()[0]
        await trainer.tunings.resume(tuning)
        await until(is_done(tuning))
        found.append(trainer.published[0]["bytes"])

    run(whole)
    run(stopped)
    assert wanted == found


FULL: dict[str, Any] = {
    "full": True, "rank": None, "modules": None, "rate": 0.05, "steps": 60, "held_out": 0.3,
}  # fmt: skip


def table_loss(trainer: Trainer) -> float:
    """Return the loss of the table that a trainer has published."""
    table = np.frombuffer(trainer.whole.published[-1][1], np.float32).reshape(SHAPES[TABLE])
    tensors: dict[LearnedName, Array] = {TABLE: table}
    total, counted = trio.run(Bigram().loss, held_out(), tensors)
    return total / counted


def test_all_weights_are_averaged_and_poison_is_refused() -> None:
    losses = dict[str, float]()

    async def body(crew: Crew, name: str) -> None:
        trainers = [await crew.made(rows=30) for _ in range(1 if name == "alone" else 3)]
        if name == "poisoned":
            trainers.append(await crew.made(rows=30))
            trainers[3].whole.spoil = -1.0
        tunings = [await each.begin(**FULL) for each in trainers]
        honest = tunings[:3]
        await until(is_done(*honest))
        crews[name] = trainers
        companies = [tuning.progress.company for tuning in honest]
        refused = [0 if each is None else each.refused for each in companies]
        assert min(refused) >= 5 if name == "poisoned" else max(refused) == 0

    crews = dict[str, list[Trainer]]()
    for name in ("alone", "together", "poisoned"):
        run(partial(body, name=name))
        losses[name] = table_loss(crews[name][0])
    assert [name for name, _ in crews["together"][0].whole.published] == ["tiny-data"]
    assert losses["together"] < 0.9 * losses["alone"], losses
    assert losses["poisoned"] < 1.03 * losses["together"], losses


@pytest.mark.parametrize("at", [3, 10, 17, 25])
def test_alone_a_killed_full_training_ends_with_the_same_bytes(at: int) -> None:
    """The checkpoint has the errors of the codec in earlier rounds."""
    wanted, found = list[bytes](), list[bytes]()

    async def whole(crew: Crew) -> None:
        trainer = await crew.made()
        await until(is_done(await trainer.begin(**{**FULL, "steps": 30, "held_out": 0.0})))
        wanted.append(trainer.whole.published[0][1])

    async def stopped(crew: Crew) -> None:
        trainer = await crew.made()
        tuning = await trainer.begin(**{**FULL, "steps": 30, "held_out": 0.0})
        await until(lambda: tuning.progress.step >= at)
        await trainer.tunings.stop(tuning)
        assert 0 < tuning.progress.saved < 30
        await trainer.machine.crash()
        await trainer.machine.restart()
        tuning = trainer.tunings.all()[0]
        await trainer.tunings.resume(tuning)
        await until(is_done(tuning))
        found.append(trainer.whole.published[0][1])

    run(whole)
    run(stopped)
    assert wanted == found


def test_values_that_no_average_can_use_end_it_with_a_hint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codecs, "MAX_SCALE", 1e-6)

    async def body(crew: Crew) -> None:
        trainer = await crew.made()
        tuning = await trainer.begin()
        await until(lambda: not tuning.is_active)
        plan = tuning.plan
        assert (plan.state, plan.error) == ("failed", "too-large") and "--rate" in plan.hint
        assert tuning.progress.step == 10

    run(body)


def test_names_of_runs_are_checked() -> None:
    async def body(crew: Crew) -> None:
        trainer = await crew.made()
        with pytest.raises(TuningError) as refused:
            await trainer.begin(together="no spaces")
        assert refused.value.code == "bad-name" and refused.value.hint
        tuning = await trainer.begin()
        with pytest.raises(TuningError) as refused:
            await trainer.begin()
        assert refused.value.code == "together-used" and tuning.id in refused.value.message
        alone = replace(trainer.around, averaging=None)
        trainer.tunings = Tunings(trainer.host, Path("/alone"), alone)
        with pytest.raises(TuningError) as refused:
            await trainer.begin(together="another")
        assert refused.value.code == "no-averaging"

    run(body)
