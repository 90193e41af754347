"""Asynchronous access to the store, and the archive of a replica on disk.

Changes are committed in batches, and reads run in a thread.

An entry is on disk once `put` returns. Changes that arrive during a commit are all committed in the
next one.

The node continues to run if the disk is full or failing. Entries by other authors then stay in
memory, up to a limit, and are written once the disk accepts them. Entries of this node are refused:
if peers knew an entry of this node that a crash removed from this disk, the next run would fork the
feed. A damaged file is moved aside and replaced by a new one. Damaged feeds in an intact file are
dropped. Both are reported, so that the feeds are fetched from peers again.
"""

import errno
import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

import trio

from ...transport.errors import DatabaseDamaged
from ...transport.host.seam import Host, T, Ts
from ...transport.identity import PeerId
from .. import defaults
from ..errors import FeedDamaged, StateError, StoreDamaged, StoreRefused
from .archive import ArchivedFeed
from .entry import Entry, FeedName, Head, Proof
from .pending import PendingChanges
from .store import DeleteFeeds, Drop, FeedCut, LoadedFeeds, Put, Store, Work, size_of
from .stored import StoredFeed

STORE_FILE: Final = "state.db"
_ASIDE: Final = "state.db.damaged"
_LOG: Final = "-wal"  # SQLite's, beside the file

DISK: Final = "state-disk"
FILE: Final = "state-file"
Trouble = Callable[[str, StateError | None], None]
"""Called with a condition (DISK or FILE) and its error, or with None once the condition has
ended."""
Lost = Callable[[Sequence[FeedName] | None], None]
"""Called with the feeds that are no longer stored; None means that all are lost."""


@dataclass(slots=True, eq=False)
class _PendingCommit:
    """A change to commit, with the event that its caller waits for."""

    work: Work
    own: bool
    done: trio.Event = field(default_factory=trio.Event)
    error: StateError | None = None


