"""Asynchronous access to the store: batched commits, crashes, full disks and damaged files."""

import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.disk.disk import Disk, Folder
from shoal.netsim.disk.file import File
from shoal.netsim.disk.mount import BlockHandle
from shoal.netsim.world import World
from shoal.state import defaults
from shoal.state.errors import BadOrder, StateError, StoreRefused
from shoal.state.feeds.committer import DISK, FILE, Committer
from shoal.state.feeds.entry import Entry, FeedName, Proof
from shoal.state.feeds.stored import StoredFeed, verify
from shoal.transport.errors import AlreadyLocked
from shoal.transport.host.real import RealHost

from ..chains import chain, identity, name, sealed

FOLDER = Path("/data")
FILE_PATH, LOG_PATH = "/data/state.db", "/data/state.db-wal"
Body = Callable[["Lives"], Awaitable[Any]]


class Lives:
    """One simulated computer, whose store is opened and closed."""

    def __init__(self, world: World, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._machine = world.host("alice")
        self._life = 0
        self.host = SimulatedHost(self._machine, PROFILES["desktop"], nursery)
        self.troubles = dict[str, StateError]()
        self.told = list[tuple[str, str]]()
        self.lost = list[list[FeedName] | None]()

    @property
    def disk(self) -> Disk:
        assert self._machine.disk is not None
        return self._machine.disk

    def crash(self) -> None:
        """Power off and on."""
        self.disk.crash()
        self._life += 1
        self.host = SimulatedHost(
            self._machine, PROFILES["desktop"], self._nursery, life=self._life
        )

    def fill(self) -> None:
        self.disk.spec = replace(self.disk.spec, capacity=self.disk.used)

    def empty(self) -> None:
        self.disk.spec = replace(self.disk.spec, capacity=10**12)

    def spoil(self, path: str, change: Callable[[bytes], bytes]) -> None:
        node: Folder | File = self.disk.root
        for part in Path(path).parts[1:]:
            assert isinstance(node, Folder)
            node = node.names[part]
        assert isinstance(node, File)
        node.content = change(node.content)

    def _trouble(self, condition: str, error: StateError | None) -> None:
        self.told.append((condition, error.code if error is not None else ""))
        if error is None:
            self.troubles.pop(condition, None)
        else:
            self.troubles[condition] = error

    def _lost(self, names: Sequence[FeedName] | None) -> None:
        self.lost.append(None if names is None else list(names))

    def committer(self) -> Committer:
        return Committer(self.host, FOLDER, trouble=self._trouble, lost=self._lost)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Committer]:
        committer = self.committer()
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: committer.run(task_status=task_status))
            yield committer
            nursery.cancel_scope.cancel()


def run(body: Body, *, seed: int = 1) -> Any:
    world = World(seed=seed)

    async def main() -> Any:
        with trio.fail_after(3600):
            async with trio.open_nursery() as nursery:
                result = await body(Lives(world, nursery))
                nursery.cancel_scope.cancel()
        return result

    return world.run(main)


async def everything(committer: Committer) -> list[StoredFeed]:
    return [feed async for batch in committer.load() for feed in batch]


async def put_each(committer: Committer, entries: Sequence[Entry]) -> int:
    """Put entries one by one; return how many were stored before the first refusal."""
    for number, entry in enumerate(entries):
        try:
            await committer.put([entry])
        except StoreRefused:
            return number
    return len(entries)


def test_entries_survive_a_clean_restart() -> None:
    async def body(lives: Lives) -> None:
        async with lives.running() as committer:
            await committer.put(chain(1, 3), own=True)
            await committer.put(chain(2, 2))
            assert await committer.entries(name(1), 1, 1) == sealed(chain(1, 3)[1:])
        async with lives.running() as committer:
            assert [feed.name for feed in await everything(committer)] == [name(1), name(2)]
            await committer.drop([identity(1).peer])
            assert [feed.name for feed in await everything(committer)] == [name(2)]
        assert not lives.told and not lives.lost

    run(body)


