"""Tests of the choice of shards that leave for a model, and of the turns of a slot."""

from math import inf

import pytest
import trio
import trio.testing

from shoal.tasks.defaults import SLOT_STAY, SLOT_STAY_LOADS
from shoal.tasks.placement.demand import ServingChoice
from shoal.tasks.serving.room import Place, Room, room_for
from shoal.tasks.serving.turn import SlotTurn


def idle(number: int, size: int, unused_s: float, stays_s: float = 0.0) -> Place:
    return Place(number, False, size, unused_s, stays_s)


FREE, LOADING = Place(3, True), Place(2)


def test_a_free_slot_takes_what_fits_and_nothing_leaves() -> None:
    assert room_for(10, 10, [idle(0, 50, 99.0), LOADING, FREE]) == Room(3, [])


def test_the_shard_that_was_idle_longest_leaves_first_and_only_as_many_as_needed() -> None:
    places = [idle(0, 50, 20.0), idle(1, 50, 90.0), FREE]
    assert room_for(40, 0, places) == Room(1, [1])
    assert room_for(60, 10, places) == Room(1, [1])
    assert room_for(61, 10, places) == Room(0, [1, 0])
    assert room_for(111, 10, places) == inf


def test_without_a_free_slot_one_leaves_although_memory_suffices() -> None:
    assert room_for(1, 100, [idle(0, 50, 20.0), idle(1, 50, 90.0)]) == Room(1, [1])


def test_a_shard_that_stays_is_waited_for_and_one_in_use_is_not_counted() -> None:
    places = [idle(0, 50, 20.0), idle(1, 50, 90.0, 30.0), Place(2, False, 50, 0.0, inf)]
    assert room_for(50, 0, places) == Room(0, [0])
    assert room_for(60, 0, places) == 30.0
    assert room_for(101, 0, places) == inf


def test_the_slot_with_a_part_of_the_model_leaves_in_any_case() -> None:
    part = idle(1, 50, 1.0)
    assert room_for(60, 20, [idle(0, 50, 20.0), FREE], part) == Room(1, [1])
    assert room_for(80, 20, [idle(0, 50, 20.0), FREE], part) == Room(0, [1, 0])


def test_a_shard_stays_a_minute_or_a_multiple_of_its_loading() -> None:
    turn = SlotTurn()
    turn.began(100.0, 1.0)
    assert turn.stays_s(100.0) == SLOT_STAY and turn.stays_s(100.0 + SLOT_STAY) == 0.0
    turn.began(200.0, 100.0)
    assert turn.stays_s(200.0) == 100.0 * SLOT_STAY_LOADS


@pytest.mark.trio
async def test_a_slot_that_waits_takes_what_it_is_given_when_the_others_have_left(
    autojump_clock: object,
) -> None:
    turn, left, choices = SlotTurn(), trio.Event(), list[ServingChoice]()

    async def never() -> ServingChoice:
        await trio.sleep_forever()
        raise AssertionError

    async def choose() -> None:
        choices.append(await turn.choice(never))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(choose)
        await trio.testing.wait_all_tasks_blocked()
        assert turn.waits
        turn.give("root", [left], 10)
        assert not turn.waits
        await trio.testing.wait_all_tasks_blocked()
        assert not choices and turn.asked == "root"
        left.set()
    assert choices[0].root == "root" and turn.asked is None and not turn.waits


@pytest.mark.trio
async def test_a_choice_that_ended_at_the_same_moment_does_not_hide_what_was_given(
    autojump_clock: object,
) -> None:
    turn = SlotTurn()

    async def choose() -> ServingChoice:
        await trio.lowlevel.checkpoint()
        turn.give("root", [], 10)
        return ServingChoice("other", "", True)

    assert (await turn.choice(choose)).root == "root"
