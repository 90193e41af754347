"""Punching for relayed links: at most one task for each, and its pauses."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from shoal.transport import defaults
from shoal.transport.bytestream import PathKind
from shoal.transport.guard import Guard
from shoal.transport.nat.punch.improving import Improving
from shoal.transport.nat.punch.outcome import PunchOutcome, StrategyOutcome, StrategyResult
from shoal.transport.nat.punch.predict import PredictionPlan
from shoal.transport.peertasks import PeerTasks

pytestmark = pytest.mark.trio


class Link:
    peer = "peer"
    alive = True
    path_kind = PathKind.RELAYED
    needed = False

    def need(self) -> None:
        self.needed = True


class Puncher:
    """Every attempt fails. If `hard`, only a search would help."""

    def __init__(self, *, hard: bool = False) -> None:
        self.at: list[float] = []
        self.searched: list[float] = []
        self.hard = hard

    async def punch(self, link: Any, *, thrifty: bool) -> PunchOutcome:
        await trio.lowlevel.checkpoint()
        now = round(trio.current_time(), 3)
        self.at.append(now)
        if not thrifty:
            self.searched.append(now)
        spared = StrategyOutcome(StrategyResult.NOT_POSSIBLE, PredictionPlan.SPARED)
        return PunchOutcome(link.peer, {"prediction": spared} if self.hard and thrifty else {})


@asynccontextmanager
async def improves(puncher: Puncher) -> AsyncIterator[tuple[Improving, trio.Nursery]]:
    """Run an `Improving`, and return it with the nursery of its tasks."""
    tasks = PeerTasks(Guard())
    async with trio.open_nursery() as nursery:
        with tasks.run_in(nursery):
            yield Improving(cast(Any, puncher), tasks), nursery


async def test_a_newer_link_to_the_same_peer_has_a_task_of_its_own(
    autojump_clock: MockClock,
) -> None:
    puncher = Puncher()
    async with improves(puncher) as (improving, nursery):
        improving.begin(cast(Any, Link()), at_once=True)
        await trio.sleep(1)
        improving.begin(cast(Any, Link()), at_once=True)
        await trio.sleep(5)
        nursery.cancel_scope.cancel()
    assert puncher.at == [0.0, 1.0, 5.0]  # and nothing more for the older one


async def test_one_task_for_each_link(autojump_clock: MockClock) -> None:
    puncher, link = Puncher(), cast(Any, Link())
    async with improves(puncher) as (improving, nursery):
        for _ in range(3):
            improving.begin(link, at_once=True)
        await trio.sleep(sum(defaults.PUNCH_PAUSES_S[:2]) + 1)
        nursery.cancel_scope.cancel()
    assert puncher.at == [0.0, 4.0, 14.0]


async def test_it_ends_when_the_link_is_direct(autojump_clock: MockClock) -> None:
    puncher, link = Puncher(), cast(Any, Link())
    async with improves(puncher) as (improving, _):
        improving.begin(link, at_once=True)
        await trio.sleep(1)
        link.path_kind = PathKind.PUNCHED
    assert puncher.at == [0.0]


async def test_a_network_change_retries_at_once(autojump_clock: MockClock) -> None:
    puncher, link = Puncher(), cast(Any, Link())
    async with improves(puncher) as (improving, nursery):
        improving.begin(link, at_once=False)
        await trio.sleep(1)
        improving.hurry()
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert puncher.at == [1.0]


async def test_a_search_waits_until_a_component_needs_the_link(autojump_clock: MockClock) -> None:
    """A search sends 2,000 datagrams, as many as a home may send in its whole first minute."""
    puncher, link = Puncher(hard=True), cast(Any, Link())
    async with improves(puncher) as (improving, nursery):
        improving.begin(link, at_once=True)
        await trio.sleep(60)
        assert (puncher.at, puncher.searched) == ([0.0], []), "again would be as vain"
        improving.need(link)
        await trio.sleep(1)
        assert puncher.searched == [60.0]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["asked for by a session", "held by a session"])
async def test_a_link_that_is_needed_is_searched_for_at_once(
    how: str, autojump_clock: MockClock
) -> None:
    puncher, link = Puncher(hard=True), cast(Any, Link())
    async with improves(puncher) as (improving, nursery):
        if how == "held by a session":
            link.needed = True
            improving.begin(link, at_once=True)
        else:
            with improving.needing(link.peer):
                improving.begin(link, at_once=True)
                await trio.sleep(0.1)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert puncher.searched == [0.0]


async def test_a_link_that_a_session_begins_to_hold_is_noticed(autojump_clock: MockClock) -> None:
    puncher, link = Puncher(hard=True), cast(Any, Link())
    async with improves(puncher) as (improving, nursery):
        improving.begin(link, at_once=True)
        await trio.sleep(10)
        improving.look(link)
        await trio.sleep(1)
        assert puncher.searched == []
        link.needed = True
        improving.look(link)
        await trio.sleep(1)
        assert puncher.searched == [11.0]
        nursery.cancel_scope.cancel()
