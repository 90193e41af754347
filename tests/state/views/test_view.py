"""A view follows each fact, informs its watchers, and bounds their memory."""

import gc
from collections.abc import Mapping
from typing import Any

import pytest
import trio
import trio.testing

from shoal.state import defaults
from shoal.state.feeds.entry import FeedName
from shoal.state.views.fields import read_whole
from shoal.state.views.view import View, ViewChange, ViewWatch
from shoal.transport.identity import PeerId


class Sums(View[str, int, int]):
    """A view with the sum of all authors' values of a key, which counts its updates."""

    kinds = ("sums",)

    def __init__(self) -> None:
        super().__init__()
        self.sums: dict[str, int] = {}
        self.derived = 0

    def get(self, subject: str) -> int | None:
        return self.sums.get(subject)

    def _read(self, name: FeedName, key: str, value: Mapping[str, Any]) -> int:
        return read_whole(value.get("n"), 100)

    def _replace(self, name: FeedName, key: str, old: int | None, new: int | None) -> None:
        self.derived += 1
        self.sums[key] = self.sums.get(key, 0) - (old or 0) + (new or 0)
        self._tell(key)


ALICE, BOB = (FeedName(PeerId(name), "sums", 0) for name in ("alice", "bob"))


def test_a_view_follows_each_fact() -> None:
    view = Sums()
    view.changed(ALICE, "a", {"n": 1})
    view.changed(BOB, "a", {"n": 2})
    view.changed(ALICE, "a", {"n": 5})
    assert view.get("a") == 7
    view.changed(BOB, "a", None)
    view.changed(BOB, "never", None)
    assert view.get("a") == 5 and not view.keys(BOB) and set(view.keys(ALICE)) == {"a"}


def test_an_equal_fact_causes_no_update() -> None:
    view = Sums()
    for _ in range(3):
        view.changed(ALICE, "a", {"n": 1, "unknown": "field"})
    view.changed(ALICE, "b", None)
    assert view.derived == 1


def test_a_malformed_fact_is_counted_and_skipped() -> None:
    view = Sums()
    view.changed(ALICE, "a", {"n": 1})
    view.changed(ALICE, "a", {"n": "1"})
    view.changed(ALICE, "b", {})
    assert view.get("a") == 0 and view.bad == 2 and not view.keys(ALICE)


def test_a_forgotten_feed_no_longer_counts() -> None:
    view = Sums()
    for name in (ALICE, BOB):
        view.changed(name, "a", {"n": 1})
        view.changed(name, "b", {"n": 2})
    view.forgotten(ALICE)
    assert (view.get("a"), view.get("b")) == (1, 2)
    view.forgotten(ALICE)
    view.forgotten(BOB)
    assert (view.get("a"), view.get("b")) == (0, 0) and not view.facts


def told(watch: ViewWatch[str, int]) -> list[ViewChange[str, int]]:
    found = []
    while (change := watch.next_now()) is not None:
        found.append(change)
    return found


def test_changes_of_one_subject_are_merged() -> None:
    view = Sums()
    early, late = view.watch(), view.watch()
    view.changed(ALICE, "a", {"n": 1})
    assert told(early) == [ViewChange("a", 1)]
    for n in range(2, 9):
        view.changed(ALICE, "a", {"n": n})
        view.changed(BOB, "b", {"n": n})
    assert told(early) == told(late) == [ViewChange("a", 8), ViewChange("b", 8)]
    assert not told(late)


def test_a_slow_watcher_is_bounded_and_learns_that_it_missed_changes() -> None:
    view = Sums()
    watch = view.watch()
    for number in range(10 * defaults.WATCHED):
        view.changed(ALICE, str(number), {"n": 1})
        assert len(watch) <= defaults.WATCHED
    assert told(watch) == [ViewChange(None, None)]
    view.changed(ALICE, "a", {"n": 3})
    assert told(watch) == [ViewChange("a", 3)]


def test_a_watch_without_its_bound_holds_all_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "WATCHED", 2**30)
    view = Sums()
    watch = view.watch()
    for number in range(3_000):
        view.changed(ALICE, str(number), {"n": 1})
    assert len(watch) == 3_000


@pytest.mark.usefixtures("own_garbage")
def test_an_abandoned_watch_costs_nothing() -> None:
    view = Sums()
    watch = view.watch()
    view.changed(ALICE, "a", {"n": 1})
    assert len(view.watches) == 1 and len(watch) == 1
    del watch
    gc.collect()
    assert not len(view.watches)


@pytest.mark.trio
async def test_a_watcher_sleeps_until_something_changes() -> None:
    view = Sums()
    seen: list[ViewChange[str, int]] = []

    async def look() -> None:
        async for change in view.watch():
            seen.append(change)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await trio.testing.wait_all_tasks_blocked()
        view.changed(ALICE, "a", {"n": 1})
        view.changed(ALICE, "a", {"n": 2})
        await trio.testing.wait_all_tasks_blocked()
        assert seen == [ViewChange("a", 2)]
        view.changed(ALICE, "a", None)
        await trio.testing.wait_all_tasks_blocked()
        assert seen[1:] == [ViewChange("a", 0)]
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_busy_view_does_not_keep_its_watcher_from_being_cancelled() -> None:
    view = Sums()
    watch = view.watch()
    view.changed(ALICE, "a", {"n": 1})
    with trio.CancelScope() as scope:
        scope.cancel()
        await anext(watch)
    assert scope.cancelled_caught and told(watch) == [ViewChange("a", 1)]
