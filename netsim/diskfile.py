"""Files of a simulated disk: what is in them, and what a crash would leave of that."""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

PAGE: Final = 4096  # bytes that a disk writes at once, or not
SECTOR: Final = 512  # bytes that it writes whole, or not, where a page is torn
DATA_WRITTEN_S: Final = 30.0  # data is durable after this (Linux: vm.dirty_expire_centisecs = 3000)


class File:
    """A file. `safe` is the content that would survive, None where that is `content` itself."""

    __slots__ = ("content", "mode", "safe", "since")

    def __init__(self, content: bytes, mode: int) -> None:
        self.content = content
        self.mode = mode
        self.safe: bytes | None = None
        self.since = 0.0  # of the oldest write that no sync has covered

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.content)

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes."""
        content = self.content
        return content if not offset and size >= len(content) else content[offset : offset + size]

    def mark(self) -> bytes | int:
        """What a sync that begins now will make durable."""
        return self.content

    def settle(self, mark: bytes | int) -> bool:
        """A sync is done that began at `mark`; returns whether all is durable now."""
        if self.safe is not None and isinstance(mark, bytes):
            self.safe = None if self.content is mark else mark
        return self.safe is None

    def lose(self, now: float, torn: bool, stream: Random) -> None:
        """A crash at `now`: of what was written and not synced, chance decides."""
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
    """A file of the system. `load` brings its content, of `size` bytes, when it is first read: most
    simulations never read the weights of the embedded model."""

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
        """The whole file."""
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
    old: bytes  # from `offset` on
    size: int  # of the file before


class BlockFile(File):
    """A file written in place. Between two syncs a crash keeps any of the writes, in any order:
    each is there, is not, or is torn."""

    __slots__ = ("_changes", "_data", "_gone")

    def __init__(self, content: bytes, mode: int) -> None:
        self._changes: deque[Change] = deque()  # that no sync has covered
        self._gone = 0  # changes before those
        super().__init__(content, mode)

    @property
    def content(self) -> bytes:
        """The whole file."""
        return bytes(self._data)

    @content.setter
    def content(self, content: bytes) -> None:
        """Durable at once: for who damages a disk."""
        self._data = bytearray(content)
        self._gone += len(self._changes)
        self._changes.clear()

    @property
    def size(self) -> int:
        return len(self._data)

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self._data[offset : offset + size])

    def overwrite(self, begun: float, offset: int, data: bytes) -> None:
        """Bytes in place; the disk gets to them at `begun`."""
        old = bytes(self._data[offset : offset + len(data)])
        self._changes.append(Change(begun, offset, data, old, len(self._data)))
        self._put(offset, data)
        self._age(begun)

    def resize(self, begun: float, size: int) -> None:
        """Cut, or filled up with zeros."""
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
        """What is old enough is durable."""
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
    """A page that was not written: the old one, zeros where there was none."""
    length = min(PAGE, size - at)
    return old[at : at + length].ljust(length, b"\0")
