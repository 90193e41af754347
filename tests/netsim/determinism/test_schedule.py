"""Tasks due at one instant run by age, or in the order that the seed draws."""

from typing import Any

import pytest
import trio

from shoal.netsim.determinism import strict
from shoal.netsim.determinism.schedule import scheduling
from shoal.netsim.world import World


def test_equal_moments_run_in_order_of_age_or_by_the_seed() -> None:
    def order(fuzz: bool, seed: int) -> list[int]:
        world, done = World(seed), []
        world.fuzz = fuzz

        async def task(number: int) -> None:
            await trio.sleep(1)
            done.append(number)

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                for number in range(20):
                    nursery.start_soon(task, number)

        world.run(main)
        return done

    assert order(False, 1) == order(False, 2) == list(range(20))
    assert order(True, 1) == order(True, 1) != order(True, 2)


def cancelled_in_order(*, deadlines: bool) -> bool:
    """Whether 60 tasks that are cancelled at one moment learn of it by age."""
    heard: list[int] = []
    scopes = [trio.CancelScope(deadline=1.0 if deadlines else 9.0) for _ in range(60)]

    async def task(number: int) -> None:
        def abort(_: Any) -> trio.lowlevel.Abort:
            heard.append(number)
            return trio.lowlevel.Abort.SUCCEEDED

        # so that the order of their addresses differs from their age
        with scopes[37 * number % 60]:
            await trio.lowlevel.wait_task_rescheduled(abort)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(60):
                nursery.start_soon(task, number)
            await trio.sleep(2 if deadlines else 0.5)
            nursery.cancel_scope.cancel()

    World().run(main)
    assert sorted(heard) == list(range(60))
    return heard == sorted(heard)


@pytest.mark.parametrize("deadlines", [False, True])
def test_cancelled_tasks_learn_of_it_in_order_of_age(
    deadlines: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cancelled_in_order(deadlines=deadlines)
    # As in trio, by addresses in memory.
    monkeypatch.setattr(strict, "scheduling", lambda _: list(scheduling(None))[:2])
    assert not cancelled_in_order(deadlines=deadlines)


def test_a_shield_that_falls_lets_a_cancel_through_in_order_of_age() -> None:
    heard: list[int] = []

    async def task(number: int) -> None:
        def abort(_: Any) -> trio.lowlevel.Abort:
            heard.append(number)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    async def main() -> None:
        with trio.CancelScope() as outer:
            async with trio.open_nursery() as nursery:
                nursery.cancel_scope.shield = True
                for number in range(60):
                    nursery.start_soon(task, number)
                outer.cancel()
                with trio.CancelScope(shield=True):
                    await trio.sleep(1)
                assert not heard
                nursery.cancel_scope.shield = False

    World().run(main)
    assert heard == list(range(60))
