"""Disk of a simulated host. Its files survive a crash of the host, except for what a real disk
would lose.

A change of a file or a name goes to a cache first, and becomes durable when a sync that covers it
has finished. A crash keeps what was durable at that instant, drops or tears the rest, and
invalidates the program's handles. Changes of names are journalled in order, as in ext4 and XFS. Of
the name changes that no sync has covered, a crash therefore keeps the first few and undoes the
rest. Each operation takes time, and the disk performs one operation at a time.

`Disk` is the device, with switches to inject faults. `mount.py` has the system calls. A `File` is
replaced as a whole or appended to. A `BlockFile` is written in place, as databases do.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

from ..clock import Events
from .file import BlockFile, Contents, File

# seconds after which a name change is durable without a sync (ext4: commit=5)
NAMES_WRITTEN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class DiskSpec:
    """Performance of a disk: capacity (bytes), rates (bytes per second), and duration of a seek and
    of a sync (seconds).
    """

    capacity: int = 256 * 10**9
    read_rate: float = 500e6
    write_rate: float = 450e6
    seek_s: float = 60e-6
    sync_s: float = 1.5e-3


class Folder:
    """Folder of a disk, with its names. A `fixed` folder belongs to the system, and a program
    cannot change it.
    """

    __slots__ = ("fixed", "mode", "names")

    def __init__(self, mode: int = 0o755, *, fixed: bool = False) -> None:
        self.names: dict[str, File | Folder] = {}
        self.mode = mode
        self.fixed = fixed


class Life(Protocol):
    """Program that uses a disk, from the program's start until it ends or the host crashes."""

    def end(self) -> None:
        """Invalidate the program's handles."""
        ...


Node = File | Folder
Change = tuple[Folder, str, Node | None]  # folder, name, and the node it named before, if any
Entry = tuple[float, tuple[Change, ...]]  # time in seconds, changes that are undone together
# A sync: end in seconds, file if any, state of the file that it makes durable (`File.mark`),
# number of journal entries since the start that it makes durable.
Sync = tuple[float, File | None, bytes | int, int]


