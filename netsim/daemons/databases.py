"""SQLite on a simulated disk: its system calls go to a `Mount`.

The disk's faults reach SQLite as its own errors, and its syncs take the disk's time. Each file has
only one connection, so shared memory is not needed and a lock of any level locks it completely.
"""

import errno
from itertools import count
from pathlib import Path
from typing import Any, Final

import apsw

from ...transport.host.database import Database, connect
from ..disk.mount import BlockHandle, Mount

_MAKES: Final = apsw.SQLITE_OPEN_CREATE
_SYNCS_FOLDER: Final = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL
_JULIAN_MS: Final = 210866760000000  # 1970 by SQLite's clock
_LOG: Final = 128 * 2**10  # bytes, an eighth of the usual size: hundreds of hosts share one memory
_numbers = count(1)


def open_database(mount: Mount, path: Path) -> Database:
    """Open one program's database. Raises OSError, DatabaseDamaged, AlreadyLocked."""
    calls = DiskCalls(mount, f"disk-{next(_numbers)}")
    return connect(path, calls.name, calls.unregister, _LOG)


class DiskCalls(apsw.VFS):
    """SQLite's system calls on one mount."""

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
        """Return zeros: SQLite only needs randomness to tell its logs apart."""
        return bytes(numbytes)

    def xSleep(self, microseconds: int) -> int:
        """Return at once: no other program of this computer runs in the meantime."""
        return microseconds

    def xCurrentTimeInt64(self) -> int:
        return _JULIAN_MS + round(self._mount.disk.events.now * 1000)

    def xGetLastError(self) -> tuple[int, str]:
        return 0, ""

    def excepthook(self, etype: Any, evalue: Any, etraceback: Any) -> bool:
        """Ignore errors that SQLite cannot report, for example when it closes a file."""
        return True


class DiskFile:
    """One file of a database."""

    def __init__(self, mount: Mount, handle: BlockHandle, *, sync_folder: bool) -> None:
        self._mount = mount
        self._handle = handle
        self._sync_folder = sync_folder  # at the first sync: the file's name is new
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
        """Return no characteristics: writes may be torn and reordered."""
        return 0

    def xFileControl(self, op: int, ptr: int) -> bool:
        return False

    def excepthook(self, etype: Any, evalue: Any, etraceback: Any) -> bool:
        """Ignore errors that SQLite cannot report."""
        return True


def _refused(error: OSError, otherwise: int) -> Exception:
    """Return SQLite's error for an error of the disk."""
    if error.errno == errno.ENOSPC:
        return apsw.FullError(str(error))
    if error.errno == errno.EROFS:
        return apsw.ReadOnlyError(str(error))
    return apsw.exception_for(otherwise)
