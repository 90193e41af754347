"""The system calls of a program on a simulated disk: one `Mount` for each life."""

import errno
import os
from collections.abc import Callable

from .disk import Disk, File, Folder, Node, parts_of


class Mount:
    """The system calls of one program. All raise OSError; EIO once its life is over."""

    def __init__(self, disk: Disk, ended: Callable[[], None] | None = None) -> None:
        """Those of the program before work no more; `ended` is called when these do not."""
        self.disk = disk
        self.alive = True
        self._ended = ended
        disk.attach(self)

    def end(self) -> None:
        """Power off, or another program."""
        self.alive = False
        if self._ended is not None:
            self._ended()

    def check(self, path: str, *, writing: bool = False) -> None:
        """Raises what the path's faults, the switches or the end of this life say."""
        disk = self.disk
        if not self.alive:
            raise _failed(errno.EIO, path)
        if disk.errors and path in disk.errors:
            raise _failed(disk.errors[path], path)
        if writing and disk.read_only:
            raise _failed(errno.EROFS, path)

    def find(self, path: str) -> Node | None:
        """What a path names, or None. Raises OSError (ENOTDIR)."""
        self.check(path)
        node: Node = self.disk.root
        for part in parts_of(path):
            if not isinstance(node, Folder):
                raise _failed(errno.ENOTDIR, path)
            found = node.names.get(part)
            if found is None:
                return None
            node = found
        return node

    def node(self, path: str) -> Node:
        """What a path names. Raises OSError (ENOENT)."""
        found = self.find(path)
        if found is None:
            raise _failed(errno.ENOENT, path)
        return found

    def open(self, path: str) -> "Handle":
        """A file that is there."""
        found = self.node(path)
        if isinstance(found, Folder):
            raise _failed(errno.EISDIR, path)
        return Handle(self, path, found)

    def create(self, path: str, *, mode: int = 0o600) -> "Handle":
        """A new, empty file. Raises OSError (EEXIST)."""
        folder, name = self._parent(path)
        if name in folder.names:
            raise _failed(errno.EEXIST, path)
        file = File(b"", mode)
        self.disk.change_names((folder, name, file))
        return Handle(self, path, file)

    def make_folder(self, path: str, *, mode: int = 0o700) -> None:
        """Raises OSError (EEXIST)."""
        folder, name = self._parent(path)
        if name in folder.names:
            raise _failed(errno.EEXIST, path)
        self.disk.change_names((folder, name, Folder(mode)))

    def rename(self, old: str, new: str) -> None:
        """Replaces a file of the new name, at one instant."""
        source, before = self._parent(old)
        target, after = self._parent(new)
        self.disk.change_names((target, after, self.node(old)), (source, before, None))

    def remove(self, path: str) -> None:
        """A file's name."""
        folder, name = self._parent(path)
        node = self.node(path)
        if isinstance(node, Folder):
            raise _failed(errno.EISDIR, path)
        self.disk.change_names((folder, name, None))
        self.disk.forget(node)

    def sync_folder(self, path: str) -> None:
        """Make its names durable."""
        self.node(path)
        self.disk.sync(None)

    def lock(self, path: str) -> File | None:
        """Lock a file, made where absent; None where it is locked. The crash unlocks it."""
        found = self.find(path)
        file = self.open(path).file if found is not None else self.create(path).file
        if file in self.disk.locks:
            return None
        self.disk.locks.add(file)
        return file

    def unlock(self, file: File) -> None:
        if self.alive:
            self.disk.locks.discard(file)

    def _parent(self, path: str) -> tuple[Folder, str]:
        """The folder of a name that is to change."""
        self.check(path, writing=True)
        above, _, name = path.rstrip("/").rpartition("/")
        folder = self.node(above or "/")
        if not isinstance(folder, Folder):
            raise _failed(errno.ENOTDIR, path)
        if folder.fixed:
            raise _failed(errno.EROFS, path)
        return folder, name


class Handle:
    """An open file."""

    def __init__(self, mount: Mount, path: str, file: File) -> None:
        self.file = file
        self._mount = mount
        self._path = path
        self._at = 0

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes; fewer at the end."""
        self._mount.check(self._path)
        content = self.file.content
        data = content if not offset and size >= len(content) else content[offset : offset + size]
        disk = self._mount.disk
        disk.charge(disk.spec.seek_s + len(data) / disk.spec.read_rate)
        return data

    def write(self, data: bytes) -> int:
        """Append at this handle's place; returns the bytes taken, fewer on a disk that fills up.

        Raises OSError (ENOSPC) when it is full.
        """
        self._mount.check(self._path, writing=True)
        disk = self._mount.disk
        room = disk.free + max(len(self.file.content) - self._at, 0)
        if data and not room:
            raise _failed(errno.ENOSPC, self._path)
        taken = data[:room]
        disk.write(self.file, self._at, taken)
        self._at += len(taken)
        return len(taken)

    def sync(self) -> None:
        """Make the content durable."""
        self._mount.check(self._path)
        self._mount.disk.sync(self.file)


def _failed(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
