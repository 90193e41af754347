"""Collections happen at counts of work, at the same ones in every run."""

import gc
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest

from shoal.netsim.determinism import memory
from shoal.netsim.determinism.memory import Collector, deterministic_collection
from shoal.netsim.world import World


def collections(monkeypatch: pytest.MonkeyPatch, work: int, step: int) -> list[tuple[int, int]]:
    """Return (work done, generation) of each collection."""
    seen: list[tuple[int, int]] = []
    done = 0
    monkeypatch.setattr(gc, "collect", lambda generation: seen.append((done, generation)))
    collector = Collector()
    while done < work:
        done += step
        collector.turn(done)
    return seen


def test_young_objects_are_collected_often_and_old_ones_rarely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = collections(monkeypatch, 3_000_000, 100)
    counts = Counter(generation for _, generation in seen)
    assert counts[0] > 8 * counts[1] > 8 * counts[2] > 0
    full = [done for done, generation in seen if generation == 2]
    assert all(b - a > a / 2 for a, b in pairwise(full))
    assert seen == collections(monkeypatch, 3_000_000, 100)


def test_intervals_between_full_collections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = collections(monkeypatch, 20 * memory.FULL_AT_MOST, memory.YOUNG)
    full = [done for done, generation in seen if generation == 2]
    assert max(b - a for a, b in pairwise(full)) <= 1.01 * memory.FULL_AT_MOST


def test_garbage_of_a_run_is_collected_in_the_run() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.me = self

    world = World()
    alive: list[Any] = []

    async def main() -> int:
        for number in range(3 * memory.YOUNG):
            Cycle()
            world.events.at(number * 1e-3, lambda _: None)
        world.events.run_until(10.0)
        return sum(isinstance(item, Cycle) for item in gc.get_objects(generation=0))

    alive.append(world.run(main))
    assert alive[0] == 3 * memory.YOUNG  # nothing is collected without the collector
    with deterministic_collection() as collector:
        Cycle()
        assert gc.get_objects(generation=0) and not gc.isenabled()
        collector.turn(memory.YOUNG)
        assert not any(isinstance(item, Cycle) for item in gc.get_objects())
    assert gc.isenabled()


def test_memory_freed_by_full_collections_is_returned_to_the_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[int] = []
    monkeypatch.setattr(gc, "collect", lambda generation: None)
    collector = Collector()
    monkeypatch.setattr(collector, "trim", given.append)
    collector.turn(memory.YOUNG)
    assert not given
    collector.turn(memory.MIDDLE)
    collector.turn(memory.FULL_FIRST)
    assert given == [0, 0]
