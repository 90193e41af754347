"""scrub: bit rot is found once a month, at a limited rate, while the node is idle."""

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from shoal.dht.content.library import Library
from shoal.dht.content.scrub import Scrub
from shoal.dht.defaults import CHUNK, SCRUB_EVERY, SCRUB_LOOK, SCRUB_MEND, SCRUB_RATE
from shoal.dht.errors import ChunkCorrupt, FetchFailed

from ..models import FakeHost, open_library

pytestmark = pytest.mark.trio


class Clocked(FakeHost):
    """Host whose wall clock follows virtual time."""

    def wall(self) -> float:
        return 1e9 + trio.current_time()


class World:
    """A blob of eight chunks, and the chunks that the scrub asked to repair."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = Clocked(inline=True)
        self.repaired: list[tuple[str, list[str]]] = []
        self.idle = True
        self.fails = False

    async def open(self) -> "World":
        self.library: Library = await open_library(self.folder / "data", self.host)
        path = self.folder / "file"
        path.write_bytes(b"".join(bytes([n]) * CHUNK for n in range(8)))
        self.root = await self.library.add_blob(path)
        self.leaves = (await self.library.blobs.tree(self.root)).leaves
        return self

    async def repair(self, root: str, digests: list[str]) -> None:
        self.repaired.append((root, digests))
        if self.fails:
            raise FetchFailed("no-source", "no peer")

    def scrub(self) -> Scrub:
        path = self.folder / "scrub.json"
        return Scrub(self.host, self.library, path, repair=self.repair, idle=lambda: self.idle)

    def rot(self, *indexes: int) -> list[str]:
        for index in indexes:
            path = self.library.store.path(self.leaves[index])
            data = bytearray(path.read_bytes())
            data[index] ^= 1
            path.write_bytes(data)
        return sorted(self.leaves[index] for index in indexes)


@pytest.fixture
async def world(tmp_path: Path) -> World:
    return await World(tmp_path).open()


@pytest.mark.parametrize("fails", [False, True])
async def test_rot_is_found_and_fetched_again(
    world: World, autojump_clock: MockClock, fails: bool
) -> None:
    bad, scrub = world.rot(1, 6), world.scrub()
    world.fails = fails
    began = trio.current_time()
    assert await scrub.look_at_all() == scrub.damaged == 2
    assert world.repaired == [(world.root, bad)]
    assert sorted(world.library.store.missing(world.leaves)) == bad
    assert trio.current_time() - began >= 6 * CHUNK / SCRUB_RATE
    assert await scrub.look_at_all() == 0


async def test_a_pass_per_month_also_over_restarts(world: World, autojump_clock: MockClock) -> None:
    passes = 0

    class Counting(Scrub):
        async def look_at_all(self) -> int:
            nonlocal passes
            passes += 1
            return 0

    for _ in range(3):
        path = world.folder / "scrub.json"
        scrub = Counting(world.host, world.library, path, repair=world.repair, idle=lambda: True)
        with trio.move_on_after(SCRUB_EVERY * 0.4):
            await scrub.run()
    assert passes == 2
    (world.folder / "scrub.json").write_bytes(b'{"passed": 1e300}')  # written by a wrong clock
    with trio.move_on_after(1):
        await scrub.run()
    assert passes == 3


async def test_it_waits_while_the_node_is_busy(world: World, autojump_clock: MockClock) -> None:
    world.rot(0)
    world.idle = False
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.scrub().look_at_all)
        await trio.sleep(10 * SCRUB_LOOK)
        assert not world.repaired
        assert world.library.store.has(world.leaves[0])
        world.idle = True
    assert world.repaired


class Providers:
    """Other nodes that have all chunks, or none."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.told: list[tuple[int, int]] = []
        self.asked: list[list[str]] = []
        self.have = True
        self.scrub = Scrub(
            world.host,
            world.library,
            world.folder / "scrub.json",
            repair=self.repair,
            idle=lambda: True,
            tell=lambda mended, lost: self.told.append((mended, lost)),
        )

    async def repair(self, root: str, digests: list[str]) -> None:
        self.asked.append(digests)
        if not self.have:
            raise FetchFailed("no-source", "no peer")
        for digest in digests:
            index = self.world.leaves.index(digest)
            self.world.library.store.put(digest, bytes([index]) * CHUNK)


async def test_damage_found_by_a_reader_is_repaired_before_the_next_pass(
    world: World, autojump_clock: MockClock
) -> None:
    providers = Providers(world)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(providers.scrub.run)
        await trio.sleep(10 * SCRUB_LOOK)
        assert providers.told == [] and providers.scrub.passed is not None
        (bad,) = world.rot(3)
        with pytest.raises(ChunkCorrupt):
            world.library.store.get(bad)
        await trio.sleep(2 * SCRUB_LOOK)
        nursery.cancel_scope.cancel()
    assert providers.asked == [[bad]] and providers.told == [(1, 0)]
    assert world.library.store.get(bad) == bytes([3]) * CHUNK


async def test_chunks_that_no_peer_has_are_reported_and_retried_after_a_while(
    world: World, autojump_clock: MockClock
) -> None:
    providers = Providers(world)
    providers.have = False
    bad = world.rot(2, 5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(providers.scrub.run)
        await trio.sleep(SCRUB_MEND - SCRUB_LOOK)
        assert providers.asked == [bad] and providers.told == [(0, 2)]
        providers.have = True
        await trio.sleep(3 * SCRUB_LOOK)
        nursery.cancel_scope.cancel()
    assert providers.asked == [bad, bad] and providers.told[-1] == (2, 0)
    assert not world.library.store.damaged and not world.library.store.missing(world.leaves)


@pytest.mark.parametrize("own", [True, False])
async def test_missing_chunks_are_fetched_only_for_content_added_here(
    world: World, autojump_clock: MockClock, own: bool
) -> None:
    """A fetched content may be partial on purpose."""
    if not own:
        await world.library.usage.note_fetched(world.root)
    providers = Providers(world)
    world.library.store.remove(world.leaves[4])
    await providers.scrub.look_at_all()
    assert providers.asked == ([[world.leaves[4]]] if own else [])
    assert world.library.store.has(world.leaves[4]) == own


async def test_chunks_that_were_stored_again_are_not_requested(
    world: World, autojump_clock: MockClock
) -> None:
    providers = Providers(world)
    (bad,) = world.rot(1)
    with pytest.raises(ChunkCorrupt):
        world.library.store.get(bad)
    world.library.store.put(bad, bytes([1]) * CHUNK)
    await providers.scrub.mend()
    assert providers.asked == [] and not world.library.store.damaged


async def test_damaged_tree_nodes_are_rewritten_and_damaged_chunks_fetched(
    world: World, autojump_clock: MockClock
) -> None:
    """Only chunks are requested from peers: a request for a tree node would be refused."""
    providers = Providers(world)
    path = world.library.store.path(world.root)
    path.write_bytes(path.read_bytes()[::-1])
    bad = world.rot(3)
    assert await providers.scrub.look_at_all() == 2
    assert providers.asked == [bad] and providers.told == [(2, 0)]
    assert not world.library.store.missing([world.root, *world.leaves])
