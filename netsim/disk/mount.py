"""System calls of a program on a simulated disk. Each run of a program has its own `Mount`.

A mount whose `log` is a list appends each change of a file that is written in place to this log.
`replay` repeats these changes on another mount.
"""

import errno
import os
from collections.abc import Callable, Sequence

from .disk import Disk, Folder, Node, parts_of
from .file import BlockFile, File

Operation = tuple[str, str, int, bytes]
"""(name of the call, path, offset or length or mode, written bytes)."""


class Mount:
    """System calls of one program. Any method may raise OSError. Once the program has ended, every
    method raises it with EIO.
    """

    def __init__(self, disk: Disk, ended: Callable[[], None] | None = None) -> None:
        """Replace the mount of the previous program, which stops working. `ended` is called when
        this mount stops working.
        """
        self.disk = disk
        self.alive = True
        self.log: list[Operation] | None = None
        self._ended = ended
        disk.attach(self)

    def end(self) -> None:
        """Stop working, because the power is off or another program has started."""
        self.alive = False
        if self._ended is not None:
            self._ended()

    def check(self, path: str, *, writing: bool = False) -> None:
        """Check whether a call on `path` may proceed. Raises OSError: EIO if this mount has ended,
        the error that was injected for the path, or EROFS if `writing` is True and the disk is
        read-only.
        """
        disk = self.disk
        if not self.alive:
            raise _failed(errno.EIO, path)
        if disk.errors and path in disk.errors:
            raise _failed(disk.errors[path], path)
        if writing and disk.read_only:
            raise _failed(errno.EROFS, path)

    def find(self, path: str) -> Node | None:
        """Return the file or folder at a path, or None if there is none. Raises OSError (ENOTDIR)
        if a file stands where the path needs a folder.
        """
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
        """Return the file or folder at a path. Raises OSError (ENOENT) if there is none."""
        found = self.find(path)
        if found is None:
            raise _failed(errno.ENOENT, path)
        return found

    def open(self, path: str) -> "Handle":
        """Open an existing file. Raises OSError: ENOENT if there is none, EISDIR if the path is a
        folder.
        """
        found = self.node(path)
        if isinstance(found, Folder):
            raise _failed(errno.EISDIR, path)
        return Handle(self, path, found)

    def append(self, path: str, *, mode: int = 0o600) -> "Handle":
        """Open a file at its end, and create it if it does not exist."""
        if self.find(path) is None:
            return self.create(path, mode=mode)
        handle = self.open(path)
        handle.seek_end()
        return handle

    def create(self, path: str, *, mode: int = 0o600) -> "Handle":
        """Create an empty file and open it. Raises OSError (EEXIST) if the name exists."""
        folder, name = self._parent(path)
        if name in folder.names:
            raise _failed(errno.EEXIST, path)
        file = File(b"", mode)
        self.disk.change_names((folder, name, file))
        return Handle(self, path, file)

    def open_blocks(self, path: str, *, make: bool, mode: int = 0o600) -> "BlockHandle":
        """Open a file for writing in place. If it does not exist, create it if `make` is True,
        otherwise raise OSError (ENOENT).
        """
        found = self.find(path)
        if found is None and make:
            folder, name = self._parent(path)
            self.keep("make", path, mode)
            found = BlockFile(b"", mode)
            self.disk.change_names((folder, name, found))
        elif isinstance(found, File) and not isinstance(found, BlockFile):
            folder, name = self._parent(path)
            found = folder.names[name] = BlockFile(found.content, found.mode)
        if not isinstance(found, BlockFile):
            raise _failed(errno.ENOENT if found is None else errno.EISDIR, path)
        return BlockHandle(self, path, found)

    def keep(self, call: str, path: str, number: int = 0, data: bytes = b"") -> None:
        """Append an operation to the log, if there is a log."""
        if self.log is not None:
            self.log.append((call, path, number, data))

    def make_folder(self, path: str, *, mode: int = 0o700) -> None:
        """Create a folder. Raises OSError (EEXIST) if the name exists."""
        folder, name = self._parent(path)
        if name in folder.names:
            raise _failed(errno.EEXIST, path)
        self.disk.change_names((folder, name, Folder(mode)))

    def rename(self, old: str, new: str) -> None:
        """Rename a file or folder. A file that has the new name already is replaced atomically."""
        source, before = self._parent(old)
        target, after = self._parent(new)
        self.disk.change_names((target, after, self.node(old)), (source, before, None))

    def remove(self, path: str) -> None:
        """Remove a file. Raises OSError (EISDIR) if the path is a folder."""
        folder, name = self._parent(path)
        node = self.node(path)
        if isinstance(node, Folder):
            raise _failed(errno.EISDIR, path)
        self.keep("remove", path)
        self.disk.change_names((folder, name, None))
        self.disk.forget(node)

    def sync_folder(self, path: str) -> None:
        """Start a sync of all names of the disk. Raises OSError (ENOENT) if the folder does not
        exist.
        """
        self.node(path)
        self.keep("sync_folder", path)
        self.disk.sync(None)

    def lock(self, path: str) -> File | None:
        """Lock a file and return it; create the file if it does not exist. Return None if it is
        locked already. A crash of the host releases the lock.
        """
        found = self.find(path)
        file = self.open(path).file if found is not None else self.create(path).file
        if file in self.disk.locks:
            return None
        self.disk.locks.add(file)
        return file

    def unlock(self, file: File) -> None:
        """Unlock a file that `lock` returned."""
        if self.alive:
            self.disk.locks.discard(file)

    def _parent(self, path: str) -> tuple[Folder, str]:
        """Return (folder that contains `path`, last name of `path`), before that name is changed.
        Raises OSError if the folder cannot be changed.
        """
        self.check(path, writing=True)
        above, _, name = path.rstrip("/").rpartition("/")
        folder = self.node(above or "/")
        if not isinstance(folder, Folder):
            raise _failed(errno.ENOTDIR, path)
        if folder.fixed:
            raise _failed(errno.EROFS, path)
        return folder, name


