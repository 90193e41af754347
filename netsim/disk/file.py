"""Files of a simulated disk: their current content, and the part that would survive a crash."""

from collections import deque
from collections.abc import Callable
from random import Random
from sys import getrefcount
from typing import Final, NamedTuple

PAGE: Final = 4096  # bytes that are written or lost together in a crash
SECTOR: Final = 512  # bytes that are written or lost together when a write in place is torn
# seconds after which data is durable without a sync (Linux: vm.dirty_expire_centisecs = 3000)
DATA_WRITTEN_S: Final = 30.0
INTERNED: Final = 4096  # equal contents of this many bytes or more are stored only once
LOADED: Final = 2**20  # the most bytes of an installed file that stay in memory after a read
# References to a content that no file has, during a sweep: key, value, list, variable, argument.
_UNUSED: Final = 5
_SWEEP: Final = 2**20  # the least bytes of new contents between two sweeps


class Contents:
    """Large contents of the files of many disks, each stored only once.

    Files are replaced again and again, so contents that no file has any more are removed. This
    happens whenever the new contents have as many bytes as those that the last sweep left.
    """

    __slots__ = ("_added", "_left", "_stored")

    def __init__(self) -> None:
        self._stored: dict[bytes, bytes] = {}
        self._added = 0  # bytes since the last sweep
        self._left = 0  # bytes after the last sweep

    def __len__(self) -> int:
        return len(self._stored)

    def shared(self, content: bytes) -> bytes:
        """Return the stored bytes object that equals `content`; store `content` if there is
        none.
        """
        if len(content) < INTERNED:
            return content
        stored = self._stored.setdefault(content, content)
        if stored is content:
            self._added += len(content)
            if self._added >= max(self._left, _SWEEP):
                self._sweep()
        return stored

    def _sweep(self) -> None:
        """Remove the contents to which nothing else refers."""
        stored = self._stored
        for content in list(stored):
            if getrefcount(content) <= _UNUSED:
                del stored[content]
        self._added, self._left = 0, sum(map(len, stored))


