"""blobs: a file comes out unchanged, whatever happened to its chunks in between."""

from pathlib import Path
from random import Random

import pytest

from shoal.dht.content import tree
from shoal.dht.content.blobs import Blobs
from shoal.dht.content.chunkstore import ChunkStore
from shoal.dht.defaults import CHUNK
from shoal.dht.errors import ChunkCorrupt, ChunkMissing, ModelError, NotEnoughDisk
from shoal.netsim.clock import Events
from shoal.netsim.daemons.files import DiskFiles
from shoal.netsim.disk.disk import Disk, DiskSpec
from shoal.netsim.disk.mount import Mount
from shoal.transport.host.realfiles import RealFiles

from ..models import FakeHost, open_library

pytestmark = pytest.mark.trio


def make_file(folder: Path, size: int) -> Path:
    path = folder / f"file{size}"
    path.write_bytes((b"some bytes " * (size // 11 + 1))[:size])
    return path


@pytest.mark.parametrize("size", [0, 1, CHUNK, CHUNK + 1, 9 * CHUNK + 17])
async def test_a_file_comes_out_unchanged(tmp_path: Path, size: int) -> None:
    library = await open_library(tmp_path / "data")
    path = make_file(tmp_path, size)
    seen: list[tuple[int, int]] = []
    root = await library.add_blob(path, lambda *step: seen.append(step))
    assert await library.blobs.write_out(root, tmp_path / "out") == size
    assert (tmp_path / "out").read_bytes() == path.read_bytes()
    assert seen[-1:] == ([(size, size)] if size else [])
    again = await open_library(tmp_path / "data")
    assert again.blobs.roots() == {root}
    assert again.everything() == {root}
    assert (await again.blobs.tree(root)).size == size
    assert await again.blobs.write_out(root, tmp_path / "out2") == size
    assert (await again.add_blob(path)) == root


async def test_missing_files_folders_and_roots(tmp_path: Path) -> None:
    library = await open_library(tmp_path / "data")
    for path in (tmp_path / "nothing", tmp_path):
        with pytest.raises(ModelError) as error:
            await library.add_blob(path)
        assert error.value.code in ("no-file", "unreadable")
    with pytest.raises(ModelError) as unknown:
        await library.blobs.tree("f" * 64)
    assert unknown.value.code == "unknown-blob"


async def test_a_damaged_chunk_never_reaches_a_file(tmp_path: Path) -> None:
    library = await open_library(tmp_path / "data")
    root = await library.add_blob(make_file(tmp_path, 3 * CHUNK + 5))
    (tmp_path / "out").write_bytes(b"old")
    path = library.store.path((await library.blobs.tree(root)).leaves[1])
    data = bytearray(path.read_bytes())
    data[77] ^= 1
    path.write_bytes(data)
    with pytest.raises(ChunkCorrupt):
        await library.blobs.write_out(root, tmp_path / "out")
    with pytest.raises(ChunkMissing):
        await library.blobs.write_out(root, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"old"
    assert ".out" not in "".join(entry.name for entry in RealFiles().list(tmp_path))


async def test_a_damaged_tree_is_forgotten(tmp_path: Path) -> None:
    library = await open_library(tmp_path / "data")
    path = make_file(tmp_path, CHUNK)
    root = await library.add_blob(path)
    library.store.path(root).write_bytes(b"rot")
    again = await open_library(tmp_path / "data")
    with pytest.raises(ChunkCorrupt):
        await again.content(root)
    assert not again.knows(root)
    assert await again.add_blob(path) == root
    assert again.knows(root)


@pytest.mark.parametrize("writes", [0, 2, 4, 5])
async def test_a_full_disk_leaves_no_name(tmp_path: Path, writes: int) -> None:
    host = FakeHost(inline=True)
    library = await open_library(tmp_path / "data", host)
    path = tmp_path / "file"
    path.write_bytes(b"".join(bytes([n]) * CHUNK for n in range(4)))
    host.files.fail_at = len(host.files.writes) + writes
    with pytest.raises(NotEnoughDisk):
        await library.add_blob(path)
    host.files.fail_at = None
    assert (await open_library(tmp_path / "data")).everything() == frozenset()
    root = await library.add_blob(path)
    assert (await open_library(tmp_path / "data")).everything() == {root}


async def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    library = await open_library(tmp_path / "data")
    root = await library.add_blob(make_file(tmp_path, 10))
    with pytest.raises(ModelError) as error:
        await library.blobs.write_out(root, tmp_path / "no" / "such" / "folder")
    assert error.value.code == "unwritable"
    assert error.value.hint


async def test_a_forgotten_blob_is_unknown_after_a_restart_too(tmp_path: Path) -> None:
    library = await open_library(tmp_path / "data")
    root = await library.add_blob(make_file(tmp_path, 10))
    await library.forget(root)
    assert not library.knows(root)
    assert not (await open_library(tmp_path / "data")).knows(root)


class DiskHost(FakeHost):
    """Host whose files are on a simulated disk."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(inline=True)
        self._disk_files = DiskFiles(Mount(disk))

    @property
    def files(self) -> DiskFiles:  # type: ignore[override]
        return self._disk_files


def opened(disk: Disk) -> Blobs:
    host = DiskHost(disk)
    store = ChunkStore(host, Path("/chunks"), reserve=0)
    store.open()
    blobs = Blobs(host, Path("/blobs"), store)
    blobs.open()
    return blobs


FOUND, NODES = tree.build(3 * CHUNK, ["a" * 64, "b" * 64, "c" * 64])


@pytest.mark.parametrize("step", range(41))
async def test_a_blob_that_is_known_after_a_crash_has_its_whole_tree(step: int) -> None:
    known = 0
    for seed in range(10):
        disk = Disk(Events(), Random(seed), DiskSpec())
        blobs = opened(disk)
        disk.events.run_until(disk.busy_until)
        began = disk.events.now
        await blobs.keep(FOUND, NODES)
        disk.events.run_until(began + step / 40 * (disk.busy_until - began))
        disk.crash()
        after = opened(disk)
        if after.roots():
            known += 1
            assert (await after.tree(FOUND.root)).leaves == FOUND.leaves
    if step in (0, 40):
        assert known == (10 if step else 0)


async def test_a_staged_blob_is_known_once_it_settles_and_gone_once_it_is_forgotten(
    tmp_path: Path,
) -> None:
    library = await open_library(tmp_path / "data")
    await library.blobs.stage(FOUND, NODES)
    assert library.blobs.roots() == {FOUND.root}
    (staged,) = (path for path in (tmp_path / "data" / "blobs").iterdir())
    assert staged.suffix == ".tmp", "it is not durable yet"
    await library.blobs.forget(FOUND.root)
    library.store.settle()
    assert not library.store.missing(NODES), "the caller removes them"
    assert not (await open_library(tmp_path / "data")).blobs.roots()


@pytest.mark.parametrize("whole", [True, False])
async def test_what_a_killed_fetch_has_stored_of_a_blob_has_a_root_that_can_be_evicted(
    tmp_path: Path, whole: bool
) -> None:
    library = await open_library(tmp_path / "data")
    await library.blobs.stage(FOUND, NODES)
    if not whole:  # a power cut has torn a node
        library.store.staged[FOUND.root].write_bytes(b"torn")
    after = await open_library(tmp_path / "data")
    assert after.blobs.roots() == ({FOUND.root} if whole else set())
    assert [path.name for path in (tmp_path / "data" / "blobs").iterdir()] == [*after.blobs.roots()]
    if whole:
        await after.remove(FOUND.root)
    assert after.store.used() == 0
