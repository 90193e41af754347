"""The disk of a simulated host: it outlives crashes, and loses what a real disk would lose.

Files and names change in a cache first. A sync makes them durable at the moment the disk has
finished it. A crash at any instant keeps what was durable then, drops or tears the rest, and
invalidates the program's handles. Names are journalled in order, as in ext4 and XFS: of the changes
that no sync has covered, a crash keeps a prefix. Operations take time, and the disk does one at a
time.

`Disk` is the device with the switches for faults; `mount.py` has the system calls. A file is
replaced or appended to (`File`), or written in place, as databases do (`BlockFile`).
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

from ..clock import Events
from .file import BlockFile, File

INTERNED: Final = 4096  # bytes from which equal contents are stored only once
NAMES_WRITTEN_S: Final = 5.0  # names are durable after this without a sync (ext4: commit=5)


@dataclass(frozen=True, slots=True)
class DiskSpec:
    """Size (bytes), rates (bytes/s), and the seconds of a seek and of a sync of a disk."""

    capacity: int = 256 * 10**9
    read_rate: float = 500e6
    write_rate: float = 450e6
    seek_s: float = 60e-6
    sync_s: float = 1.5e-3


class Folder:
    """Names in a folder. `fixed` ones are part of the system and cannot be changed."""

    __slots__ = ("fixed", "mode", "names")

    def __init__(self, mode: int = 0o755, *, fixed: bool = False) -> None:
        self.names: dict[str, File | Folder] = {}
        self.mode = mode
        self.fixed = fixed


class Life(Protocol):
    """One program's use of a disk."""

    def end(self) -> None:
        """Invalidate the program's handles."""
        ...


Node = File | Folder
Change = tuple[Folder, str, Node | None]  # a name, and what it pointed to before
Entry = tuple[float, tuple[Change, ...]]  # time, and changes that are undone together
# when done, file, the file's mark, journal entries
Sync = tuple[float, File | None, bytes | int, int]


