"""Fine-tunings that average with others: they learn more than each alone, agree bit for bit, refuse
poison, and outlive joins, leaves and crashes."""

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import trio
from safetensors.numpy import load

from shoal.netsim.world import World
from shoal.tasks.tuning.interface import NOT_COUNTED, AdapterTensors, Batch, TensorName
from shoal.tasks.tuning.trainer.errors import TuningError
from shoal.tasks.tuning.trainer.tunings import Tuning
from tests.tasks.tuning.numpy_chain import LAYERS, NumpyChain, settings
from tests.tasks.tuning.trainer.together import Trainer, lines, turned


class Crew:
    """Trainers of one world, each linked with all that came before."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.trainers: list[Trainer] = []

    async def made(self, rows: int = 12, **changes: Any) -> Trainer:
        number = len(self.trainers) + 1
        trainer = Trainer(self.world.host(f"t{number}"), number, rows)
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


async def alone(number: int, **wishes: Any) -> float:
    """Return the loss that a trainer reaches without others, on the same rows."""
    found = list[float]()

    async def body(crew: Crew) -> None:
        for _ in range(number - 1):
            crew.trainers.append(None)  # type: ignore[arg-type]
        trainer = Trainer(crew.world.host("alone"), number, 12)
        await trainer.machine.start(trainer)
        tuning = await trainer.begin(**wishes)
        await until(is_done(tuning))
        found.append(await loss(trainer))

    run(body)
    return found[0]


def test_two_learn_more_than_each_alone_and_publish_the_same() -> None:
    found = dict[str, Any]()

    async def body(crew: Crew) -> None:
        one, two = await crew.made(), await crew.made()
        tunings = [await each.begin(held_out=0.0) for each in (one, two)]
        await until(is_done(*tunings))
        company = tunings[0].progress.company
        assert company is not None and (company.round, company.refused) == (4, 0)
        assert one.published == two.published
        found["loss"] = await loss(one)
        await until(lambda: not (one.node.state.keys("tuning") or two.node.state.keys("tuning")))
        assert not one.parcels._held and not two.parcels._held

    run(body)
    for number in (1, 2):
        found[f"alone {number}"] = _alone(number)
    print(found)
    assert found["loss"] < min(found["alone 1"], found["alone 2"])


def _alone(number: int) -> float:
    """Return the loss of one trainer that averages with nobody and has the same rows."""
    found = list[float]()

    async def body(crew: Crew) -> None:
        trainer = Trainer(crew.world.host("alone"), number, 12)
        await trainer.machine.start(trainer)
        tuning = await trainer.begin(held_out=0.0, together=None, every=None)
        await until(is_done(tuning))
        found.append(await loss(trainer))

    run(body)
    return found[0]


def test_one_of_three_that_poisons_is_refused() -> None:
    async def body(crew: Crew) -> None:
        one, two = await crew.made(), await crew.made()
        bad = await crew.made(spoil=turned)
        tunings = [await each.begin() for each in (one, two, bad)]
        await until(is_done(*tunings[:2]))
        for tuning in tunings[:2]:
            company = tuning.progress.company
            assert company is not None and company.refused >= 2
        own = tunings[2].progress.company
        assert own is not None and "the others refused the update of this node" in own.told
        first = [tuning.progress for tuning in tunings[:2]]
        assert all(each.best is not None and each.best < 3.5 for each in first)

    run(body)


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


def test_one_that_crashes_resumes_in_the_run() -> None:
    async def body(crew: Crew) -> None:
        one, two = await crew.made(), await crew.made()
        first, second = [await each.begin(steps=200) for each in (one, two)]
        await until(lambda: second.progress.saved > 0)
        await two.machine.crash()
        two.others = [one.address]
        await until(lambda: _round(first) >= 8)
        await two.machine.start(two)
        back = two.tunings.all()[0]
        await until(lambda: _round(back) >= 9)
        await until(is_done(first, back))

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
        await trainer.machine.start(trainer)
        tuning = trainer.tunings.all()[0]
        await trainer.tunings.resume(tuning)
        await until(is_done(tuning))
        found.append(trainer.published[0]["bytes"])

    run(whole)
    run(stopped)
    assert wanted == found


def test_values_that_no_average_can_use_end_it_with_a_hint() -> None:
    async def body(crew: Crew) -> None:
        trainer = await crew.made()
        tuning = await trainer.begin(rate=1.0, held_out=0.0)
        await until(lambda: tuning.progress.step >= 5)
        learned = tuning.scope
        assert learned is not None

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
        trainer.tunings._around = trainer.tunings._around.__class__(trainer, None, None, None)  # type: ignore[arg-type]

    run(body)
