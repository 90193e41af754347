"""Chunks on disk: one file each, named by the SHA-256 of its bytes.

Every method blocks: call it inside `Host.offload`. A file is there whole or not at all
(`Files.write`), bytes are checked when they come in and again when they go out, and a name
is made from 64 hex digits only, so no name from outside leads anywhere else.
"""

import errno
import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from ..transport.host import Files, Host
from .defaults import CHUNK, DISK_RESERVE
from .errors import ChunkCorrupt, ChunkMissing, DiskFull, ModelError, unreadable, unwritable
from .manifest import is_digest

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


class ChunkStore:
    """Chunks under `folder`, as `ab/ab12…`; `reserve` bytes of the disk are left free."""

    def __init__(self, host: Host, folder: Path, *, reserve: int = DISK_RESERVE) -> None:
        self._files = host.files
        self._folder = folder
        self._reserve = reserve

    def open(self) -> None:
        """Make the folders, and remove what a killed process left half-written."""
        for number in range(256):
            folder = self._folder / f"{number:02x}"
            try:
                self._files.make_folder(folder)
                remove_leftovers(self._files, folder)
            except OSError as error:
                raise unwritable(folder, error) from error

    def path(self, digest: str) -> Path:
        """Where the chunk is or would be. Raises ModelError for anything but a digest."""
        if not is_digest(digest):
            raise ModelError("bad-digest", f"{ascii(digest)[:80]} is no digest")
        return self._folder / digest[:2] / digest

    def has(self, digest: str) -> bool:
        """Is it here? Says nothing of its bytes; `get` does."""
        return self._files.size(self.path(digest)) is not None

    def missing(self, digests: Iterable[str]) -> list[str]:
        """Those that are not here, in order, each once."""
        return [digest for digest in dict.fromkeys(digests) if not self.has(digest)]

    def put(self, digest: str, data: bytes | memoryview) -> bool:
        """Store a chunk; on disk when it returns. False: it was here already.

        Raises ChunkCorrupt where the bytes are not the digest's, DiskFull.
        """
        if len(data) > CHUNK or hashlib.sha256(data).hexdigest() != digest:
            raise ChunkCorrupt(digest, "as received")
        return self._write(digest, data)

    def add(self, data: bytes | memoryview) -> str:
        """Store bytes of our own; returns their digest. Raises DiskFull."""
        digest = hashlib.sha256(data).hexdigest()
        self._write(digest, data)
        return digest

    def _write(self, digest: str, data: bytes | memoryview) -> bool:
        path = self.path(digest)
        if self._files.size(path) == len(data) and self._holds(path, data):
            return False
        self.require_space(len(data))
        write(self._files, path, data)
        return True

    def _holds(self, path: Path, data: bytes | memoryview) -> bool:
        """Whether a file has these bytes: its size says nothing after a power cut."""
        try:
            return self._files.read_range(path, 0, len(data) + 1) == data
        except OSError:
            return False

    def drop_damaged(self, digests: Iterable[str]) -> int:
        """Read those that are here, and remove the ones whose bytes are wrong; says how many."""
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
        """The chunk's bytes, verified. Raises ChunkMissing; ChunkCorrupt, and then it is gone."""
        path = self.path(digest)
        try:
            data = self._files.read_range(path, 0, CHUNK + 1)
        except FileNotFoundError:
            raise ChunkMissing(digest) from None
        except OSError as error:
            raise unreadable(path, error) from error
        if hashlib.sha256(data).hexdigest() != digest:
            self._files.remove(path)
            raise ChunkCorrupt(digest, f"on disk (`{path}`, now removed)")
        return data

    def require_space(self, needed: int) -> None:
        """Raises DiskFull unless `needed` bytes fit and the reserve stays free."""
        try:
            free = max(0, self._files.free_space(self._folder) - self._reserve)
        except OSError as error:
            raise unwritable(self._folder, error) from error
        if needed > free:
            raise DiskFull(self._folder, needed, free, self._reserve)

    def used(self) -> int:
        """Bytes of all chunks."""
        folders = (self._folder / f"{number:02x}" for number in range(256))
        return sum(entry.size for folder in folders for entry in self._files.list(folder))


def write(files: Files, path: Path, data: bytes | memoryview) -> None:
    """`Files.write` for the data of models: raises DiskFull, or ModelError `unwritable`."""
    try:
        files.write(path, data)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise unwritable(path, error) from error
        free = 0
        with suppress(OSError):
            free = files.free_space(path.parent)
        raise DiskFull(path.parent, len(data), free) from error


def remove_leftovers(files: Files, folder: Path) -> None:
    """Remove the temporary files of writes that a killed process did not finish."""
    for entry in files.list(folder):
        if entry.name.startswith(".") and entry.name.endswith(".tmp"):
            files.remove(folder / entry.name)