def test_committed_entries_survive_a_crash() -> None:
    async def body(lives: Lives) -> None:
        for life in range(8):
            entries = chain(1, 30, epoch=life + 1)
            async with lives.running() as committer:
                async with trio.open_nursery() as nursery:
                    done = [0]
                    nursery.start_soon(_count_puts, committer, entries, done)
                    await trio.sleep(0.004 + 0.003 * life)
                    nursery.cancel_scope.cancel()
                acknowledged = done[0]
                lives.crash()
            assert 0 < acknowledged < 30
            async with lives.running() as committer:
                (feed,) = await everything(committer)
                assert len(feed.entries) >= acknowledged and verify(feed)
                assert feed.name == name(1) and feed.head.epoch == life + 1

    run(body)


async def _count_puts(committer: Committer, entries: Sequence[Entry], done: list[int]) -> None:
    for entry in entries:
        await committer.put([entry], own=True)
        done[0] += 1


def test_a_disk_without_real_syncs_loses_committed_entries() -> None:
    """Control: the test above depends on the sync."""

    async def body(lives: Lives) -> bool:
        async with lives.running() as committer:
            await committer.put(chain(1, 1))
            lives.disk.lost_syncs = True
            await committer.put(chain(2, 1))
            lives.crash()
        async with lives.running() as committer:
            return len(await everything(committer)) < 2

    assert any(run(body, seed=seed) for seed in range(8))


def test_concurrent_changes_are_committed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(lives: Lives) -> tuple[float, float]:
        async with lives.running() as committer:
            began = lives.host.now()
            await committer.put(chain(1, 1))
            alone = lives.host.now() - began
            began = lives.host.now()
            async with trio.open_nursery() as nursery:
                for number in range(2, 202):
                    nursery.start_soon(committer.put, chain(number, 1))
            together = lives.host.now() - began
            assert len(await everything(committer)) == 201
            return alone, together

    alone, together = run(body)
    assert together < 10 * alone
    monkeypatch.setattr(defaults, "COMMIT_WORKS", 1)
    alone, together = run(body)
    assert together > 50 * alone, "control: one sync for each"


def test_an_entry_out_of_order_fails_only_its_caller() -> None:
    async def body(lives: Lives) -> None:
        async with lives.running() as committer:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(committer.put, chain(1, 2))
                with pytest.raises(BadOrder):
                    await committer.put(chain(2, 2)[1:])
            assert [feed.name for feed in await everything(committer)] == [name(1)]

    run(body)


def test_a_cancelled_keeper_commits_queued_changes() -> None:
    async def body(lives: Lives) -> None:
        committer = lives.committer()
        async with trio.open_nursery() as outer:
            async with trio.open_nursery() as nursery:
                await nursery.start(lambda task_status: committer.run(task_status=task_status))
                for number in range(1, 50):
                    outer.start_soon(committer.put, chain(number, 1))
                await trio.sleep(0.001)
                nursery.cancel_scope.cancel()
        with pytest.raises(trio.ClosedResourceError):
            await committer.put(chain(99, 1))
        with pytest.raises(trio.ClosedResourceError):
            await committer.entries(name(1), 1, 0)
        async with lives.running() as committer:
            assert len(await everything(committer)) == 49

    run(body)


def test_a_cancelled_put_stops_no_other() -> None:
    async def body(lives: Lives) -> None:
        async with lives.running() as committer:
            for number in range(1, 20):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(committer.put, chain(number, 2))
                    with trio.move_on_after(number * 0.0002):
                        await committer.put(chain(100 + number, 2))
                    with trio.move_on_after(number * 0.0002):
                        await committer.entries(name(number), 1, 0)
            found = {feed.name for feed in await everything(committer)}
            assert {name(number) for number in range(1, 20)} <= found

    run(body)


