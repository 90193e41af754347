"""SQLite on a simulated disk: SQLite's system calls go to a `Mount`.

Faults of the disk become SQLite's own errors, and syncs take as long as the disk needs. Each file
has only one connection. Shared memory is therefore not needed, and every lock locks the whole file.
"""

import errno
from itertools import count
from pathlib import Path
from typing import Any, Final

import apsw

from ...transport.host.database import Database, Sizes, connect
from ..disk.mount import BlockHandle, Mount

_MAKES: Final = apsw.SQLITE_OPEN_CREATE  # flag: create the file if it does not exist
_JULIAN_MS: Final = 210866760000000  # the start of 1970 by SQLite's clock, in milliseconds
# A sixteenth of the usual cache and an eighth of the usual log, because hundreds of hosts share one
# machine's memory, and the file that SQLite caches is in that memory itself. A shorter log is
# copied more often, which on a full disk needs room that a commit does not.
_SIZES: Final = Sizes(cache=64 * 2**10, log=128 * 2**10)
_numbers = count(1)  # for unique names of SQLite's VFS


def open_database(mount: Mount, path: Path) -> Database:
    """Open a database file of one program.

    Raises OSError if the disk fails, DatabaseDamaged if the file is not a valid database, and
    AlreadyLocked if another program has opened it.
    """
    calls = DiskCalls(mount, f"disk-{next(_numbers)}")
    return connect(path, calls.name, calls.unregister, _SIZES)


class DiskCalls(apsw.VFS):
    """SQLite's system calls (VFS) on one mount. Their names and semantics are those of SQLite."""

    def __init__(self, mount: Mount, name: str) -> None:
        self.name = name
        self._mount = mount
        super().__init__(name, iVersion=2)

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> Any:
        if name is None:
            raise apsw.CantOpenError("temporary files are in memory")
        path = name if isinstance(name, str) else name.filename()
        flags[1] = flags[0]
        try:
            made = self._mount.find(path) is None
            handle = self._mount.open_blocks(path, make=bool(flags[0] & _MAKES))
        except OSError as error:
            raise _refused(error, apsw.SQLITE_CANTOPEN) from error
        return DiskFile(self._mount, handle, sync_folder=made)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        try:
            self._mount.remove(filename)
            if syncdir:
                self._mount.sync_folder(filename.rpartition("/")[0])
        except FileNotFoundError as error:
            raise _refused(error, apsw.SQLITE_IOERR_DELETE_NOENT) from error
        except OSError as error:
            raise _refused(error, apsw.SQLITE_IOERR_DELETE) from error

    def xAccess(self, pathname: str, flags: int) -> bool:
        try:
            return self._mount.find(pathname) is not None
        except OSError as error:
            raise _refused(error, apsw.SQLITE_IOERR_ACCESS) from error

    def xFullPathname(self, name: str) -> str:
        return name

    def xRandomness(self, numbytes: int) -> bytes:
        """Return zeros. SQLite needs randomness only to distinguish its logs."""
        return bytes(numbytes)

    def xSleep(self, microseconds: int) -> int:
        """Return at once, because no other program of this computer could run in the meantime."""
        return microseconds

    def xCurrentTimeInt64(self) -> int:
        return _JULIAN_MS + round(self._mount.disk.events.now * 1000)

    def xGetLastError(self) -> tuple[int, str]:
        return 0, ""

    def excepthook(self, etype: Any, evalue: Any, etraceback: Any) -> bool:
        """Ignore exceptions that SQLite cannot report to its caller, such as those of `xClose`."""
        return True


class DiskFile:
    """SQLite's system calls on one file. Their names and semantics are those of SQLite."""

    def __init__(self, mount: Mount, handle: BlockHandle, *, sync_folder: bool) -> None:
        self._mount = mount
        self._handle = handle
        self._sync_folder = sync_folder  # the file is new, so the first sync includes its folder
        self._locked = False

    def xRead(self, amount: int, offset: int) -> bytes:
        try:
            return self._handle.read(offset, amount)
        except OSError as error:
            raise _refused(error, apsw.SQLITE_IOERR_READ) from error

    def xWrite(self, data: bytes, offset: int) -> None:
        try:
            self._handle.write(offset, bytes(data))
        except OSError as error:
            raise _refused(error, apsw.SQLITE_IOERR_WRITE) from error

    def xTruncate(self, newsize: int) -> None:
        try:
            self._handle.resize(newsize)
        except OSError as error:
            raise _refused(error, apsw.SQLITE_IOERR_TRUNCATE) from error

    def xSync(self, flags: int) -> None:
        try:
            self._handle.sync()
            if self._sync_folder:
                self._mount.sync_folder(self._handle.path.rpartition("/")[0])
                self._sync_folder = False
        except OSError as error:
            raise _refused(error, apsw.SQLITE_IOERR_FSYNC) from error

    def xFileSize(self) -> int:
        try:
            return self._handle.size()
        except OSError as error:
            raise _refused(error, apsw.SQLITE_IOERR_FSTAT) from error

    def xLock(self, level: int) -> None:
        locks = self._mount.disk.locks
        if not self._locked and self._mount.alive:
            if self._handle.file in locks:
                raise apsw.BusyError("another program on this computer holds the lock")
            locks.add(self._handle.file)
            self._locked = True

    def xUnlock(self, level: int) -> None:
        if level == apsw.SQLITE_LOCK_NONE and self._locked:
            self._locked = False
            self._mount.unlock(self._handle.file)

    def xCheckReservedLock(self) -> bool:
        return self._handle.file in self._mount.disk.locks and not self._locked

    def xClose(self) -> None:
        self.xUnlock(apsw.SQLITE_LOCK_NONE)

    def xSectorSize(self) -> int:
        return 4096

    def xDeviceCharacteristics(self) -> int:
        """Return no characteristics: a crash may tear writes and reorder them."""
        return 0

    def xFileControl(self, op: int, ptr: int) -> bool:
        return False

    def excepthook(self, etype: Any, evalue: Any, etraceback: Any) -> bool:
        """Ignore exceptions that SQLite cannot report to its caller."""
        return True


def _refused(error: OSError, otherwise: int) -> Exception:
    """Convert an error of the disk to SQLite's error. `otherwise` is the code for most errors."""
    if error.errno == errno.ENOSPC:
        return apsw.FullError(str(error))
    if error.errno == errno.EROFS:
        return apsw.ReadOnlyError(str(error))
    return apsw.exception_for(otherwise)
