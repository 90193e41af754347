"""A node that serves a part of a model reports its links to those that share the model."""

import math
from dataclasses import replace
from itertools import count

import pytest
import trio

from shoal.state.membership.record import Aim, Rank, ShardRecord
from shoal.tasks.costs.rates import LinkRates
from shoal.tasks.defaults import LINKS_LOOK, LINKS_REPORTS
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
        reports = LinkReports(directory, lambda: Backing(links=LINKS), lambda peers: None)
        nursery.start_soon(reports.run)
        await trio.sleep(LINKS_LOOK - 1)
        assert not directory.own().links, "a new node has few links"
        await trio.sleep(2)
        nursery.cancel_scope.cancel()
    return [link.round_trip_ms for link in directory.own().links]


@pytest.mark.trio
async def test_it_reports_the_members_of_its_model(autojump_clock: object) -> None:
    assert await reported(shard(0, 3)) == [9.35]


@pytest.mark.trio
async def test_a_node_that_serves_a_whole_model_reports_nothing(autojump_clock: object) -> None:
    assert await reported(shard(0, 6)) == []


@pytest.mark.trio
async def test_links_that_change_all_the_time_are_reported_rarely(autojump_clock: object) -> None:
    """A few reports may follow each other: a new link is relayed first, and direct soon."""
    directory, trips, versions = FakeDirectory(), count(1), set[tuple[float, ...]]()
    directory.put(replace(directory.own(), shards=(shard(0, 3),)))
    directory.put(replace(record_of(NEAR), aims=(Aim(ROOT, 3, 6, Rank.HOLDS),)))

    def links() -> Backing:
        return Backing(links={NEAR: LinkRates(0.001 * 2 ** next(trips))})

    async def watch() -> None:
        while True:
            await trio.sleep(1)
            versions.add(tuple(link.round_trip_ms for link in directory.own().links))

    burst, rate = LINKS_REPORTS
    async with trio.open_nursery() as nursery:
        nursery.start_soon(LinkReports(directory, links, lambda peers: None).run)
        nursery.start_soon(watch)
        await trio.sleep(burst * LINKS_LOOK + 0.5)
        assert len(versions - {()}) == burst
        await trio.sleep(40)
        assert len(versions - {()}) == burst + math.floor((40 + burst * LINKS_LOOK) * rate)
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_members_with_adjacent_layers_are_expected(autojump_clock: object) -> None:
    directory, expected = FakeDirectory(), list[set[PeerId]]()
    directory.put(replace(directory.own(), shards=(shard(2, 4),)))
    parts = {2: shard(0, 2), 3: shard(4, 6), 4: shard(2, 4), 5: shard(0, 6), 6: shard(0, 3)}
    for number, part in parts.items():
        directory.put(replace(record_of(peer_of(number)), shards=(part,)))
    other = replace(shard(0, 2), root="cd" * 32)
    directory.put(replace(record_of(peer_of(7)), shards=(other,)))
    async with trio.open_nursery() as nursery:
        reports = LinkReports(directory, Backing, lambda peers: expected.append(set(peers)))
        nursery.start_soon(reports.run)
        await trio.sleep(LINKS_LOOK + 1)
        nursery.cancel_scope.cancel()
    assert expected == [{peer_of(2), peer_of(3)}]


@pytest.mark.parametrize("own, other", [(shard(0, 3), shard(3, 6)), (shard(3, 6), shard(0, 2))])
def test_the_first_layers_follow_the_last_ones(own: ShardRecord, other: ShardRecord) -> None:
    directory = FakeDirectory()
    directory.put(replace(directory.own(), shards=(own,)))
    directory.put(replace(record_of(NEAR), shards=(other,)))
    reports = LinkReports(directory, Backing, lambda peers: None)
    assert reports.adjacent(directory.own()) == [NEAR]