@pytest.mark.parametrize("fault", ["full", "failing", "read-only"])
def test_a_refusing_disk_stops_only_own_entries(fault: str) -> None:
    async def body(lives: Lives) -> None:
        entries = chain(1, 6)
        async with lives.running() as committer:
            await committer.put(entries[:2])
            begin(lives, fault)
            with pytest.raises(StoreRefused) as raised:
                await committer.put(chain(9, 1, size=20_000), own=True)
            assert raised.value.code == ("disk-full" if fault == "full" else "disk-error")
            assert lives.troubles[DISK].code == raised.value.code
            await committer.put(entries[2:4])
            await committer.put(entries[4:])
            if fault != "failing":  # then the rest cannot be read either
                assert await committer.entries(name(1), 1, 0) == sealed(entries), "from memory"
            proof = Proof.of(chain(3, 1)[0], chain(3, 1, salt=b"x")[0])
            await committer.put_proof(proof)
            assert await committer.proof(name(3)) == proof
            with pytest.raises(StoreRefused):
                await committer.put(chain(9, 1), own=True)
            await trio.sleep(3 * defaults.REFUSED_PAUSE)
            assert DISK in lives.troubles
            lives.empty()
            lives.disk.errors.clear()
            lives.disk.read_only = False
            await trio.sleep(2 * defaults.REFUSED_PAUSE)
            assert not lives.troubles, "it recovers by itself"
            await committer.put(chain(9, 1), own=True)
        code = raised.value.code
        assert lives.told == [(DISK, code), (DISK, "")], "reported once each"
        async with lives.running() as committer:
            found = {feed.name: feed.entries for feed in await everything(committer)}
            assert found[name(1)] == tuple(sealed(entries))
            assert found[name(9)] == tuple(sealed(chain(9, 1)))
            assert await committer.proof(name(3)) == proof

    run(body)


def begin(lives: Lives, fault: str) -> None:
    if fault == "full":
        lives.fill()
    elif fault == "failing":
        lives.disk.errors[LOG_PATH] = errno.EIO
    else:
        lives.disk.read_only = True


def test_memory_is_bounded_while_the_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "HELD_BYTES", 200_000)

    async def body(lives: Lives) -> None:
        entries = chain(1, 30, kind="jobs", size=20_000)
        async with lives.running() as committer:
            lives.fill()
            kept = await put_each(committer, entries)
            assert 5 < kept < 11
            lives.empty()
            await trio.sleep(2 * defaults.REFUSED_PAUSE)
            await committer.put(entries[kept:])
            assert len(await committer.entries(name(1, "jobs"), 1, 0)) == 30

    run(body)


def test_changes_in_memory_only_are_lost_with_the_run() -> None:
    async def body(lives: Lives) -> None:
        async with lives.running() as committer:
            await committer.put(chain(1, 2))
            lives.fill()
            await committer.put(chain(2, 2, size=50_000, kind="jobs"))
        lives.empty()
        async with lives.running() as committer:
            assert [feed.name for feed in await everything(committer)] == [name(1)]

    run(body)


@pytest.mark.parametrize("how", ["header", "pages", "emptied"])
def test_a_damaged_file_is_moved_aside(how: str) -> None:
    changes: dict[str, Callable[[bytes], bytes]] = {
        "header": lambda content: b"damage".ljust(100, b"!") + content[100:],
        "pages": lambda content: content[:4096] + b"\xff" * (len(content) - 4096),
        "emptied": lambda content: b"\0" * len(content),
    }

    async def body(lives: Lives) -> None:
        async with lives.running() as committer:
            for number in range(1, 30):
                await committer.put(chain(number, 3))
        lives.spoil(FILE_PATH, changes[how])
        async with lives.running() as committer:
            assert lives.troubles[FILE].code == "store-damaged"
            assert lives.lost == [None]
            assert await everything(committer) == []
            await committer.put(chain(1, 3), own=True)
        assert lives.host.files.size(FOLDER / "state.db.damaged")
        async with lives.running() as committer:
            assert len(await everything(committer)) == 1
        assert len(lives.told) == 1

    run(body)


def test_damage_found_while_running_is_moved_aside_too() -> None:
    async def body(lives: Lives) -> None:
        async with lives.running() as committer:
            for number in range(1, 200):
                await committer.put(chain(number, 3, kind="jobs", size=9000))
        async with lives.running() as committer:  # not all of it is in SQLite's own memory
            lives.spoil(FILE_PATH, lambda content: content[:4096] + b"\xff" * (len(content) - 4096))
            await everything(committer)
            assert lives.lost == [None] and FILE in lives.troubles
            assert await everything(committer) == []
            await committer.put(chain(1, 3), own=True)
            assert len(await everything(committer)) == 1

    run(body)


