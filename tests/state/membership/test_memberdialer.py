"""How many members are dialled, and when."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from shoal.state import defaults
from shoal.state.membership.liveness import Liveness
from shoal.state.membership.memberdialer import MemberDialer
from shoal.state.membership.roster import Roster
from shoal.transport.address import Address
from shoal.transport.errors import DialFailed
from shoal.transport.guard import Guard
from shoal.transport.identity import PeerId
from shoal.transport.networks import Nearness
from tests.state.fake_net import FakeHost
from tests.state.membership.test_roster import OWN, identity, told

pytestmark = pytest.mark.trio


class Node:
    """A node with some links that has lost `lost` others. `back` says whether their peers can be
    reached again.
    """

    def __init__(self, links: int, lost: int) -> None:
        self.roster = Roster(OWN.peer)
        self.dials = 0
        self.under_way = self.most_under_way = 0
        self.back = False
        for number in range(1, links + lost + 1):
            self.roster.linked(identity(number).peer, Nearness.PUBLIC)
            told(self.roster, number, number)
        for number in range(links + 1, links + lost + 1):
            self.roster.unlinked(identity(number).peer, 0.0)
        endpoint: Any = SimpleNamespace(guard=Guard())
        host = cast(Any, FakeHost())
        liveness = Liveness(OWN.peer)
        self._news = trio.Event()
        self._dialer = MemberDialer(host, endpoint, self.roster, liveness, None, self._connect)

    async def _connect(self, peer: PeerId, addresses: Sequence[Address]) -> None:
        self.dials += 1
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await trio.sleep(1.0 if self.back else 10.0)
            if not self.back:
                raise DialFailed("timeout", "no answer")
            self.roster.linked(peer, Nearness.PUBLIC)
        finally:
            self.under_way -= 1

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                wait = self._dialer.start_due(nursery, lambda: self._news.set())
                assert wait > 0
                with trio.move_on_after(wait):
                    await self._news.wait()
                self._news = trio.Event()
                await trio.sleep(defaults.ROUND)


@asynccontextmanager
async def running(node: Node) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node.run)
        yield
        nursery.cancel_scope.cancel()


async def test_after_a_partition_each_node_dials_a_few_lost_members(
    autojump_clock: MockClock,
) -> None:
    node = Node(links=10, lost=10)
    async with running(node):
        await trio.sleep(300)
        assert 20 < node.dials < 80  # it goes on for as long as none answers
        assert node.most_under_way == defaults.REGAINED_LINKS[0]
        node.back, dials = True, node.dials
        await trio.sleep(20)
        assert len(node.roster.live) == 12
        assert node.dials <= dials + 2
        await trio.sleep(150)
        assert len(node.roster.live) == 14


async def test_a_node_that_lacks_links_dials_lost_members_at_once(
    autojump_clock: MockClock,
) -> None:
    node = Node(links=0, lost=10)
    node.back = True
    async with running(node):
        await trio.sleep(5)
        assert len(node.roster.live) == defaults.MEMBER_LINKS + defaults.REGAINED_LINKS[0]


@pytest.mark.parametrize(("known", "at_once"), [(16, 3), (17, 2)])
async def test_a_node_of_a_large_swarm_dials_its_third_member_later(
    known: int, at_once: int, autojump_clock: MockClock
) -> None:
    node = Node(links=0, lost=0)
    node.back = True
    for number in range(1, known + 1):
        told(node.roster, number, number)
    async with running(node):
        await trio.sleep(10)
        assert len(node.roster.live) == at_once
        await trio.sleep(1.5 * defaults.LINK_PAUSE)
        assert len(node.roster.live) == at_once + 1
