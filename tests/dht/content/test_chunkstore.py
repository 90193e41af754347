"""chunkstore: chunks are whole or absent, verified in and out, and stay in the folder."""

import errno
import hashlib
import os
import random
from pathlib import Path, PosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.dht.content.chunkstore import ChunkStore
from shoal.dht.defaults import CHUNK, VERIFIED_FOR
from shoal.dht.errors import ChunkCorrupt, ChunkMissing, ModelError, NotEnoughDisk, QuotaFull

from ..models import FakeHost, open_store

DATA = random.Random(1).randbytes(5000)
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def host() -> FakeHost:
    return FakeHost()


@pytest.fixture
def store(host: FakeHost, tmp_path: Path) -> ChunkStore:
    return open_store(host, tmp_path / "chunks")


def test_put_and_get(store: ChunkStore, host: FakeHost) -> None:
    assert not store.has(DIGEST)
    assert store.missing([DIGEST, DIGEST]) == [DIGEST]
    assert store.put(DIGEST, DATA)
    assert not store.put(DIGEST, memoryview(DATA))
    assert store.has(DIGEST)
    assert store.missing([DIGEST]) == []
    assert store.get(DIGEST) == DATA
    assert store.used() == len(DATA)
    assert store.path(DIGEST).read_bytes() == DATA
    assert len(host.files.writes) == 1


def test_other_bytes_are_not_stored(store: ChunkStore) -> None:
    with pytest.raises(ChunkCorrupt):
        store.put(DIGEST, DATA[:-1])
    assert not store.has(DIGEST)


def test_a_chunk_has_a_maximum_size(store: ChunkStore) -> None:
    data = bytes(CHUNK + 1)
    with pytest.raises(ChunkCorrupt):
        store.put(hashlib.sha256(data).hexdigest(), data)


def test_absent(store: ChunkStore) -> None:
    with pytest.raises(ChunkMissing):
        store.get(DIGEST)


def test_every_flipped_bit_is_found_removed_and_reported(store: ChunkStore) -> None:
    numbers = random.Random(2)
    for _ in range(200):
        store.put(DIGEST, DATA)
        bad = bytearray(DATA)
        bad[numbers.randrange(len(bad))] ^= 1 << numbers.randrange(8)
        store.path(DIGEST).write_bytes(bad)
        with pytest.raises(ChunkCorrupt, match="removed") as error:
            store.get(DIGEST)
        assert error.value.digest == DIGEST
        assert not store.has(DIGEST)


def test_a_chunk_of_another_size_is_written_again(store: ChunkStore) -> None:
    store.put(DIGEST, DATA)
    store.path(DIGEST).write_bytes(DATA[:10])
    assert store.put(DIGEST, DATA)
    assert store.get(DIGEST) == DATA


NAMES = [
    "",
    ".",
    "..",
    "../" * 8 + "etc/passwd",
    "/etc/passwd",
    DIGEST.upper(),
    DIGEST[:-1],
    DIGEST + "0",
    DIGEST + "\n",
    DIGEST[:-1] + "/",
    DIGEST[:-1] + "\x00",
    "a" * 63 + "é",
    "０" * 64,  # digits of another script
    "a/" * 32,
    "~" + DIGEST[1:],
    "C:" + DIGEST[2:],
]


@pytest.mark.parametrize("name", NAMES)
def test_names_from_peers_are_not_paths(store: ChunkStore, name: str) -> None:
    for method in (store.path, store.has, store.get):
        with pytest.raises(ModelError) as error:
            method(name)
        assert error.value.code == "bad-digest"
    with pytest.raises(ModelError):
        store.put(name, DATA)


@given(st.text(max_size=70))
def test_any_text_is_refused_or_a_digest(text: str) -> None:
    store = ChunkStore(FakeHost(), Path("/store"))
    try:
        path = store.path(text)
    except ModelError:
        return
    assert path == Path("/store") / text[:2] / text


def test_leftovers_of_a_killed_process_are_cleaned(
    store: ChunkStore, host: FakeHost, tmp_path: Path
) -> None:
    store.put(DIGEST, DATA)
    leftover = store.path(DIGEST).with_name(f".{DIGEST}.0123abcd.tmp")
    leftover.write_bytes(b"half")
    again = open_store(host, tmp_path / "chunks")
    assert not leftover.exists()
    assert again.get(DIGEST) == DATA


def test_a_full_disk_is_reported_before_writing(host: FakeHost, tmp_path: Path) -> None:
    store = open_store(host, tmp_path / "chunks", reserve=1000)
    host.files.free = 5999
    with pytest.raises(NotEnoughDisk) as error:
        store.put(DIGEST, DATA)
    assert (error.value.needed, error.value.free) == (5000, 4999)
    assert error.value.code == "disk-full"
    assert "MiB free beyond the reserve of" in error.value.message
    assert error.value.hint
    assert not host.files.writes
    host.files.free = 6000
    assert store.put(DIGEST, DATA)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_while_writing(store: ChunkStore, host: FakeHost, number: int) -> None:
    host.files.fail_at, host.files.fail_with = 0, number
    with pytest.raises(NotEnoughDisk, match="needs"):
        store.put(DIGEST, DATA)
    assert not store.has(DIGEST)
    host.files.fail_at = None
    assert store.put(DIGEST, DATA)


def test_other_failures_to_write_have_another_code(store: ChunkStore, host: FakeHost) -> None:
    host.files.fail_at, host.files.fail_with = 0, errno.EIO
    with pytest.raises(ModelError) as error:
        store.put(DIGEST, DATA)
    assert error.value.code == "unwritable"