class Committer:
    """Asynchronous access to the store of one node, whose file is in `folder`.

    `trouble` is called when the disk refuses or the file is damaged. `lost` is called with feeds
    that are no longer stored.
    """

    def __init__(self, host: Host, folder: Path, *, trouble: Trouble, lost: Lost) -> None:
        self._host = host
        self._path = folder / STORE_FILE
        self._trouble = trouble
        self._lost = lost
        self.store: Store | None = None
        """The store; None until it is open."""
        self._ended = True  # or not started
        self._turn = trio.Lock()  # only one thread at a time may use the connection
        self.queue: deque[_PendingCommit] = deque()
        self._news = trio.Event()
        self._held = PendingChanges(defaults.HELD_BYTES)
        self._refused: StoreRefused | None = None
        self._retry_at = 0.0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Open the store, commit changes until cancelled, then close it.

        Raises StoreRefused if the disk does not let the store be opened, AlreadyLocked if another
        process has opened it, and HostError if a later version of shoal wrote it.
        """
        await self._open()
        try:
            task_status.started()
            while True:
                await self._wait()
                await self._commit_some()
                await self._make_smaller()
        finally:
            with trio.CancelScope(shield=True):
                await self._close()

    # Opening and closing.

    async def _open(self) -> None:
        try:
            try:
                await self._opened()
            except DatabaseDamaged as error:
                await self._put_aside(error)
                await self._opened()
        except (OSError, DatabaseDamaged) as error:
            raise self._refusal(error) from error
        self._ended = False

    async def _opened(self) -> Store:
        """Open the store if it is not open, and return it."""
        if self.store is None:
            self.store = await self._host.offload(self._open_file)
        return self.store

    def _open_file(self) -> Store:
        self._host.files.make_folder(self._path.parent)
        database = self._host.files.database(self._path)
        try:
            return Store(database)
        except BaseException:
            database.close()
            raise

    async def _put_aside(self, error: Exception) -> None:
        """Move the damaged file aside, and report all feeds as lost.

        A new file can then be created. Raises OSError if the disk refuses.
        """
        broken, self.store = self.store, None
        await self._host.offload(self._move_aside, broken)
        self._trouble(FILE, StoreDamaged(self._path.with_name(_ASIDE), error))
        self._lost(None)

    def _move_aside(self, broken: Store | None) -> None:
        if broken is not None:
            broken.close()
        aside, log = self._path.with_name(_ASIDE), self._path.with_name(STORE_FILE + _LOG)
        self._host.files.settle([(log, self._path.with_name(_ASIDE + _LOG)), (self._path, aside)])

    async def _close(self) -> None:
        """Commit the queued changes, ignoring a disk that refuses, and close the store.

        The file is made smaller by a later run, so that closing stays fast.
        """
        while self.queue:
            await self._commit_some()
        self._ended = True
        async with self._turn:
            store, self.store = self.store, None
            if store is not None:
                await self._host.offload(store.close)

    # Changing.

    async def put(self, entries: Sequence[Entry], *, own: bool = False) -> None:
        """Store entries, which must be in order within each feed.

        The entries are on disk when this returns. If the disk refuses, entries of other authors are
        in memory instead. `own` means that the entries are of this node's own feeds.

        Raises StoreRefused if the disk refuses entries of this node, or if the memory for other
        entries is full. Raises BadOrder if an entry does not follow the stored ones. In both cases
        none of the entries is stored. If this call is cancelled, the entries may be stored or not.
        """
        await self._change(Put(tuple(entries)), own)

    async def put_proof(self, proof: Proof) -> None:
        """Replace the entries of a forked feed with the proof of the fork.

        Raises StoreRefused if the disk refuses and the memory for pending changes is full.
        """
        await self._change(proof, own=False)

    async def cut(self, name: FeedName, head: Head | None) -> None:
        """Delete the entries of a feed after `head`, or the whole feed if `head` is None.

        Raises StoreRefused if the disk refuses and the memory for pending changes is full.
        """
        await self._change(DeleteFeeds((name,)) if head is None else FeedCut(name, head), own=False)

    async def drop(self, authors: Sequence[PeerId]) -> None:
        """Delete all feeds of these authors.

        Raises StoreRefused if the disk refuses and the memory for pending changes is full.
        """
        await self._change(Drop(tuple(authors)), own=False)

    async def forget(self, names: Sequence[FeedName]) -> None:
        """Delete these feeds.

        Raises StoreRefused if the disk refuses and the memory for pending changes is full.
        """
        await self._change(DeleteFeeds(tuple(names)), own=False)

    async def _change(self, work: Work, own: bool) -> None:
        if self._ended:
            raise trio.ClosedResourceError("the store is not open")
        waiting = _PendingCommit(work, own)
        self.queue.append(waiting)
        self._news.set()
        await waiting.done.wait()
        if waiting.error is not None:
            raise waiting.error

    async def _wait(self) -> None:
        """Wait until a change is queued, or until it is time to retry a disk that refused."""
        if self.queue:
            await trio.lowlevel.checkpoint()
            return
        self._news = trio.Event()
        deadline = self._retry_at if self._refused is not None else math.inf
        with trio.move_on_at(deadline):
            await self._news.wait()

    async def _commit_some(self) -> None:
        batch = self._next_batch()
        results = await self._committed(batch)
        for waiting, error in zip(batch, results, strict=True):
            first = self.queue.popleft()
            assert first is waiting
            waiting.error = error
            waiting.done.set()

    def _next_batch(self) -> list[_PendingCommit]:
        """Return the next changes to commit.

        The changes stay in the queue, so that a cancelled commit leaves them for the final one.
        """
        batch, size = list[_PendingCommit](), 0
        for waiting in islice(self.queue, defaults.COMMIT_WORKS):
            if size >= defaults.COMMIT_BYTES:
                break
            size += size_of(waiting.work)
            batch.append(waiting)
        return batch

    async def _committed(self, batch: Sequence[_PendingCommit]) -> Sequence[StateError | None]:
        """Commit a batch of changes.

        Return the error of each change, or None for a change that succeeded.
        """
        if self._refused is not None and not await self._try_again():
            return self._keep_in_memory(batch, self._refused)
        try:
            return await self._use(Store.commit, [waiting.work for waiting in batch])
        except StoreRefused as refused:
            self._begin_refusal(refused)
            return self._keep_in_memory(batch, refused)

    async def _make_smaller(self) -> None:
        """Return free pages of the file to the disk, as long as no change is queued."""
        while not self.queue and self.store is not None and self.store.loose:
            try:
                await self._use(Store.make_smaller)
            except StoreRefused:
                return  # if the disk still refuses, the next commit reports it

    # A disk that refuses.

    def _begin_refusal(self, refused: StoreRefused) -> None:
        self._retry_at = self._host.now() + defaults.REFUSED_PAUSE
        if self._refused is None or self._refused.code != refused.code:
            self._refused = refused
            self._trouble(DISK, refused)

    def _keep_in_memory(
        self, batch: Sequence[_PendingCommit], refused: StoreRefused
    ) -> list[StateError | None]:
        taken = [not waiting.own and self._held.add(waiting.work) for waiting in batch]
        return [None if kept else StoreRefused(refused.path, refused.error) for kept in taken]

    async def _try_again(self) -> bool:
        """Retry the disk if it is time to, and write the changes in memory.

        Returns True if the disk accepted them all.
        """
        if self._host.now() < self._retry_at:
            return False
        try:
            await self._use(Store.probe)
            while works := self._held.first(defaults.COMMIT_BYTES):
                # A refused change is not needed: its entries no longer follow the stored ones.
                await self._use(Store.commit, works)
                self._held.forget(len(works))
        except StoreRefused as refused:
            self._begin_refusal(refused)
            return False
        self._refused = None
        self._trouble(DISK, None)
        return True

    # Reading.

    async def load(
        self, damaged: list[FeedName] | None = None
    ) -> AsyncGenerator[list[StoredFeed], None]:
        """Yield all feeds with their entries, a few feeds at a time.

        Damaged feeds are dropped, reported as lost, and added to `damaged`. If the whole file is
        damaged, `lost(None)` is called, and the feeds that were yielded before are lost too. Raises
        StoreRefused if the disk refuses to read.
        """
        after: int | None = -1
        while after is not None:
            batch = await self._batch(after)
            if batch.damaged:
                self._lost(batch.damaged)
                if damaged is not None:
                    damaged += batch.damaged
            if batch.feeds:
                yield batch.feeds
            after = batch.after

    async def _batch(self, after: int) -> LoadedFeeds:
        try:
            return await self._use(Store.feeds, after)
        except StoreRefused as refused:
            if refused.code != "disk-error":
                raise
            try:
                async with self._turn:  # a block that cannot be read counts as damage
                    await self._put_aside(refused.error)
            except OSError:
                raise refused from None
            return LoadedFeeds([], [], None)

    async def entries(
        self, name: FeedName, epoch: int, seq: int, *, limit: int = defaults.LOAD_BYTES
    ) -> list[bytes]:
        """Return sealed entries of an epoch from `seq` on, up to `limit` bytes.

        Returns at least one entry if there is any. Raises StoreRefused if the disk refuses to read.
        """
        try:
            found = await self._use(Store.entries, name, epoch, seq, limit)
        except FeedDamaged:
            await self._forget(name)
            found = []
        return self._held.after(found, name, epoch, seq, limit)

    async def proof(self, name: FeedName) -> Proof | None:
        """Return the proof that a feed has forked, or None if there is none.

        Raises StoreRefused if the disk refuses to read.
        """
        held = self._held.proof(name)
        if held is not None:
            return held
        try:
            found = await self._use(Store.proof, name)
        except FeedDamaged:
            await self._forget(name)
            return None
        return None if self._held.removes(name) else found

    async def _forget(self, name: FeedName) -> None:
        self._lost([name])
        await self._use(Store.commit, [DeleteFeeds((name,))])

    async def _use(self, work: Callable[[Store, *Ts], T], *args: *Ts) -> T:
        """Call a blocking method of the store in a thread, and return its result.

        If the file turns out to be damaged, the call is repeated with a new file. Raises
        StoreRefused if the disk refuses.
        """
        async with self._turn:
            if self._ended:
                raise trio.ClosedResourceError("the store is not open")
            try:
                try:
                    return await self._host.offload(work, await self._opened(), *args)
                except DatabaseDamaged as error:
                    await self._put_aside(error)
                    return await self._host.offload(work, await self._opened(), *args)
            except (OSError, DatabaseDamaged) as error:
                raise self._refusal(error) from error

    def _refusal(self, error: OSError | DatabaseDamaged) -> StoreRefused:
        """Convert an error to StoreRefused.

        If even a new file is damaged, the disk counts as failing (`disk-error`).
        """
        if isinstance(error, DatabaseDamaged):
            error = OSError(errno.EIO, error.message)
        return StoreRefused(self._path, error)


class DiskArchive:
    """An `Archive` on disk, which uses the store through a `Committer`.

    Entries by the author `own`, which is this node, must be on disk before a peer gets news of
    them. Entries by others may wait in memory while the disk refuses.
    """

    def __init__(self, own: PeerId, committer: Committer) -> None:
        self._own = own
        self._committer = committer

    async def load(self) -> Sequence[ArchivedFeed]:
        """Return every stored feed. Raises StoreRefused if the disk refuses to read."""
        return [
            ArchivedFeed(feed.name, feed.head, feed.size)
            async for batch in self._committer.load()
            for feed in batch
        ]

    async def entries(
        self, name: FeedName, epoch: int, from_seq: int, limit: int
    ) -> Sequence[bytes]:
        """Return sealed entries as `Archive.entries` does.

        Raises StoreRefused if the disk refuses to read.
        """
        return await self._committer.entries(name, epoch, from_seq, limit=limit)

    async def put(self, entries: Sequence[Entry]) -> None:
        """Store entries as `Archive.put` does.

        Raises StoreRefused if the disk refuses, and BadOrder if an entry does not follow the stored
        ones.
        """
        own = any(entry.name.author == self._own for entry in entries)
        await self._committer.put(entries, own=own)

    async def put_proof(self, name: FeedName, proof: Proof) -> None:
        """Store the proof of a fork.

        If the disk refuses it, a later run gets the proof from peers again.
        """
        with suppress(StoreRefused):
            await self._committer.put_proof(proof)

    async def proof(self, name: FeedName) -> Proof | None:
        """Return the proof that a feed has forked, or None.

        Raises StoreRefused if the disk refuses to read.
        """
        return await self._committer.proof(name)

    async def cut(self, name: FeedName, head: Head | None) -> None:
        """Delete the entries of a feed after `head`.

        If the disk refuses, the next start deletes them.
        """
        with suppress(StoreRefused):
            await self._committer.cut(name, head)

    async def drop(self, authors: Collection[PeerId]) -> None:
        """Delete all feeds of these authors.

        If the disk refuses, the next start deletes the feeds of all authors that are not selected
        then.
        """
        if authors:
            with suppress(StoreRefused):
                await self._committer.drop(list(authors))

    async def forget(self, names: Sequence[FeedName]) -> None:
        """Delete these feeds. If the disk refuses, the next start deletes them."""
        if names:
            with suppress(StoreRefused):
                await self._committer.forget(names)