def test_a_bad_block_counts_as_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    real, bad = BlockHandle.read, [False]

    def read(self: BlockHandle, offset: int, size: int) -> bytes:
        if bad[0] and self.path == FILE_PATH:
            raise OSError(errno.EIO, "bad block")
        return real(self, offset, size)

    monkeypatch.setattr(BlockHandle, "read", read)

    async def body(lives: Lives) -> None:
        async with lives.running() as committer:
            for number in range(1, 200):
                await committer.put(chain(number, 3, kind="jobs", size=9000))
        async with lives.running() as committer:
            bad[0] = True
            await everything(committer)
            assert lives.lost == [None] and FILE in lives.troubles
            bad[0] = False
            await committer.put(chain(1, 3), own=True)
            assert len(await everything(committer)) == 1

    run(body)


def test_damaged_feeds_are_dropped_and_reported() -> None:
    async def body(lives: Lives) -> None:
        async with lives.running() as committer:
            await committer.put(chain(1, 3))
            await committer.put(chain(2, 3))
        database = lives.host.files.database(FOLDER / "state.db")
        database.run("UPDATE entries SET sum = zeroblob(8) WHERE id < 2 << 24")
        database.close()
        async with lives.running() as committer:
            assert [feed.name for feed in await everything(committer)] == [name(2)]
            assert lives.lost == [[name(1)]]
            await committer.put(chain(1, 3))
            assert len(await everything(committer)) == 2
        assert not lives.told

    run(body)


def test_reading_a_damaged_feed_returns_nothing() -> None:
    async def body(lives: Lives) -> None:
        async with lives.running() as committer:
            await committer.put(chain(1, 3))
            await committer.put_proof(Proof.of(chain(2, 1)[0], chain(2, 1, salt=b"x")[0]))
        database = lives.host.files.database(FOLDER / "state.db")
        database.run("UPDATE entries SET sum = zeroblob(8)")
        database.run("UPDATE proofs SET first = zeroblob(8)")
        database.close()
        async with lives.running() as committer:
            assert await committer.entries(name(1), 1, 0) == []
            assert await committer.proof(name(2)) is None
            assert lives.lost == [[name(1)], [name(2)]]
            assert await everything(committer) == []

    run(body)


def test_a_store_that_cannot_be_opened_is_reported_at_the_start() -> None:
    async def body(lives: Lives) -> None:
        lives.disk.read_only = True
        with pytest.raises(BaseExceptionGroup) as raised:
            async with lives.running():
                pass
        assert raised.group_contains(StoreRefused)
        lives.disk.read_only = False
        async with lives.running() as committer:
            await committer.put(chain(1, 1))
            with pytest.raises(BaseExceptionGroup) as raised:
                async with lives.running():
                    pass
            assert raised.group_contains(AlreadyLocked)

    run(body)


def test_free_space_goes_back_to_the_disk() -> None:
    async def body(lives: Lives) -> None:
        async with lives.running() as committer:
            for number in range(1, 101):
                await committer.put(chain(number, 1, kind="jobs", size=50_000))
            full = lives.disk.used
            await committer.drop([identity(number).peer for number in range(1, 91)])
            await trio.sleep(10)
            await committer.put(chain(1, 1))
        assert lives.disk.used < full / 5

    run(body)


def test_store_on_the_real_disk(tmp_path: Path) -> None:
    trio.run(_on_the_real_disk, tmp_path)


async def _on_the_real_disk(tmp_path: Path) -> None:
    host, lost = RealHost(), list[object]()
    for _ in range(2):
        committer = Committer(host, tmp_path / "state", trouble=lambda *_: None, lost=lost.append)
        async with trio.open_nursery() as nursery:
            await nursery.start(
                lambda task_status, committer=committer: committer.run(task_status=task_status)
            )
            await committer.put(chain(1, 3))
            async with trio.open_nursery() as puts:
                for number in range(2, 20):
                    puts.start_soon(committer.put, chain(number, 2))
            assert len(await everything(committer)) == 19
            nursery.cancel_scope.cancel()
    assert not lost
