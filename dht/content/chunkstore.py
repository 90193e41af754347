"""Chunk store on disk: one file per chunk, named by the SHA-256 of its bytes.

Every method blocks: call it through `Host.offload`. A file is written whole or not at all
(`Files.write`). Bytes are verified when they are stored and again when they are read. A file name
consists of 64 hex digits, so a name that a peer sends cannot refer to any other place on the disk.

A fetch first stages its chunks: it writes them to files with temporary names. `settle` then makes
many of them durable together and renames them. After a crash, `open` verifies the chunks that were
still staged, and stores those that are valid. All files are in one folder, because each folder that
changes costs a sync.
"""

import errno
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import count
from pathlib import Path

from ...transport.host.seam import Files, Host
from ..defaults import CHUNK, DISK_RESERVE, VERIFIED_FOR, VERIFIED_LIMIT
from ..errors import (
    ChunkCorrupt,
    ChunkMissing,
    ModelError,
    NotEnoughDisk,
    QuotaFull,
    unreadable,
    unwritable,
)
from .manifest import is_digest

_STAGED = ".new"  # suffix of a staged chunk
_LEFTOVER = ".tmp"  # suffix of what the next start removes

Progress = Callable[[int, int], None]
"""Called with the number of bytes done so far, and the total number of bytes."""


def chunk_path(folder: Path, digest: str) -> Path:
    """Return the path of a chunk's file in a chunk store's folder.

    Raises ModelError `bad-digest` if `digest` does not have 64 hex digits.
    """
    if not is_digest(digest):
        raise ModelError("bad-digest", f"expected 64 hex digits, got {ascii(digest)[:80]}")
    return folder / digest