class Disk:
    """Disk of one host, with switches to inject faults.

    If `torn` is True, a crash may keep part of a write that was not synced; otherwise it keeps none
    of the write. If `lost_syncs` is True, a sync reports success and does nothing. If `read_only`
    is True, every write fails. `errors` maps a path to the errno with which each call on that path
    fails.
    """

    def __init__(
        self,
        events: Events,
        stream: Random,
        spec: DiskSpec = DiskSpec(),
        *,
        contents: Contents | None = None,
    ) -> None:
        """Create an empty disk. Disks that get the same `contents` store a large content only
        once.
        """
        self.events = events
        self.spec = spec
        self.torn = True
        self.lost_syncs = False
        self.read_only = False
        self.errors: dict[str, int] = {}
        self.root = Folder()
        self.used = 0
        self.busy_until = 0.0  # seconds; the disk performs one operation at a time
        self.locks: set[File] = set()
        self._stream = stream
        self._contents = Contents() if contents is None else contents
        self._life: Life | None = None
        self._dirty: dict[File, None] = {}
        self._journal: deque[Entry] = deque()
        self._journalled = 0  # number of entries that are durable and have left the journal
        self._syncs: deque[Sync] = deque()
        self._flushing = False  # whether a call of `_flush` is scheduled

    @property
    def free(self) -> int:
        """Number of bytes that can still be written."""
        return max(self.spec.capacity - self.used, 0)

    def attach(self, life: "Life") -> None:
        """Register a newly started program, and invalidate the handles of the previous one."""
        self._end_life()
        self._life = life

    def install(self, path: str, folder: Folder) -> None:
        """Put a system folder at an absolute path. The folder may be shared with other disks, and
        its files take no space.
        """
        *parents, name = parts_of(path)
        at = self.root
        for part in parents:
            found = at.names.setdefault(part, Folder(fixed=True))
            assert isinstance(found, Folder)
            at = found
        at.names[name] = folder

    def crash(self) -> None:
        """Simulate a power failure now: durable data stays, and the rest is dropped or torn."""
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
        """Apply the syncs that have finished by `now`."""
        syncs = self._syncs
        while syncs and syncs[0][0] <= now:
            _, file, mark, entries = syncs.popleft()
            if file is not None and file.settle(mark):
                self._dirty.pop(file, None)
            while self._journalled < entries:
                self._journal.popleft()
                self._journalled += 1

    def _flush(self, _: None) -> None:
        """Make the name changes durable that are at least `NAMES_WRITTEN_S` old."""
        now, journal = self.events.now, self._journal
        self._settle(now)
        while journal and journal[0][0] + NAMES_WRITTEN_S <= now:
            journal.popleft()
            self._journalled += 1
        self._flushing = bool(journal)
        if journal:
            self.events.at(journal[0][0] + NAMES_WRITTEN_S, self._flush)

    def _undo_names(self, now: float) -> None:
        """Undo name changes that no sync has covered. If `torn` is True, keep the first of them; a
        random number decides how many.
        """
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
        """Occupy the disk for `seconds` after its current work. Return the time at which it is free
        again.
        """
        self.busy_until = max(self.busy_until, self.events.now) + seconds
        return self.busy_until

    def change_names(self, *changes: tuple[Folder, str, Node | None]) -> None:
        """Apply changes of names in the cache, and journal them as one entry. Each change is
        (folder, name, new node); None as the node removes the name.
        """
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
        """Free the space of a removed file."""
        self.used -= file.size

    def write(self, file: File, offset: int, data: bytes) -> None:
        """Write bytes into the cached content of a file. The caller checks that the disk has space
        for them.
        """
        self._settle(self.events.now)
        old = file.content
        content = data if offset == 0 and len(data) >= len(old) else _spliced(old, offset, data)
        content = self._contents.shared(content)
        begun = max(self.busy_until, self.events.now)
        self.charge(len(data) / self.spec.write_rate)
        if file.safe is None:
            file.safe, file.since = old, begun
            self._dirty[file] = None
        file.content = content
        self.used += len(content) - len(old)

    def overwrite(self, file: BlockFile, offset: int, data: bytes) -> None:
        """Write bytes in place into the cached content of a file. The caller checks that the disk
        has space for them.
        """
        begun, before = self._begin(file), file.size
        self.charge(len(data) / self.spec.write_rate)
        file.overwrite(begun, offset, data)
        self.used += file.size - before

    def resize(self, file: BlockFile, size: int) -> None:
        """Truncate a file to `size` bytes, or extend it with zeros, in the cache."""
        begun, before = self._begin(file), file.size
        file.resize(begun, size)
        self.used += file.size - before

    def _begin(self, file: BlockFile) -> float:
        """Record that a file is about to change in place. Return the time at which the disk starts
        to write the change.
        """
        self._settle(self.events.now)
        self._dirty[file] = None
        return max(self.busy_until, self.events.now)

    def sync(self, file: File | None) -> None:
        """Start a sync of all names and, if `file` is given, of that file's content. They are
        durable when the sync ends.
        """
        when = self.charge(self.spec.sync_s)
        if not self.lost_syncs:
            entries = self._journalled + len(self._journal)
            self._syncs.append((when, file, file.mark() if file else b"", entries))


def installed(files: Mapping[str, File]) -> Folder:
    """Return a new system folder with these files, for `Disk.install`."""
    folder = Folder(fixed=True)
    folder.names.update(files)
    return folder


def parts_of(path: str) -> list[str]:
    """Return the names of which a path consists."""
    return [part for part in path.split("/") if part]


def _files(folder: Folder) -> Iterator[File]:
    """Yield all files below `folder`, without those of system folders."""
    for node in folder.names.values():
        if isinstance(node, File):
            if not folder.fixed:
                yield node
        else:
            yield from _files(node)


def _spliced(old: bytes, offset: int, data: bytes) -> bytes:
    """Return `old` with `data` written at `offset`, and with zeros in a gap before `offset`."""
    return old[:offset].ljust(offset, b"\0") + data + old[offset + len(data) :]