class Disk:
    """One host's disk, and its faults.

    `torn`: a crash may keep part of a write that was not synced; otherwise it keeps none of it.
    `lost_syncs`: syncs report success and do nothing. `read_only`: nothing can be written.
    `errors`: an errno for each path that fails.
    """

    def __init__(
        self,
        events: Events,
        stream: Random,
        spec: DiskSpec = DiskSpec(),
        *,
        contents: dict[bytes, bytes] | None = None,
    ) -> None:
        """Create an empty disk; `contents` is the store of large contents that several disks
        share.
        """
        self.events = events
        self.spec = spec
        self.torn = True
        self.lost_syncs = False
        self.read_only = False
        self.errors: dict[str, int] = {}
        self.root = Folder()
        self.used = 0
        self.busy_until = 0.0  # the disk does one thing at a time
        self.locks: set[File] = set()
        self._stream = stream
        self._contents = {} if contents is None else contents
        self._life: Life | None = None
        self._dirty: dict[File, None] = {}
        self._journal: deque[Entry] = deque()
        self._journalled = 0  # entries that have left the journal
        self._syncs: deque[Sync] = deque()
        self._flushing = False  # names will become durable without a sync

    @property
    def free(self) -> int:
        """Bytes that can still be written."""
        return max(self.spec.capacity - self.used, 0)

    def attach(self, life: "Life") -> None:
        """Start a program: the handles of the previous one become invalid."""
        self._end_life()
        self._life = life

    def install(self, path: str, folder: Folder) -> None:
        """Put a folder, which other disks may share, at an absolute path; it takes no space."""
        *parents, name = parts_of(path)
        at = self.root
        for part in parents:
            found = at.names.setdefault(part, Folder(fixed=True))
            assert isinstance(found, Folder)
            at = found
        at.names[name] = folder

    def crash(self) -> None:
        """Lose power now: durable data stays, the rest is dropped or torn."""
        now = self.events.now
        self._end_life()
        self._settle(now)
        self._undo_names(now)
        for file in self._dirty:
            file.lose(now, self.torn, self._stream)
        self._dirty.clear()
        self._syncs.clear()
        self.busy_until = now
        self.used = sum(file.size for file in _files(self.root))

    def _end_life(self) -> None:
        if self._life is not None:
            self._life.end()
            self._life = None
        self.locks.clear()

    # Durability.

    def _settle(self, now: float) -> None:
        """Apply the syncs that are done by now."""
        syncs = self._syncs
        while syncs and syncs[0][0] <= now:
            _, file, mark, entries = syncs.popleft()
            if file is not None and file.settle(mark):
                self._dirty.pop(file, None)
            while self._journalled < entries:
                self._journal.popleft()
                self._journalled += 1

    def _flush(self, _: None) -> None:
        """Make names durable that are old enough."""
        now, journal = self.events.now, self._journal
        self._settle(now)
        while journal and journal[0][0] + NAMES_WRITTEN_S <= now:
            journal.popleft()
            self._journalled += 1
        self._flushing = bool(journal)
        if journal:
            self.events.at(journal[0][0] + NAMES_WRITTEN_S, self._flush)

    def _undo_names(self, now: float) -> None:
        """Keep a prefix of the name changes that no sync has covered, and undo the rest."""
        journal = self._journal
        begun = sum(when <= now for when, _ in journal)
        kept = self._stream.randint(0, begun) if self.torn else 0
        while len(journal) > kept:
            _, changes = journal.pop()
            for folder, name, before in reversed(changes):
                if before is None:
                    folder.names.pop(name, None)
                else:
                    folder.names[name] = before
        self._journalled += len(journal)
        journal.clear()

    # Called by mounts.

    def charge(self, seconds: float) -> float:
        """Occupy the disk for `seconds` after its current work; return when that is done."""
        self.busy_until = max(self.busy_until, self.events.now) + seconds
        return self.busy_until

    def change_names(self, *changes: tuple[Folder, str, Node | None]) -> None:
        """Journal new meanings of names as one entry."""
        self._settle(self.events.now)
        when = self.charge(self.spec.seek_s)
        self._journal.append(
            (when, tuple((folder, name, folder.names.get(name)) for folder, name, _ in changes))
        )
        if not self._flushing:
            self._flushing = True
            self.events.at(when + NAMES_WRITTEN_S, self._flush)
        for folder, name, node in changes:
            before = folder.names.pop(name, None)
            if isinstance(before, File) and node is not None:
                self.used -= before.size
            if node is not None:
                folder.names[name] = node

    def forget(self, file: File) -> None:
        """Free the space of a file that has no name any more."""
        self.used -= file.size

    def write(self, file: File, offset: int, data: bytes) -> None:
        """Write into the cache. Raises OSError (ENOSPC) if the space is not enough."""
        self._settle(self.events.now)
        old = file.content
        content = data if offset == 0 and len(data) >= len(old) else _spliced(old, offset, data)
        if len(content) >= INTERNED:
            content = self._contents.setdefault(content, content)
        begun = max(self.busy_until, self.events.now)
        self.charge(len(data) / self.spec.write_rate)
        if file.safe is None:
            file.safe, file.since = old, begun
            self._dirty[file] = None
        file.content = content
        self.used += len(content) - len(old)

    def overwrite(self, file: BlockFile, offset: int, data: bytes) -> None:
        """Write into the cache, in place."""
        begun, before = self._begin(file), file.size
        self.charge(len(data) / self.spec.write_rate)
        file.overwrite(begun, offset, data)
        self.used += file.size - before

    def resize(self, file: BlockFile, size: int) -> None:
        """Truncate a file, or extend it with zeros."""
        begun, before = self._begin(file), file.size
        file.resize(begun, size)
        self.used += file.size - before

    def _begin(self, file: BlockFile) -> float:
        """Note a change in place; return when the disk gets to it."""
        self._settle(self.events.now)
        self._dirty[file] = None
        return max(self.busy_until, self.events.now)

    def sync(self, file: File | None) -> None:
        """Make names durable, and one file's content."""
        when = self.charge(self.spec.sync_s)
        if not self.lost_syncs:
            entries = self._journalled + len(self._journal)
            self._syncs.append((when, file, file.mark() if file else b"", entries))


def installed(files: Mapping[str, File]) -> Folder:
    """Return a folder of the system, for `Disk.install`."""
    folder = Folder(fixed=True)
    folder.names.update(files)
    return folder


def parts_of(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


def _files(folder: Folder) -> Iterator[File]:
    for node in folder.names.values():
        if isinstance(node, File):
            if not folder.fixed:
                yield node
        else:
            yield from _files(node)


def _spliced(old: bytes, offset: int, data: bytes) -> bytes:
    return old[:offset].ljust(offset, b"\0") + data + old[offset + len(data) :]
