"""Unknown nodes that serve a model: found in the DHT, linked to, and kept."""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from shoal.dht.finding import FindingResult
from shoal.dht.lookup.foundrecords import FoundRecord
from shoal.dht.records.key import Key, record_key
from shoal.dht.records.record import ShardBody, open_record, seal_record
from shoal.node import defaults
from shoal.node.swarm.seeking import Seeking
from shoal.transport.errors import DialFailed
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity, PeerId

ROOT = "ab" * 32
MADE = 1_700_000_000_000


def author(number: int) -> Identity:
    return Identity.from_seed(Random(number).randbytes(32))


def said(number: int, start: int, stop: int) -> FoundRecord:
    body = ShardBody(ROOT, start, stop, start == 0, stop == 6, "float32", speed=0.0)
    record = open_record(seal_record(author(number), body, made=MADE, ttl=3600))
    return FoundRecord(record, 0.0, PeerId("teller"))


class Net:
    """A DHT, a directory, and dials that take a second."""

    def __init__(self, *records: FoundRecord) -> None:
        self.records = records
        self.live: set[PeerId] = set()
        self.dead: set[PeerId] = set()
        self.dialled: list[PeerId] = []
        self.kept: list[PeerId] = []
        self.finds = 0
        some: Any = self
        self.seeking = Seeking(RealHost(), some, some, some)

    async def find(self, key: Key, **how: Any) -> FindingResult:
        assert key == record_key("shard", ROOT)
        self.finds += 1
        await trio.sleep(0.1)
        return FindingResult(self.records)

    def members(self) -> set[PeerId]:
        return self.live

    async def connect(self, peer: PeerId) -> Any:
        self.dialled.append(peer)
        await trio.sleep(1)
        if peer in self.dead:
            raise DialFailed("timeout", "nobody there")
        return SimpleNamespace(keep=lambda: self.kept.append(peer))


@pytest.mark.trio
async def test_links_to_strangers_are_kept(autojump_clock: object) -> None:
    net = Net(said(1, 0, 3), said(2, 3, 6), said(3, 3, 6))
    net.live, net.dead = {author(1).peer}, {author(3).peer}
    assert await net.seeking.seek(ROOT)
    assert set(net.dialled) == {author(2).peer, author(3).peer}
    assert net.kept == [author(2).peer]


@pytest.mark.trio
async def test_no_node_serves_the_model(autojump_clock: object) -> None:
    assert not await Net().seeking.seek(ROOT)
    net = Net(said(1, 0, 6))
    net.dead = {author(1).peer}
    assert not await net.seeking.seek(ROOT)


@pytest.mark.trio
async def test_each_range_of_layers_gets_links(autojump_clock: object) -> None:
    """Many providers of one range do not crowd out those of another."""
    crowd = [said(number, 0, 3) for number in range(1, 41)]
    net = Net(*crowd, said(50, 3, 6))
    assert await net.seeking.seek(ROOT)
    assert len(net.dialled) == defaults.SEEK_LINKS
    assert author(50).peer in net.dialled


@pytest.mark.trio
async def test_concurrent_requests_share_one_search(autojump_clock: object) -> None:
    net = Net(said(1, 0, 6))
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(net.seeking.seek, ROOT)
    assert net.finds == 1
    assert not await net.seeking.seek(ROOT), "a search has just ended"
    await trio.sleep(defaults.SEEK_PAUSE + 1)
    assert await net.seeking.seek(ROOT)
    assert net.finds == 2


@pytest.mark.parametrize("when", [0.05, 0.5])
@pytest.mark.trio
async def test_cancelled_request_leaves_no_state(when: float, autojump_clock: object) -> None:
    net = Net(said(1, 0, 6))
    with trio.move_on_after(when):
        await net.seeking.seek(ROOT)
    await trio.sleep(defaults.SEEK_PAUSE + 1)
    assert await net.seeking.seek(ROOT)
