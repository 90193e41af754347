"""Chunk store on disk: one file per chunk, named by the SHA-256 of its bytes.

Every method blocks: call it inside `Host.offload`. A file is written whole or not at all
(`Files.write`). Bytes are verified when they are stored and again when they are read. A file name
is made from 64 hex digits only, so no name received from a peer can point elsewhere.

A fetch stages its chunks: it writes them under temporary names, and `settle` renames many at a
time once they are durable. `open` verifies chunks that a crash left staged and keeps valid ones.
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
    DiskFull,
    ModelError,
    QuotaFull,
    unreadable,
    unwritable,
)
from .manifest import is_digest

_STAGED = ".new"  # suffix of a staged file
_FOLDERS = frozenset(f"{number:02x}" for number in range(256))

Progress = Callable[[int, int], None]
"""Called with the bytes done and the total bytes."""


class ChunkStore:
    """Chunks under `folder`, as `ab/ab12…`; leaves `reserve` bytes of the disk free."""

    def __init__(self, host: Host, folder: Path, *, reserve: int = DISK_RESERVE) -> None:
        self._files = host.files
        self._folder = folder
        self._reserve = reserve
        self.limit: int | None = None
        """Limit for the bytes of all chunks together, set by the owner; None for no limit."""
        self.used_bytes = 0
        """Bytes of all chunks, up to date once `open` has run."""
        self.damaged: set[str] = set()
        """Chunks that were damaged and removed, including those that were fetched again since."""
        self._staged: dict[str, Path] = {}  # digest -> its file until it is settled
        self._stagings = count(1)
        self._folders = set[Path]()  # subfolders known to exist
        self._verified: OrderedDict[str, tuple[tuple[int, int, int] | None, float]] = OrderedDict()

    def open(self) -> None:
        """Recover chunks that a killed process had staged; remove partial writes.

        Raises ModelError `unwritable`.
        """
        folder = self._folder
        try:
            self._files.make_folder(folder)
            for folder in self._there():
                self._take_up(folder)
                remove_leftovers(self._files, folder)
                self.used_bytes += sum(entry.size for entry in self._files.list(folder))
                self._folders.add(folder)
        except OSError as error:
            raise unwritable(folder, error) from error
        self.settle()

    def _there(self) -> list[Path]:
        """Return those of the folders `00` to `ff` that exist; each is created with a chunk."""
        found = self._files.list(self._folder)
        return [self._folder / entry.name for entry in found if entry.name in _FOLDERS]

    def _make_folder_of(self, path: Path) -> None:
        """Create the folder for a chunk if needed. Raises DiskFull, ModelError."""
        folder = path.parent
        if folder in self._folders:
            return
        try:
            self._files.make_folder(folder)
        except OSError as error:
            raise _refused(self._files, folder, 0, error) from error
        self._folders.add(folder)

    # Threads update `used_bytes` without a lock; `open` corrects the error at the next start.

    def _take_up(self, folder: Path) -> None:
        """Recover the staged files of an earlier process."""
        for entry in self._files.list(folder):
            if not (entry.name.startswith(".") and entry.name.endswith(_STAGED)):
                continue
            digest, path = entry.name[1:65], folder / entry.name
            data = self._files.read_range(path, 0, CHUNK + 1)
            if digest not in self._staged and hashlib.sha256(data).hexdigest() == digest:
                self._staged[digest] = path
            else:
                self._files.remove(path)

    def path(self, digest: str) -> Path:
        """Return the path of a chunk, whether or not it exists. Raises ModelError `bad-digest`."""
        if not is_digest(digest):
            raise ModelError("bad-digest", f"expected 64 hex digits, got {ascii(digest)[:80]}")
        return self._folder / digest[:2] / digest

    def has(self, digest: str) -> bool:
        """Whether the chunk is stored. Does not check its bytes; `get` does."""
        return digest in self._staged or self._files.size(self.path(digest)) is not None

    def missing(self, digests: Iterable[str]) -> list[str]:
        """Return the chunks that are not stored, in order and without duplicates."""
        return [digest for digest in dict.fromkeys(digests) if not self.has(digest)]

    def put(self, digest: str, data: bytes | memoryview) -> bool:
        """Store a chunk durably; return False if it was already here.

        Raises ChunkCorrupt if the bytes do not match the digest, and DiskFull.
        """
        if len(data) > CHUNK or hashlib.sha256(data).hexdigest() != digest:
            raise ChunkCorrupt(digest, "as received")
        return self._write(digest, data)

    def add(self, data: bytes | memoryview) -> str:
        """Store this node's own bytes durably; return their digest. Raises DiskFull."""
        digest = hashlib.sha256(data).hexdigest()
        self._write(digest, data)
        return digest

    def add_staged(self, data: bytes | memoryview, now: float) -> str:
        """As `add`, but durable only after `settle`. `now` is the host's time in seconds."""
        digest = hashlib.sha256(data).hexdigest()
        self._stage(digest, data, now)
        return digest

    def stage(self, digest: str, data: bytes | memoryview, now: float) -> bool:
        """As `put`, but durable only after `settle`. `now` is the host's time in seconds."""
        if len(data) > CHUNK or hashlib.sha256(data).hexdigest() != digest:
            raise ChunkCorrupt(digest, "as received")
        return self._stage(digest, data, now)

    def _stage(self, digest: str, data: bytes | memoryview, now: float) -> bool:
        path = self.path(digest)
        if digest in self._staged:
            return False
        if self._files.size(path) == len(data) and self._holds(path, data):
            return False
        self.require_space(len(data))
        self._make_folder_of(path)
        staged = path.with_name(f".{digest}.{next(self._stagings)}{_STAGED}")
        try:
            self._files.stage(staged, data)
        except OSError as error:
            raise _refused(self._files, staged, len(data), error) from error
        if self._staged.setdefault(digest, staged) is not staged:  # another thread staged it first
            self._files.remove(staged)
            return False
        self.used_bytes += len(data)
        self._remember(digest, self._files.identity(staged), now)
        return True

    @property
    def unsettled(self) -> int:
        """Number of staged chunks."""
        return len(self._staged)

    def settle(self) -> None:
        """Make all staged chunks durable. Raises DiskFull, ModelError."""
        batch = dict(self._staged)
        try:
            self._files.settle([(staged, self.path(digest)) for digest, staged in batch.items()])
        except OSError as error:
            raise _refused(self._files, self._folder, 0, error) from error
        for digest, staged in batch.items():
            if self._staged.get(digest) == staged:
                del self._staged[digest]

    def _write(self, digest: str, data: bytes | memoryview) -> bool:
        path = self.path(digest)
        if self._files.size(path) == len(data) and self._holds(path, data):
            return False
        self.require_space(len(data))
        self._make_folder_of(path)
        write(self._files, path, data)
        self.used_bytes += len(data)
        return True

    def _holds(self, path: Path, data: bytes | memoryview) -> bool:
        """Whether a file has exactly these bytes. After a power cut, its size proves nothing."""
        try:
            return self._files.read_range(path, 0, len(data) + 1) == data
        except OSError:
            return False

    def drop_damaged(self, digests: Iterable[str]) -> int:
        """Read the stored chunks, remove those whose bytes are wrong; return how many were."""
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
        """Return the bytes of a chunk, verified.

        Raises ChunkMissing; ChunkCorrupt, after removing the damaged chunk.
        """
        path, data = self._read(digest)
        if hashlib.sha256(data).hexdigest() != digest:
            self.remove(digest)
            self.damaged.add(digest)
            raise ChunkCorrupt(digest, f"on disk (`{path}`, now removed)")
        return data

    def get_to_serve(self, digest: str, now: float) -> bytes:
        """As `get`, for a peer that verifies the bytes itself.

        Skips the verification if this process verified the same file in the last `VERIFIED_FOR`
        seconds. `now` is the host's time in seconds.
        """
        known = self._verified.get(digest)
        if known is not None and now < known[1]:
            path = self._staged.get(digest) or self.path(digest)
            if known[0] is not None and known[0] == self._files.identity(path):
                return self._read(digest)[1]
        data = self.get(digest)
        self._remember(digest, self._files.identity(self.path(digest)), now)
        return data

    def _remember(self, digest: str, file: tuple[int, int, int] | None, now: float) -> None:
        self._verified[digest] = file, now + VERIFIED_FOR
        while len(self._verified) > VERIFIED_LIMIT:
            with suppress(KeyError):  # another thread emptied it first
                self._verified.popitem(last=False)

    def _read(self, digest: str) -> tuple[Path, bytes]:
        path = self._staged.get(digest)
        if path is not None:
            with suppress(FileNotFoundError):  # another thread has settled it
                return path, self._read_file(path)
        path = self.path(digest)
        try:
            return path, self._read_file(path)
        except FileNotFoundError:
            raise ChunkMissing(digest) from None

    def _read_file(self, path: Path) -> bytes:
        try:
            return self._files.read_range(path, 0, CHUNK + 1)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise unreadable(path, error) from error

    def remove(self, digest: str) -> None:
        """Delete a chunk, staged or settled."""
        staged = self._staged.pop(digest, None)
        for path in (staged, self.path(digest)):
            if path is not None:
                self.used_bytes -= self._files.size(path) or 0
                self._files.remove(path)
        self._verified.pop(digest, None)

    def require_space(self, needed: int) -> None:
        """Raise DiskFull unless `needed` bytes fit beside the reserve, and QuotaFull if they exceed
        the owner's limit."""
        if self.limit is not None and self.used_bytes + needed > self.limit:
            raise QuotaFull(self.limit, needed, self.used_bytes)
        free = max(0, self.free() - self._reserve)
        if needed > free:
            raise DiskFull(self._folder, needed, free, self._reserve)

    def free(self) -> int:
        """Return the free bytes of the disk. Raises ModelError `unwritable`."""
        try:
            return self._files.free_space(self._folder)
        except OSError as error:
            raise unwritable(self._folder, error) from error

    def size_of(self, digests: Iterable[str]) -> int:
        """Return the bytes of those chunks that are stored."""
        return sum(self._files.size(self.path(digest)) or 0 for digest in digests)

    def used(self) -> int:
        """Return the bytes of all chunks, by listing the folders."""
        return sum(entry.size for folder in self._there() for entry in self._files.list(folder))


def write(files: Files, path: Path, data: bytes | memoryview) -> None:
    """Write model data with `Files.write`. Raises DiskFull, or ModelError `unwritable`."""
    try:
        files.write(path, data)
    except OSError as error:
        raise _refused(files, path, len(data), error) from error


def _refused(files: Files, path: Path, needed: int, error: OSError) -> ModelError:
    """Return the error for a write that the operating system refused."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return unwritable(path, error)
    free = 0
    with suppress(OSError):
        free = files.free_space(path.parent)
    return DiskFull(path.parent, needed, free)


def remove_leftovers(files: Files, folder: Path) -> None:
    """Remove temporary files of writes that a killed process did not finish."""
    for entry in files.list(folder):
        if entry.name.startswith(".") and entry.name.endswith(".tmp"):
            files.remove(folder / entry.name)