class ChunkStore:
    """Chunks in files of `folder`. At least `reserve` bytes of the disk stay free."""

    def __init__(self, host: Host, folder: Path, *, reserve: int = DISK_RESERVE) -> None:
        self._files = host.files
        self._folder = folder
        self._reserve = reserve
        self.limit: int | None = None
        """Limit that the owner has set on the bytes of all chunks. None means no limit."""
        self.used_bytes = 0
        """Bytes of all chunks, stored or staged. It is 0 until `open` has counted them."""
        self.damaged: set[str] = set()
        """Chunks that were found damaged and removed, including those fetched again since then."""
        self.staged: dict[str, Path] = {}
        """Temporary files of chunks, by digest, until `settle`."""
        self._markers: dict[Path, Path] = {}  # staged marker -> its path
        self._stagings = count(1)
        # digest -> (identity of the verified file, host's time until which the result holds)
        self.verified: OrderedDict[str, tuple[tuple[int, int, int] | None, float]] = OrderedDict()

    def open(self) -> None:
        """Recover the chunks that a killed process had staged, and remove partial writes.

        Raises ModelError `unwritable` if a folder cannot be created or read.
        """
        try:
            self._files.make_folder(self._folder)
            remove_leftovers(self._files, self._folder)
            self._take_up()
            self.used_bytes = self.used()
        except OSError as error:
            raise unwritable(self._folder, error) from error
        with suppress(NotEnoughDisk):  # they stay staged, and a later call settles them
            self.settle()

    # Threads update `used_bytes` without a lock; `open` corrects the error at the next start.

    def _take_up(self) -> None:
        """Register the valid staged files of an earlier process, and remove the others."""
        for entry in self._files.list(self._folder):
            if not (entry.name.startswith(".") and entry.name.endswith(_STAGED)):
                continue
            digest, path = entry.name[1:65], self._folder / entry.name
            data = self._files.read_range(path, 0, CHUNK + 1)
            if digest not in self.staged and hashlib.sha256(data).hexdigest() == digest:
                self.staged[digest] = path
            else:
                self._files.remove(path)

    def path(self, digest: str) -> Path:
        """Return the path of a chunk's file, whether or not the file exists.

        Raises ModelError `bad-digest` if `digest` does not have 64 hex digits.
        """
        return chunk_path(self._folder, digest)

    def has(self, digest: str) -> bool:
        """Return whether the chunk is stored. Its bytes are not verified; `get` verifies them."""
        return digest in self.staged or self._files.size(self.path(digest)) is not None

    def missing(self, digests: Iterable[str]) -> list[str]:
        """Return those of `digests` that are not stored, in their order and without duplicates."""
        return [digest for digest in dict.fromkeys(digests) if not self.has(digest)]

    def put(self, digest: str, data: bytes | memoryview) -> bool:
        """Store a chunk durably. Return False if it was already stored.

        Raises ChunkCorrupt if the bytes do not match the digest, and NotEnoughDisk if they do not
        fit.
        """
        if len(data) > CHUNK or hashlib.sha256(data).hexdigest() != digest:
            raise ChunkCorrupt(digest, "as received")
        return self._write(digest, data)

    def add(self, data: bytes | memoryview) -> str:
        """Store bytes that come from this node durably, and return their digest.

        Raises NotEnoughDisk if the bytes do not fit.
        """
        digest = hashlib.sha256(data).hexdigest()
        self._write(digest, data)
        return digest

    def add_staged(self, data: bytes | memoryview, now: float) -> str:
        """Stage bytes that come from this node, and return their digest.

        `settle` makes them durable. `now` is the host's time in seconds. Raises NotEnoughDisk if
        the bytes do not fit.
        """
        digest = hashlib.sha256(data).hexdigest()
        self._stage(digest, data, now)
        return digest

    def stage(self, digest: str, data: bytes | memoryview, now: float) -> bool:
        """Stage a chunk, which `settle` makes durable. Return False if it was stored or staged.

        `now` is the host's time in seconds. Raises ChunkCorrupt if the bytes do not match the
        digest, and NotEnoughDisk if they do not fit.
        """
        if len(data) > CHUNK or hashlib.sha256(data).hexdigest() != digest:
            raise ChunkCorrupt(digest, "as received")
        return self._stage(digest, data, now)

    def _stage(self, digest: str, data: bytes | memoryview, now: float) -> bool:
        """Stage a chunk whose digest was verified. Otherwise the same as `stage`."""
        path = self.path(digest)
        if digest in self.staged:
            return False
        if self._files.size(path) == len(data) and self._holds(path, data):
            return False
        self.require_space(len(data))
        staged = self._folder / f".{digest}.{next(self._stagings)}{_STAGED}"
        try:
            self._files.stage(staged, data)
        except OSError as error:
            raise _refused(self._files, staged, len(data), error) from error
        if self.staged.setdefault(digest, staged) is not staged:  # another thread staged it first
            self._files.remove(staged)
            return False
        self.used_bytes += len(data)
        self._remember(digest, self._files.identity(staged), now)
        return True

    @property
    def unsettled(self) -> int:
        """Number of staged chunks."""
        return len(self.staged)

    def stage_marker(self, path: Path) -> None:
        """Stage an empty file, which `settle` makes durable together with the staged chunks.

        Raises NotEnoughDisk if the disk is full, and ModelError if the file cannot be written.
        """
        staged = path.with_name(f".{path.name}.{next(self._stagings)}{_LEFTOVER}")
        try:
            self._files.stage(staged, b"")
        except OSError as error:
            raise _refused(self._files, path, 0, error) from error
        self._markers[staged] = path

    def remove_marker(self, path: Path) -> None:
        """Delete a marker, whether it is staged or durable."""
        for staged, marker in list(self._markers.items()):  # another thread may stage one
            if marker == path:
                self._markers.pop(staged, None)
                self._files.remove(staged)
        self._files.remove(path)

    def settle(self) -> None:
        """Make all staged chunks and markers durable, and rename their files to the final names.

        Raises NotEnoughDisk if the disk is full, and ModelError if a file cannot be written.
        """
        markers, batch = dict(self._markers), dict(self.staged)  # a marker's chunks came first
        moves = [(staged, self.path(digest)) for digest, staged in batch.items()]
        try:
            self._files.settle([*moves, *markers.items()])
        except OSError as error:
            raise _refused(self._files, self._folder, 0, error) from error
        for staged in markers:
            self._markers.pop(staged, None)
        for digest, staged in batch.items():
            if self.staged.get(digest) == staged:
                del self.staged[digest]

    def _write(self, digest: str, data: bytes | memoryview) -> bool:
        """Write a chunk whose digest was verified, durably.

        Return False if it was already stored.
        """
        path = self.path(digest)
        if self._files.size(path) == len(data) and self._holds(path, data):
            return False
        self.require_space(len(data))
        write(self._files, path, data)
        self.used_bytes += len(data)
        return True

    def _holds(self, path: Path, data: bytes | memoryview) -> bool:
        """Return whether a file has exactly these bytes.

        The size alone does not prove it: after a power cut, a file may have the right size and
        wrong bytes.
        """
        try:
            return self._files.read_range(path, 0, len(data) + 1) == data
        except OSError:
            return False

    def drop_damaged(self, digests: Iterable[str]) -> int:
        """Verify those of `digests` that are stored, and remove the damaged ones.

        Returns how many were removed.
        """
        dropped = 0
        for digest in dict.fromkeys(digests):
            try:
                self.get(digest)
            except ChunkCorrupt:
                dropped += 1
            except ChunkMissing:
                pass
        return dropped

    def get(self, digest: str) -> bytes:
        """Return the bytes of a chunk, after verifying them.

        Raises ChunkMissing if the chunk is not stored. Raises ChunkCorrupt if it is damaged; the
        damaged file has then been removed.
        """
        path, data = self._read(digest)
        if hashlib.sha256(data).hexdigest() != digest:
            self.remove(digest)
            self.damaged.add(digest)
            raise ChunkCorrupt(digest, f"on disk (`{path}`, now removed)")
        return data

    def get_to_serve(self, digest: str, now: float) -> bytes:
        """Return the bytes of a chunk for a peer, which verifies them itself.

        The verification here is skipped if this process verified the same file in the last
        `VERIFIED_FOR` seconds. `now` is the host's time in seconds. Raises the errors of `get`.
        """
        known = self.verified.get(digest)
        if known is not None and now < known[1]:
            path = self.staged.get(digest) or self.path(digest)
            if known[0] is not None and known[0] == self._files.identity(path):
                return self._read(digest)[1]
        data = self.get(digest)
        self._remember(digest, self._files.identity(self.path(digest)), now)
        return data

    def _remember(self, digest: str, file: tuple[int, int, int] | None, now: float) -> None:
        """Record that a chunk was verified at `now`, in the file that `file` identifies."""
        self.verified[digest] = file, now + VERIFIED_FOR
        while len(self.verified) > VERIFIED_LIMIT:
            with suppress(KeyError):  # another thread emptied it first
                self.verified.popitem(last=False)

    def _read(self, digest: str) -> tuple[Path, bytes]:
        """Return the path and the unverified bytes of a chunk.

        Raises ChunkMissing or ModelError.
        """
        path = self.staged.get(digest)
        if path is not None:
            with suppress(FileNotFoundError):  # another thread has settled it
                return path, self._read_file(path)
        path = self.path(digest)
        try:
            return path, self._read_file(path)
        except FileNotFoundError:
            raise ChunkMissing(digest) from None

    def _read_file(self, path: Path) -> bytes:
        """Read a chunk's file. Raises FileNotFoundError, or ModelError `unreadable`."""
        try:
            return self._files.read_range(path, 0, CHUNK + 1)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise unreadable(path, error) from error

    def remove(self, digest: str) -> None:
        """Delete a chunk's file, whether the chunk is staged or durable."""
        staged = self.staged.pop(digest, None)
        for path in (staged, self.path(digest)):
            if path is not None:
                self.used_bytes -= self._files.size(path) or 0
                self._files.remove(path)
        self.verified.pop(digest, None)

    def require_space(self, needed: int) -> None:
        """Check that `needed` more bytes can be stored.

        Raises QuotaFull if they would exceed the owner's limit, and NotEnoughDisk if the disk does
        not have that much free space beside the reserve.
        """
        if self.limit is not None and self.used_bytes + needed > self.limit:
            raise QuotaFull(self.limit, needed, self.used_bytes)
        free = max(0, self.free() - self._reserve)
        if needed > free:
            raise NotEnoughDisk(self._folder, needed, free, self._reserve)

    def free(self) -> int:
        """Return the number of free bytes of the disk.

        Raises ModelError `unwritable` if the operating system does not report it.
        """
        try:
            return self._files.free_space(self._folder)
        except OSError as error:
            raise unwritable(self._folder, error) from error

    def size_of(self, digests: Iterable[str]) -> int:
        """Return the number of bytes on disk of those of `digests` that are stored."""
        return sum(self._files.size(self.path(digest)) or 0 for digest in digests)

    def used(self) -> int:
        """Count the bytes of all chunks by listing the folder, and return the sum."""
        return sum(entry.size for entry in self._files.list(self._folder))


def write(files: Files, path: Path, data: bytes | memoryview) -> None:
    """Write a file of the library, whole or not at all. Blocking.

    Raises NotEnoughDisk if the disk is full, and ModelError `unwritable` if the write is refused.
    """
    try:
        files.write(path, data)
    except OSError as error:
        raise _refused(files, path, len(data), error) from error


def _refused(files: Files, path: Path, needed: int, error: OSError) -> ModelError:
    """Return the error for a write of `needed` bytes that the operating system refused."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return unwritable(path, error)
    free = 0
    with suppress(OSError):
        free = files.free_space(path.parent)
    return NotEnoughDisk(path.parent, needed, free)


def remove_leftovers(files: Files, folder: Path) -> list[str]:
    """Remove temporary files of writes that a killed process did not finish, and return their
    names."""
    names = [entry.name for entry in files.list(folder)]
    found = [name for name in names if name.startswith(".") and name.endswith(_LEFTOVER)]
    for name in found:
        files.remove(folder / name)
    return found
