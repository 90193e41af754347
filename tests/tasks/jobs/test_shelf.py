"""Tests of large results as blobs, which are dropped once they are not needed."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest
import trio

from shoal.dht.content.library import Library
from shoal.dht.content.tree import TOP_FANOUT, Tree, build
from shoal.dht.defaults import CHUNK
from shoal.dht.exchange.exchange import ChunkExchange
from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.world import World
from shoal.tasks.jobs.errors import BadOutcome
from shoal.tasks.jobs.shelf import Shelf, Storage
from shoal.transport.identity import PeerId
from tests.dht.exchange.test_exchange import Swarm
from tests.tasks.jobs.fake_state import ME
from tests.tasks.jobs.quotas import quota_of

DATA = b"so be it " * 1000
FOLDER = Path("/data/shelf")


class FakeExchange:
    """Exchange with providers of one blob, which enters the library when it is fetched."""

    def __init__(self, library: Library, path: Path) -> None:
        self.announced: list[str] = []
        self._library = library
        self._path = path

    async def announce(self, root: str) -> None:
        await trio.lowlevel.checkpoint()
        self.announced.append(root)

    async def fetch_tree(
        self,
        root: str,
        peers: Callable[[], Sequence[PeerId]],
        *,
        patience: float,
        most: int | None = None,
    ) -> Tree:
        await self._library.add_blob(self._path)
        return await self._library.blobs.tree(root)

    async def fetch_blob(self, *args: object, **more: object) -> None:
        await trio.lowlevel.checkpoint()


class Desk:
    def __init__(self, host: SimulatedHost) -> None:
        self.host = host
        self.path = Path("/data/file")
        self.library = Library(host, Path("/data/models"))
        self.exchange = FakeExchange(self.library, self.path)
        self.withdrawn: list[str] = []
        self.room: list[int] = []
        self.shelf = Shelf(
            host,
            Storage(self.library, self, self.withdrawn.append),
            cast(ChunkExchange, self.exchange),
            FOLDER,
            own=ME,
            linked=list,
        )

    async def evict_for(self, needed: int, *, asked: bool = False) -> None:
        await trio.lowlevel.checkpoint()
        self.room.append(needed)

    async def part(self, share: float) -> int:
        await trio.lowlevel.checkpoint()
        return int(share * 2**30)

    def files(self) -> list[str]:
        return [entry.name for entry in self.host.files.list(FOLDER)]


@asynccontextmanager
async def desk(world: World) -> AsyncIterator[Desk]:
    async with trio.open_nursery() as nursery:
        made = Desk(SimulatedHost(world.host("one"), PROFILES["desktop"], nursery, 0))
        await made.library.open()
        made.host.files.write(made.path, DATA)
        yield made
        nursery.cancel_scope.cancel()


async def test_a_result_is_announced_and_dropped(world: World) -> None:
    async with desk(world) as made:
        root = await made.shelf.put(DATA)
        assert made.exchange.announced == [root] and made.room == [len(DATA)]
        assert made.library.blobs.roots() == {root} and made.files() == [root]
        assert made.library.store.has(root) or made.library.store.has(
            next(iter(await made.library.parts(root)))
        )
        parts = await made.library.parts(root)
        await made.shelf.drop(root)
        assert made.withdrawn == [root] and made.files() == []
        assert not made.library.blobs.roots()
        assert not any(made.library.store.has(part) for part in parts)


async def test_the_owner_s_own_blob_of_the_same_bytes_stays(world: World) -> None:
    async with desk(world) as made:
        root = await made.library.add_blob(made.path)
        assert await made.shelf.put(DATA) == root
        await made.shelf.drop(root)
        assert made.library.blobs.roots() == {root} and not made.withdrawn


async def test_results_of_a_killed_run_are_dropped(world: World) -> None:
    async with desk(world) as made:
        one, two = await made.shelf.put(DATA), await made.shelf.put(DATA + b"!")
        await made.shelf.tidy({two})
        assert made.library.blobs.roots() == {two} and one not in made.files()


async def test_a_fetched_result_is_not_stored(world: World) -> None:
    async with desk(world) as made:
        root = await made.library.add_blob(made.path)
        await made.library.forget(root)
        assert await made.shelf.get(root, len(DATA)) == DATA
        assert not made.library.blobs.roots() and made.files() == []
        await made.library.add_blob(made.path)
        assert await made.shelf.get(root, len(DATA)) == DATA
        assert made.library.blobs.roots() == {root}, "it was here before"


async def test_a_blob_of_another_size_is_refused(world: World) -> None:
    async with desk(world) as made:
        root = await made.library.add_blob(made.path)
        await made.library.forget(root)
        with pytest.raises(BadOutcome):
            await made.shelf.get(root, len(DATA) - 1)
        assert not made.library.blobs.roots()


@pytest.mark.trio
async def test_a_blob_larger_than_claimed_is_not_fetched(
    tmp_path: Path, autojump_clock: object
) -> None:
    """A claimant may name a blob of 2 TB, whose tree takes 300 MB of the author's memory."""
    swarm = Swarm(tmp_path)
    claimant, author = await swarm.member("claimant"), await swarm.member("author", evicts=True)
    count = TOP_FANOUT + 1
    large, nodes = build(count * CHUNK, ["ab" * 32] * count)
    await claimant.library.blobs.keep(large, nodes)

    shelf = Shelf(
        author.host,
        Storage(author.library, quota_of(author), lambda root: None),
        author.exchange,
        tmp_path / "shelf",
        own=ME,
        linked=swarm.network.peers,
    )
    with pytest.raises(BadOutcome):
        await shelf.get(large.root, 1000)
    assert author.node.asked_of.total() == 1, "its top, and none of its nodes"
    assert not author.library.blobs.roots()
