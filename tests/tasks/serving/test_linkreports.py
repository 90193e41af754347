"""A node that serves a part of a model reports its links to those that share the model."""

from dataclasses import replace

import pytest
import trio

from shoal.state.membership.record import Aim, Rank, ShardRecord
from shoal.tasks.costs.rates import LinkRates
from shoal.tasks.defaults import LINKS_PAUSE
from shoal.tasks.placement.demand import Backing
from shoal.tasks.serving.linkreports import LinkReports
from shoal.transport.identity import PeerId
from tests.tasks.fake_node import FakeDirectory, record_of
from tests.tasks.fake_swarm import peer_of

ROOT = "ab" * 32
NEAR, STRANGER, UNLINKED = peer_of(2), peer_of(3), peer_of(4)
LINKS: dict[PeerId, LinkRates] = {NEAR: LinkRates(0.009), STRANGER: LinkRates(0.009)}


def shard(start: int, stop: int) -> ShardRecord:
    return ShardRecord(ROOT, start == 0, start, stop, stop == 6, "float32", 1)


async def reported(own: ShardRecord) -> list[float]:
    directory = FakeDirectory()
    directory.put(replace(directory.own(), shards=(own,)))
    aims = (Aim(ROOT, 3, 6, Rank.HOLDS),)
    for peer, more in ((NEAR, {"aims": aims}), (UNLINKED, {"aims": aims}), (STRANGER, {})):
        directory.put(replace(record_of(peer), **more))  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(LinkReports(directory, lambda: Backing(links=LINKS)).run)
        await trio.sleep(LINKS_PAUSE - 1)
        assert not directory.own().links, "it reports rarely"
        await trio.sleep(2)
        nursery.cancel_scope.cancel()
    return [link.round_trip_ms for link in directory.own().links]


@pytest.mark.trio
async def test_it_reports_the_members_of_its_model(autojump_clock: object) -> None:
    assert await reported(shard(0, 3)) == [9.35]


@pytest.mark.trio
async def test_a_node_that_serves_a_whole_model_reports_nothing(autojump_clock: object) -> None:
    assert await reported(shard(0, 6)) == []
