"""slots: which source gets a slot when all are taken."""

from random import Random

import pytest
import trio
from trio.testing import MockClock

from shoal.dht.kademlia.slots import FairSlots


async def forever() -> str:
    await trio.sleep_forever()


async def done() -> str:
    return "done"


@pytest.mark.trio
async def test_an_action_runs_in_its_slot(autojump_clock: MockClock) -> None:
    slots = FairSlots(1)
    assert await slots.use(["a"], done) == "done"
    with pytest.raises(ValueError, match="no"):
        await slots.use(["a"], _fails)
    assert len(slots) == 0


async def _fails() -> str:
    raise ValueError("no")


@pytest.mark.trio
@pytest.mark.parametrize("defended", [True, False])
async def test_the_largest_user_loses_a_slot(autojump_clock: MockClock, defended: bool) -> None:
    """Twin: if all count as one source, the newcomer waits."""
    slots = FairSlots(4)
    lost: list[object] = []

    async def hold(name: str) -> None:
        lost.append(await slots.use([name], forever))

    async with trio.open_nursery() as nursery:
        for _ in range(6):
            nursery.start_soon(hold, "liar")
        await trio.sleep(1)
        with trio.move_on_after(1) as scope:
            assert await slots.use(["honest" if defended else "liar"], done) == "done"
        assert scope.cancelled_caught is not defended
        await trio.sleep(0.1)
        assert lost == ([None] if defended else [])
        assert len(slots) == 4, "a waiting use has taken the slot"
        nursery.cancel_scope.cancel()
    assert len(slots) == 0 and not slots.waiting and len(slots.shares) == 0


@pytest.mark.trio
async def test_the_waiting_source_with_the_fewest_slots_comes_first(
    autojump_clock: MockClock,
) -> None:
    slots = FairSlots(2)
    order: list[str] = []

    async def hold(name: str, seconds: float) -> None:
        async def held() -> None:
            order.append(name)
            await trio.sleep(seconds)

        await slots.use([name], held)

    async with trio.open_nursery() as nursery:
        for name, seconds in (("a", 9), ("b", 2), ("a", 2), ("b", 2)):
            nursery.start_soon(hold, name, seconds)
            await trio.sleep(0.1)
    assert order == ["a", "b", "b", "a"]


@pytest.mark.trio
async def test_a_use_with_several_sources_counts_for_the_one_with_the_fewest(
    autojump_clock: MockClock,
) -> None:
    """Otherwise a liar that names every contact first could make all of them wait with its own."""
    slots = FairSlots(2)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(slots.use, ["liar"], forever)
        await trio.sleep(1)
        with trio.fail_after(1):
            assert await slots.use(["liar", "honest"], done) == "done"
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_the_waiting_queue_is_limited(autojump_clock: MockClock) -> None:
    """The source with the most waiting loses the latest, and a dropped action never starts."""
    slots = FairSlots(1, waiting=3)
    lost: list[str] = []
    begun: list[str] = []

    async def hold(name: str) -> None:
        async def held() -> str:
            begun.append(name)
            return await forever()

        if await slots.use([name[0]], held) is None:
            lost.append(name)

    async with trio.open_nursery() as nursery:
        for name in ("a1", "a2", "a3", "a4", "a5", "b1", "b2"):
            nursery.start_soon(hold, name)
            await trio.sleep(0.1)
        assert (begun, lost) == (["a1"], ["a5", "a4", "b2"])
        assert len(slots.waiting) == 3
        nursery.cancel_scope.cancel()


@pytest.mark.trio
@pytest.mark.parametrize("waiting", [3, 10_000])
async def test_all_counters_match_after_random_operations(
    autojump_clock: MockClock, waiting: int
) -> None:
    """Actions end, fail, are cancelled or lose their slot, in any order."""
    random = Random(5)
    slots = FairSlots(5, waiting=waiting)

    async def one(name: str, seconds: float, patience: float) -> None:
        async def held() -> None:
            assert len(slots) <= 5
            await trio.sleep(seconds)

        with trio.move_on_after(patience):
            await slots.use([name], held)

    async with trio.open_nursery() as nursery:
        for _ in range(400):
            nursery.start_soon(one, random.choice("aaabcdef"), random.random(), random.random())
            if random.random() < 0.6:
                await trio.sleep(random.random() / 10)
            assert slots.shares.total() == len(slots) <= 5
            assert slots.queued.total() == len(slots.waiting) <= waiting
    assert len(slots) == 0 and not slots.waiting and len(slots.shares) == 0