class File:
    """File that is replaced as a whole or appended to. `safe` is the content that would survive a
    crash; None means that `content` itself would survive.
    """

    __slots__ = ("content", "mode", "safe", "since")

    def __init__(self, content: bytes, mode: int) -> None:
        self.content = content
        self.mode = mode
        self.safe: bytes | None = None
        self.since = 0.0  # time (s) of the oldest write that no sync has covered

    @property
    def size(self) -> int:
        """Size in bytes."""
        return len(self.content)

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`."""
        content = self.content
        return content if not offset and size >= len(content) else content[offset : offset + size]

    def mark(self) -> bytes | int:
        """Return the state of the file that a sync would make durable if it began now. Pass it to
        `settle` when the sync ends.
        """
        return self.content

    def settle(self, mark: bytes | int) -> bool:
        """Handle the end of a sync. `mark` is what `mark()` returned when the sync began. Return
        whether the whole content is durable now.
        """
        if self.safe is not None and isinstance(mark, bytes):
            self.safe = None if self.content is mark else mark
        return self.safe is None

    def lose(self, now: float, torn: bool, stream: Random) -> None:
        """Apply a crash at `now`. Random numbers from `stream` decide which parts of unsynced
        writes survive; if `torn` is False, a write survives as a whole or not at all.
        """
        self.content = self._survivor(now, torn, stream)
        self.safe = None

    def _survivor(self, now: float, torn: bool, stream: Random) -> bytes:
        """Return the content that is left after a crash at `now`."""
        old, new = self.safe or b"", self.content
        if self.since > now or (not torn and self.since > now - DATA_WRITTEN_S):
            return old
        if self.since <= now - DATA_WRITTEN_S:
            return new
        draw = stream.random()
        if draw < 0.5:
            return new[: stream.randint(0, len(new))]
        pages = range(0, len(new), PAGE)
        return b"".join(
            new[at : at + PAGE] if stream.random() < 0.5 else _page(old, at, len(new))
            for at in pages
        )


class InstalledFile(File):
    """File of the system, of `size` bytes. `load(offset, size)` reads a part of it.

    The first read loads it, because most simulations never read the weights of the embedded
    model. A file of more than `LOADED` bytes does not stay in memory; each read loads its part.
    """

    __slots__ = ("_content", "_load", "_size")

    def __init__(self, size: int, load: Callable[[int, int], bytes], mode: int) -> None:
        self._content: bytes | None = None
        self._load = load
        self._size = size
        self.mode = mode
        self.safe = None
        self.since = 0.0

    @property
    def content(self) -> bytes:
        """The whole content; loads it at the first use, or at each use if it is large."""
        if self._content is not None:
            return self._content
        content = self._load(0, self._size)
        if self._size <= LOADED:
            self._content = content
        return content

    @content.setter
    def content(self, content: bytes) -> None:
        self._content, self._size = content, len(content)

    @property
    def size(self) -> int:
        return self._size

    def read(self, offset: int, size: int) -> bytes:
        if self._content is None and self._size > LOADED:
            return self._load(offset, size)
        return super().read(offset, size)


class FileChange(NamedTuple):
    """One write in place, with the data needed to undo it. If `new` is None, the change sets the
    length of the file instead.
    """

    begun: float  # time (s) at which the disk starts to write it
    offset: int  # offset of the written bytes; the new length if `new` is None
    new: bytes | None
    old: bytes  # bytes that the change overwrote or cut off
    size: int  # size of the file before the change


class BlockFile(File):
    """File that is written in place. After a crash, each write since the last sync is independently
    intact, lost or torn.
    """

    __slots__ = ("_changes", "_data", "_gone")

    def __init__(self, content: bytes, mode: int) -> None:
        self._changes: deque[FileChange] = deque()  # changes that no sync has covered
        self._gone = 0  # number of earlier changes, which are durable
        super().__init__(content, mode)

    @property
    def content(self) -> bytes:
        """A copy of the whole content. Setting it replaces the content durably at once; tests use
        this to damage a disk.
        """
        return bytes(self._data)

    @content.setter
    def content(self, content: bytes) -> None:
        """Replace the content durably at once, for tests that damage a disk."""
        self._data = bytearray(content)
        self._gone += len(self._changes)
        self._changes.clear()

    @property
    def size(self) -> int:
        return len(self._data)

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self._data[offset : offset + size])

    def overwrite(self, begun: float, offset: int, data: bytes) -> None:
        """Write `data` at `offset`. `begun` is the time at which the disk starts to write it."""
        old = bytes(self._data[offset : offset + len(data)])
        self._changes.append(FileChange(begun, offset, data, old, len(self._data)))
        self._put(offset, data)
        self._age(begun)

    def resize(self, begun: float, size: int) -> None:
        """Truncate the file to `size` bytes, or extend it with zeros. `begun` is the time at which
        the disk starts to do so.
        """
        self._changes.append(
            FileChange(begun, size, None, bytes(self._data[size:]), len(self._data))
        )
        self._set_size(size)
        self._age(begun)

    def mark(self) -> bytes | int:
        """Return the number of changes so far: the changes that a sync would make durable if it
        began now.
        """
        return self._gone + len(self._changes)

    def settle(self, mark: bytes | int) -> bool:
        while isinstance(mark, int) and self._gone < mark:
            self._changes.popleft()
            self._gone += 1
        return not self._changes

    def lose(self, now: float, torn: bool, stream: Random) -> None:
        changes = list(self._changes)
        self._gone += len(changes)
        self._changes.clear()
        for change in reversed(changes):
            self._set_size(change.size)
            self._put(change.offset, change.old)
        for change in changes:
            if change.begun <= now - DATA_WRITTEN_S:
                self._redo(change)
            elif change.begun <= now and torn:
                self._redo_partly(change, stream)

    def _redo(self, change: FileChange) -> None:
        """Apply a change that has survived a crash."""
        if change.new is None:
            self._set_size(change.offset)
        else:
            self._put(change.offset, change.new)

    def _redo_partly(self, change: FileChange, stream: Random) -> None:
        """Apply all, some sectors or nothing of a change that was not synced before a crash."""
        draw = stream.random()
        if draw < 0.4:
            self._redo(change)
        elif draw < 0.7 and change.new is not None:
            for at in range(0, len(change.new), SECTOR):
                if stream.random() < 0.5:
                    self._put(change.offset + at, change.new[at : at + SECTOR])

    def _age(self, now: float) -> None:
        """Treat the changes as durable that are at least `DATA_WRITTEN_S` old."""
        while self._changes[0].begun <= now - DATA_WRITTEN_S:
            self._changes.popleft()
            self._gone += 1

    def _put(self, offset: int, data: bytes) -> None:
        if data:
            self._set_size(max(len(self._data), offset))
            self._data[offset : offset + len(data)] = data

    def _set_size(self, size: int) -> None:
        del self._data[size:]
        self._data.extend(bytes(size - len(self._data)))


def _page(old: bytes, at: int, size: int) -> bytes:
    """Return the content of the page at offset `at` if its write was lost: the old bytes, or zeros
    beyond the end of `old`. `size` is the new size of the file in bytes.
    """
    length = min(PAGE, size - at)
    return old[at : at + length].ljust(length, b"\0")
