"""Who punches for a relayed link, and when again."""

from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from shoal.transport import defaults
from shoal.transport.guard import Guard
from shoal.transport.identity import PeerId
from shoal.transport.improving import Improving
from shoal.transport.pipe import Way

pytestmark = pytest.mark.trio


class Link:
    peer = "peer"
    alive = True
    way = Way.RELAYED


class Puncher:
    def __init__(self) -> None:
        self.at: list[float] = []

    async def punch(self, link: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.at.append(round(trio.current_time(), 3))


async def know(peer: PeerId) -> None:
    await trio.lowlevel.checkpoint()


async def test_a_newer_link_to_the_same_peer_has_a_task_of_its_own(
    autojump_clock: MockClock,
) -> None:
    puncher = Puncher()
    improving = Improving(cast(Any, puncher), know, Guard())
    async with trio.open_nursery() as nursery:
        improving.begin(cast(Any, Link()), nursery, at_once=True)
        await trio.sleep(1)
        improving.begin(cast(Any, Link()), nursery, at_once=True)
        await trio.sleep(5)
        nursery.cancel_scope.cancel()
    assert puncher.at == [0.0, 1.0, 5.0]  # and nothing more for the older one


async def test_one_task_for_each_link(autojump_clock: MockClock) -> None:
    puncher, link = Puncher(), cast(Any, Link())
    improving = Improving(cast(Any, puncher), know, Guard())
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            improving.begin(link, nursery, at_once=True)
        await trio.sleep(sum(defaults.PUNCH_PAUSES_S[:2]) + 1)
        nursery.cancel_scope.cancel()
    assert puncher.at == [0.0, 4.0, 14.0]


async def test_it_ends_when_the_link_is_direct(autojump_clock: MockClock) -> None:
    puncher, link = Puncher(), cast(Any, Link())
    improving = Improving(cast(Any, puncher), know, Guard())
    async with trio.open_nursery() as nursery:
        improving.begin(link, nursery, at_once=True)
        await trio.sleep(1)
        link.way = Way.PUNCHED
    assert puncher.at == [0.0]


async def test_another_network_is_a_reason_to_try_at_once(autojump_clock: MockClock) -> None:
    puncher, link = Puncher(), cast(Any, Link())
    improving = Improving(cast(Any, puncher), know, Guard())
    async with trio.open_nursery() as nursery:
        improving.begin(link, nursery, at_once=False)
        await trio.sleep(1)
        improving.hurry()
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert puncher.at == [1.0]