class Handle:
    """Open file that is replaced as a whole or appended to."""

    def __init__(self, mount: Mount, path: str, file: File) -> None:
        self.file = file
        self._mount = mount
        self._path = path
        self._at = 0

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer at the end of the file."""
        self._mount.check(self._path)
        data = self.file.read(offset, size)
        disk = self._mount.disk
        disk.charge(disk.spec.seek_s + len(data) / disk.spec.read_rate)
        return data

    def write(self, data: bytes) -> int:
        """Write at this handle's position and advance the position. Return the number of bytes
        written, which is smaller than the length of `data` if the disk fills up.

        Raises OSError (ENOSPC) if the disk is full already.
        """
        self._mount.check(self._path, writing=True)
        disk = self._mount.disk
        room = disk.free + max(self.file.size - self._at, 0)
        if data and not room:
            raise _failed(errno.ENOSPC, self._path)
        taken = data[:room]
        disk.write(self.file, self._at, taken)
        self._at += len(taken)
        return len(taken)

    def seek_end(self) -> None:
        """Move the position to the end of the file."""
        self._at = self.file.size

    def sync(self) -> None:
        """Start a sync that makes the file's content durable."""
        self._mount.check(self._path)
        self._mount.disk.sync(self.file)


class BlockHandle:
    """Open file that is written in place."""

    def __init__(self, mount: Mount, path: str, file: BlockFile) -> None:
        self.file = file
        self.path = path
        self._mount = mount

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`; fewer at the end of the file."""
        self._mount.check(self.path)
        disk = self._mount.disk
        disk.charge(disk.spec.seek_s + size / disk.spec.read_rate)
        return self.file.read(offset, size)

    def write(self, offset: int, data: bytes) -> None:
        """Write all of `data` at `offset`. Raises OSError (ENOSPC), and writes nothing, if the
        space does not suffice.
        """
        self._mount.check(self.path, writing=True)
        disk = self._mount.disk
        if offset + len(data) - self.file.size > disk.free:
            raise _failed(errno.ENOSPC, self.path)
        self._mount.keep("write", self.path, offset, data)
        disk.overwrite(self.file, offset, data)

    def resize(self, size: int) -> None:
        """Truncate the file to `size` bytes, or extend it with zeros. Raises OSError (ENOSPC) if
        the space does not suffice.
        """
        self._mount.check(self.path, writing=True)
        disk = self._mount.disk
        if size - self.file.size > disk.free:
            raise _failed(errno.ENOSPC, self.path)
        self._mount.keep("resize", self.path, size)
        disk.resize(self.file, size)

    def size(self) -> int:
        """Return the size of the file in bytes."""
        self._mount.check(self.path)
        return self.file.size

    def sync(self) -> None:
        """Start a sync that makes the file's content durable."""
        self._mount.check(self.path)
        self._mount.keep("sync", self.path)
        self._mount.disk.sync(self.file)


def replay(mount: Mount, log: Sequence[Operation]) -> None:
    """Repeat the operations of another mount's log on `mount`."""
    for call, path, number, data in log:
        if call == "make":
            mount.open_blocks(path, make=True, mode=number)
        elif call == "write":
            mount.open_blocks(path, make=False).write(number, data)
        elif call == "resize":
            mount.open_blocks(path, make=False).resize(number)
        elif call == "sync":
            mount.open_blocks(path, make=False).sync()
        elif call == "sync_folder":
            mount.sync_folder(path)
        else:
            mount.remove(path)


def _failed(number: int, path: str) -> OSError:
    """Return an OSError with this errno, its standard message and the path."""
    return OSError(number, os.strerror(number), path)