def test_an_unreadable_chunk_has_its_own_error(store: ChunkStore, host: FakeHost) -> None:
    store.put(DIGEST, DATA)
    host.files.unreadable = lambda path: True
    with pytest.raises(ModelError) as error:
        store.get(DIGEST)
    assert error.value.code == "unreadable"


def test_damage_of_the_same_size_is_found_and_dropped(store: ChunkStore) -> None:
    other = store.add(b"other")
    store.put(DIGEST, DATA)
    store.path(DIGEST).write_bytes(bytes(len(DATA)))
    assert store.drop_damaged([DIGEST, other, DIGEST, "ab" * 32]) == 1
    assert store.missing([DIGEST, other]) == [DIGEST]
    assert store.drop_damaged([DIGEST, other]) == 0


def test_adding_a_chunk_again_replaces_damage_of_the_same_size(store: ChunkStore) -> None:
    store.add(DATA)
    store.path(DIGEST).write_bytes(bytes(len(DATA)))
    assert store.add(DATA) == DIGEST
    assert store.get(DIGEST) == DATA


# --- staged, then settled ----------------------------------------------------------------


def test_staged_chunks_are_here_and_settle_under_their_names(
    store: ChunkStore, host: FakeHost
) -> None:
    assert store.stage(DIGEST, DATA, 0.0)
    assert not store.stage(DIGEST, DATA, 0.0)
    assert (store.has(DIGEST), store.unsettled) == (True, 1)
    assert store.get(DIGEST) == store.get_to_serve(DIGEST, 1.0) == DATA
    assert not store.path(DIGEST).exists()
    store.settle()
    assert store.unsettled == 0
    assert store.path(DIGEST).read_bytes() == store.get(DIGEST) == DATA
    assert store.used_bytes == store.used() == len(DATA)
    assert not store.stage(DIGEST, DATA, 0.0)
    store.remove(DIGEST)
    assert store.used_bytes == store.used() == 0


def test_a_removed_staged_chunk_does_not_come_back(store: ChunkStore) -> None:
    store.stage(DIGEST, DATA, 0.0)
    store.remove(DIGEST)
    store.settle()
    assert not store.has(DIGEST)


def test_a_marker_is_removed_while_another_thread_stages_one(
    store: ChunkStore, tmp_path: Path
) -> None:
    class Racing(PosixPath):
        """Path that another marker is staged beside while it is compared."""

        def __eq__(self, other: object) -> bool:
            store.stage_marker(tmp_path / "other")
            return str(self) == str(other)

        __hash__ = PosixPath.__hash__

    store.stage_marker(tmp_path / "marker")
    store.remove_marker(Racing(tmp_path / "marker"))
    store.settle()
    assert (tmp_path / "other").exists() and not (tmp_path / "marker").exists()


@pytest.mark.parametrize("torn", [0, 1, 4999])
def test_valid_chunks_that_a_crash_left_staged_are_kept(
    store: ChunkStore, host: FakeHost, tmp_path: Path, torn: int
) -> None:
    other = DATA[::-1]
    for data in (DATA, other):
        store.stage(hashlib.sha256(data).hexdigest(), data, 0.0)
    path = store.staged[DIGEST]
    path.write_bytes(DATA[:torn])  # as after a power cut
    path.with_name(f".{DIGEST}.77.new").write_bytes(b"rot")
    path.with_name(".x.new").write_bytes(b"")
    again = open_store(host, tmp_path / "chunks")
    assert not again.has(DIGEST)
    assert again.get(hashlib.sha256(other).hexdigest()) == other
    assert again.used_bytes == again.used() == len(other)
    assert again.unsettled == 0


def test_a_full_disk_does_not_keep_a_store_with_staged_chunks_from_opening(
    store: ChunkStore, host: FakeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of a chunk needs a free block."""
    store.stage(DIGEST, DATA, 0.0)

    def refuse(moves: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(host.files, "settle", refuse)
        again = open_store(host, tmp_path / "chunks")
    assert again.get(DIGEST) == DATA and again.unsettled == 1
    again.settle()
    assert again.get(DIGEST) == DATA and again.unsettled == 0


def flip_unseen(path: Path) -> None:
    """Flip a bit without changing the file's times, as bit rot does."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[9] ^= 8
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_verified_file_is_not_verified_again_for_a_while(store: ChunkStore) -> None:
    store.stage(DIGEST, DATA, 0.0)
    store.settle()
    flip_unseen(store.path(DIGEST))
    assert store.get_to_serve(DIGEST, VERIFIED_FOR - 1) != DATA, "the receiver verifies it"
    with pytest.raises(ChunkCorrupt):
        store.get_to_serve(DIGEST, VERIFIED_FOR)
    assert not store.has(DIGEST)


def test_a_rewritten_file_is_verified_again(store: ChunkStore) -> None:
    store.stage(DIGEST, DATA, 0.0)
    store.settle()
    store.path(DIGEST).write_bytes(DATA[:-1] + b"?")
    with pytest.raises(ChunkCorrupt):
        store.get_to_serve(DIGEST, 1.0)


def test_the_number_of_files_remembered_as_verified_is_limited(
    store: ChunkStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.dht.content.chunkstore.VERIFIED_LIMIT", 3)
    for number in range(9):
        data = bytes([number])
        store.stage(hashlib.sha256(data).hexdigest(), data, 0.0)
    assert len(store.verified) == 3


def test_the_owners_limit(store: ChunkStore) -> None:
    store.limit = len(DATA)
    store.stage(DIGEST, DATA, 0.0)
    with pytest.raises(QuotaFull) as error:
        store.stage(hashlib.sha256(b"x").hexdigest(), b"x", 0.0)
    assert error.value.code == "quota-full"
