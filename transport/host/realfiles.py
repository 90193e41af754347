"""The real implementation of `Files`, on the file system of this machine."""

import errno
import fcntl
import io
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import AlreadyLocked, FileTooLarge
from .seam import FileLock, FolderEntry

if TYPE_CHECKING:
    from .database import Database


def _open_file(path: Path) -> io.FileIO:
    """Open a file for reading. Raises OSError if it is not a regular file, because reading from a
    byte_stream could block forever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return io.FileIO(descriptor, "r")


_SYNCS_AT_ONCE = 4  # threads that sync files at the same time
_BLOCK = 4096  # bytes; direct writes must be aligned to this on common disks


def _sync(paths: Iterable[Path]) -> None:
    """Sync files or folders to disk. Skip paths that no longer exist."""
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _shared_out(paths: Sequence[Path]) -> list[Sequence[Path]]:
    """Split the paths into one list for each of a few threads. A task for each single path would
    cost more than its sync."""
    return [paths[start::_SYNCS_AT_ONCE] for start in range(min(_SYNCS_AT_ONCE, len(paths)))]


def _write_past_cache(descriptor: int, data: memoryview) -> int:
    """Write data from memory directly to the disk, without a copy in the kernel's page cache. The
    copy was measured to cost more CPU time than the SHA-256 of the data. Return the number of bytes
    written. It is 0 if the size or the memory is not aligned to blocks, or if the file system does
    not support direct writes."""
    direct = getattr(os, "O_DIRECT", 0)
    if not direct or not data or len(data) % _BLOCK:
        return 0
    written = 0
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, direct)
        written = os.write(descriptor, data)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    if written < len(data):
        fcntl.fcntl(descriptor, fcntl.F_SETFL, 0)
    return written


class _RealLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class RealFiles:
    """Implementation of `Files` on the file system of this machine."""

    def read(self, path: Path, *, limit: int) -> bytes:
        with _open_file(path) as file:
            pieces = []
            rest = limit + 1
            while rest > 0 and (piece := file.read(rest)):
                pieces.append(piece)
                rest -= len(piece)
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        if len(data) > limit:
            raise FileTooLarge(f"`{path}` has more than {limit} bytes")
        return data

    def read_range(self, path: Path, offset: int, size: int) -> bytes:
        with _open_file(path) as file:
            file.seek(offset)
            pieces = []
            while size > 0 and (piece := file.read(size)):
                pieces.append(piece)
                size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def write(self, path: Path, data: bytes | memoryview, *, mode: int = 0o600) -> None:
        self.write_pieces(path, (data,), mode=mode)

    def write_pieces(
        self, path: Path, pieces: Iterable[bytes | memoryview], *, mode: int = 0o600
    ) -> None:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with open(descriptor, "wb", buffering=0) as file:
                for piece in pieces:
                    rest = memoryview(piece)
                    while rest:
                        rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        self._sync_one(path.parent)

    def append(self, path: Path, data: bytes | memoryview, *, mode: int = 0o600) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(path, flags, mode), "wb", buffering=0) as file:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest) :]

    def sync(self, path: Path) -> None:
        for each in (path, path.parent):  # the name may be new
            self._sync_one(each)

    def stage(self, path: Path, data: bytes | memoryview, *, mode: int = 0o600) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with open(descriptor, "wb", buffering=0) as file:
                rest = memoryview(data)
                rest = rest[_write_past_cache(descriptor, rest) :]
                if rest:  # allocating all blocks at once costs ext4 half as much as page by page
                    os.posix_fallocate(descriptor, 0, len(data))
                while rest:
                    rest = rest[file.write(rest) :]
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(path)
            raise

    def settle(self, moves: Sequence[tuple[Path, Path]]) -> None:
        with ThreadPoolExecutor(_SYNCS_AT_ONCE) as pool:  # concurrent syncs are combined into one
            list(pool.map(_sync, _shared_out([staged for staged, _ in moves])))
            for staged, path in moves:
                with suppress(FileNotFoundError):
                    os.replace(staged, path)
        _sync(dict.fromkeys(path.parent for _, path in moves))

    def identity(self, path: Path) -> tuple[int, int, int] | None:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    @staticmethod
    def _sync_one(path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove(self, path: Path) -> None:
        with suppress(FileNotFoundError):
            os.unlink(path)

    def list(self, path: Path) -> list[FolderEntry]:
        entries = []
        try:
            with os.scandir(path) as found:
                for item in found:
                    with suppress(FileNotFoundError):
                        folder = item.is_dir()
                        entries.append(
                            FolderEntry(item.name, folder, 0 if folder else item.stat().st_size)
                        )
        except FileNotFoundError:
            return []
        return sorted(entries, key=lambda entry: entry.name)

    def size(self, path: Path) -> int | None:
        try:
            return os.stat(path).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def real(self, path: Path) -> Path:
        return Path(os.path.realpath(path))

    def mode(self, path: Path) -> int:
        return os.stat(path).st_mode & 0o7777

    def make_folder(self, path: Path, *, mode: int = 0o700) -> None:
        missing = []
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        for folder in reversed(missing):  # parents get the default mode, as with `mkdir -p`
            folder.mkdir(mode=mode if folder is missing[0] else 0o777, exist_ok=True)
            self._sync_one(folder.parent)

    def free_space(self, path: Path) -> int:
        return shutil.disk_usage(path).free

    def lock(self, path: Path) -> FileLock:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise AlreadyLocked(f"`{path}` is locked by another process") from None
            raise
        return _RealLock(descriptor)

    def database(self, path: Path) -> "Database":
        from .database import connect

        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:  # not opened, because closing it would release SQLite's locks
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(path)) from None
            os.chmod(path, 0o600)
        else:
            os.close(descriptor)
            self._sync_one(path.parent)
        return connect(path)
