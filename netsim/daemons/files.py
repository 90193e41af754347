"""The daemon's access to the simulated disk of its host. It implements `Files` of
`transport/host/seam.py`.
"""

import errno
from collections.abc import Iterable, MutableMapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...transport.errors import AlreadyLocked, FileTooLarge
from ...transport.host.seam import FileLock, FolderEntry
from ..disk.disk import Folder
from ..disk.file import File
from ..disk.mount import Mount

if TYPE_CHECKING:
    from ...transport.host.database import Database


class _Lock:
    """Lock on a file of a simulated disk, held until `release`."""

    def __init__(self, mount: Mount, file: File) -> None:
        self._mount = mount
        self._file = file

    def release(self) -> None:
        """Release the lock."""
        self._mount.unlock(self._file)


class DiskFiles:
    """`Files` of one program on a simulated disk. A write takes the same steps as on real disks."""

    def __init__(self, mount: Mount, sockets: MutableMapping[str, Any] | None = None) -> None:
        """Use the disk through `mount`.

        `sockets` has the host's Unix sockets by path; `remove` removes them from it.
        """
        self._mount = mount
        self._sockets = {} if sockets is None else sockets
        self._made = count(1)  # numbers for the names of temporary files

    def read(self, path: Path, *, limit: int) -> bytes:
        data = self._mount.open(str(path)).read(0, limit + 1)
        if len(data) > limit:
            raise FileTooLarge(f"`{path}` is larger than {limit} bytes")
        return data

    def read_range(self, path: Path, offset: int, size: int) -> bytes:
        return self._mount.open(str(path)).read(offset, size)

    def write(self, path: Path, data: bytes | memoryview, *, mode: int = 0o600) -> None:
        self.write_pieces(path, (data,), mode=mode)

    def write_pieces(
        self, path: Path, pieces: Iterable[bytes | memoryview], *, mode: int = 0o600
    ) -> None:
        mount = self._mount
        temporary = str(path.with_name(f".{path.name}.{next(self._made)}.tmp"))
        with suppress(FileNotFoundError):  # an interrupted run may have left the file behind
            mount.remove(temporary)
        handle = mount.create(temporary, mode=mode)
        try:
            for piece in pieces:
                rest = bytes(piece)
                while rest:
                    rest = rest[handle.write(rest) :]
            self._sync(temporary)
            mount.rename(temporary, str(path))
        except BaseException:
            with suppress(OSError):
                mount.remove(temporary)
            raise
        self._sync_folder(path.parent)

    def append(self, path: Path, data: bytes | memoryview, *, mode: int = 0o600) -> None:
        handle = self._mount.append(str(path), mode=mode)
        rest = bytes(data)
        while rest:
            rest = rest[handle.write(rest) :]

    def sync(self, path: Path) -> None:
        self._sync(str(path))
        self._sync_folder(path.parent)

    def stage(self, path: Path, data: bytes | memoryview, *, mode: int = 0o600) -> None:
        mount, name = self._mount, str(path)
        handle = mount.create(name, mode=mode)
        try:
            rest = bytes(data)
            while rest:
                rest = rest[handle.write(rest) :]
        except BaseException:
            with suppress(OSError):
                mount.remove(name)
            raise

    def settle(self, moves: Sequence[tuple[Path, Path]]) -> None:
        there = [move for move in moves if self._mount.find(str(move[0])) is not None]
        for staged, _ in there:
            self._sync(str(staged))
        for staged, path in there:
            self._mount.rename(str(staged), str(path))
        for folder in dict.fromkeys(path.parent for _, path in there):
            self._sync_folder(folder)

    def identity(self, path: Path) -> tuple[int, int, int] | None:
        """Return a value that changes whenever the file is written.

        Return None if there is no such file.
        """
        found = self._mount.find(str(path))
        if not isinstance(found, File):
            return None
        return id(found), found.size, 0

    def _sync(self, path: str) -> None:
        """Make the content of a file durable."""
        self._mount.open(path).sync()

    def _sync_folder(self, path: Path) -> None:
        """Make the names in a folder durable."""
        self._mount.sync_folder(str(path))

    def remove(self, path: Path) -> None:
        if self._sockets.pop(str(path), None) is None:
            with suppress(FileNotFoundError):
                self._mount.remove(str(path))

    def list(self, path: Path) -> list[FolderEntry]:
        found = self._mount.find(str(path))
        if found is None:
            return []
        if not isinstance(found, Folder):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", str(path))
        return [_entry(name, found.names[name]) for name in sorted(found.names)]

    def size(self, path: Path) -> int | None:
        try:
            found = self._mount.find(str(path))
        except NotADirectoryError:
            return None
        return None if found is None else _entry("", found).size

    def real(self, path: Path) -> Path:
        """Return the path unchanged, because this disk has no symbolic links."""
        return path

    def mode(self, path: Path) -> int:
        return self._mount.node(str(path)).mode

    def make_folder(self, path: Path, *, mode: int = 0o700) -> None:
        text, missing = str(path), list[str]()
        while self._mount.find(text) is None:
            missing.append(text)
            text = text.rpartition("/")[0] or "/"
        for folder in reversed(missing):
            self._mount.make_folder(folder, mode=mode if folder is missing[0] else 0o755)
            self._mount.sync_folder(folder.rpartition("/")[0] or "/")

    def free_space(self, path: Path) -> int:
        self._mount.check(str(path))
        return self._mount.disk.free

    def lock(self, path: Path) -> FileLock:
        file = self._mount.lock(str(path))
        if file is None:
            raise AlreadyLocked(f"`{path}` is locked by another process")
        return _Lock(self._mount, file)

    def database(self, path: Path) -> "Database":
        from .databases import open_database

        return open_database(self._mount, path)


def _entry(name: str, node: File | Folder) -> FolderEntry:
    """Describe a file or folder with its name. The size of a folder is 0."""
    folder = isinstance(node, Folder)
    return FolderEntry(name, folder, 0 if isinstance(node, Folder) else node.size)
