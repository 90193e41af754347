"""Files of a simulated disk: their content, and what of it would survive a crash."""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

PAGE: Final = 4096  # bytes that a disk writes at once or not at all
SECTOR: Final = 512  # bytes that it writes whole or not at all when a page is torn
DATA_WRITTEN_S: Final = 30.0  # data is durable after this (Linux: vm.dirty_expire_centisecs = 3000)


class File:
    """A file. `safe` is the content that would survive a crash, None if that is `content`
    itself.
    """

    __slots__ = ("content", "mode", "safe", "since")

    def __init__(self, content: bytes, mode: int) -> None:
        self.content = content
        self.mode = mode
        self.safe: bytes | None = None
        self.since = 0.0  # time of the oldest write that no sync has covered

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return len(self.content)

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`."""
        content = self.content
        return content if not offset and size >= len(content) else content[offset : offset + size]

    def mark(self) -> bytes | int:
        """Return what a sync that begins now will make durable."""
        return self.content

    def settle(self, mark: bytes | int) -> bool:
        """Apply a sync that began at `mark` and is done; return whether everything is durable
        now.
        """
        if self.safe is not None and isinstance(mark, bytes):
            self.safe = None if self.content is mark else mark
        return self.safe is None

    def lose(self, now: float, torn: bool, stream: Random) -> None:
        """Crash at `now`: chance decides what survives of writes that were not synced."""
        self.content = self._survivor(now, torn, stream)
        self.safe = None

    def _survivor(self, now: float, torn: bool, stream: Random) -> bytes:
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
    """File of the system. `load` returns its content, of `size` bytes, when it is first read: most
    simulations never read the weights of the embedded model.
    """

    __slots__ = ("_content", "_load", "_size")

    def __init__(self, size: int, load: Callable[[], bytes], mode: int) -> None:
        self._content: bytes | None = None
        self._load = load
        self._size = size
        self.mode = mode
        self.safe = None
        self.since = 0.0

    @property
    def content(self) -> bytes:
        """Return the whole content."""
        if self._content is None:
            self._content = self._load()
        return self._content

    @content.setter
    def content(self, content: bytes) -> None:
        self._content, self._size = content, len(content)

    @property
    def size(self) -> int:
        return self._size


class Change(NamedTuple):
    """One write in place, or a new length (`new` is None), and how to undo it."""

    begun: float
    offset: int  # of the bytes, or the new length
    new: bytes | None
    old: bytes  # bytes from `offset` on before the change
    size: int  # size of the file before the change


class BlockFile(File):
    """File written in place. Between two syncs a crash may keep any of the writes, in any order:
    each is kept, lost or torn.
    """

    __slots__ = ("_changes", "_data", "_gone")

    def __init__(self, content: bytes, mode: int) -> None:
        self._changes: deque[Change] = deque()  # changes that no sync has covered
        self._gone = 0  # number of changes before those
        super().__init__(content, mode)

    @property
    def content(self) -> bytes:
        """Return the whole content."""
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
        """Write bytes in place; the disk gets to them at `begun`."""
        old = bytes(self._data[offset : offset + len(data)])
        self._changes.append(Change(begun, offset, data, old, len(self._data)))
        self._put(offset, data)
        self._age(begun)

    def resize(self, begun: float, size: int) -> None:
        """Truncate, or extend with zeros."""
        self._changes.append(Change(begun, size, None, bytes(self._data[size:]), len(self._data)))
        self._set_size(size)
        self._age(begun)

    def mark(self) -> bytes | int:
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

    def _redo(self, change: Change) -> None:
        if change.new is None:
            self._set_size(change.offset)
        else:
            self._put(change.offset, change.new)

    def _redo_partly(self, change: Change, stream: Random) -> None:
        draw = stream.random()
        if draw < 0.4:
            self._redo(change)
        elif draw < 0.7 and change.new is not None:
            for at in range(0, len(change.new), SECTOR):
                if stream.random() < 0.5:
                    self._put(change.offset + at, change.new[at : at + SECTOR])

    def _age(self, now: float) -> None:
        """Make changes durable that are old enough."""
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
    """Return a page that was not written: the old one, or zeros if there was none."""
    length = min(PAGE, size - at)
    return old[at : at + length].ljust(length, b"\0")
