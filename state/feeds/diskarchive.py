"""The archive of a node's replica on disk: an `Archive` over the store."""

from collections.abc import Collection, Sequence
from contextlib import suppress

from ...transport.identity import PeerId
from ..errors import StoreRefused
from .archive import ArchivedFeed
from .committer import Keeper
from .entry import Entry, FeedName, Head, Proof, read_stored


class KeptArchive:
    """An `Archive` on disk, which uses the store through a `Keeper`.

    Entries by the author `own`, which is this node, must be on disk before a peer gets news of
    them. Entries by others may wait in memory while the disk refuses.
    """

    def __init__(self, own: PeerId, keeper: Keeper) -> None:
        self._own = own
        self._keeper = keeper

    async def load(self) -> Sequence[ArchivedFeed]:
        """Return every stored feed. Raises StoreRefused if the disk refuses to read."""
        return [
            ArchivedFeed(feed.name, feed.head, feed.size)
            async for batch in self._keeper.load()
            for feed in batch
        ]

    async def entries(
        self, name: FeedName, epoch: int, from_seq: int, limit: int
    ) -> Sequence[Entry]:
        """Return entries as `Archive.entries` does.

        Raises StoreRefused if the disk refuses to read.
        """
        found = await self._keeper.entries(name, epoch, from_seq, limit=limit)
        return [read_stored(sealed) for sealed in found]

    async def put(self, entries: Sequence[Entry]) -> None:
        """Store entries as `Archive.put` does.

        Raises StoreRefused if the disk refuses, and BadOrder if an entry does not follow the stored
        ones.
        """
        own = any(entry.name.author == self._own for entry in entries)
        await self._keeper.put(entries, own=own)

    async def put_proof(self, name: FeedName, proof: Proof) -> None:
        """Store the proof of a fork.

        If the disk refuses it, a later run gets the proof from peers again.
        """
        with suppress(StoreRefused):
            await self._keeper.put_proof(proof)

    async def proof(self, name: FeedName) -> Proof | None:
        """Return the proof that a feed has forked, or None.

        Raises StoreRefused if the disk refuses to read.
        """
        return await self._keeper.proof(name)

    async def cut(self, name: FeedName, head: Head | None) -> None:
        """Delete the entries of a feed after `head`.

        If the disk refuses, the next start deletes them.
        """
        with suppress(StoreRefused):
            await self._keeper.cut(name, head)

    async def drop(self, authors: Collection[PeerId]) -> None:
        """Delete all feeds of these authors.

        If the disk refuses, the next start deletes the feeds of all authors that are not selected
        then.
        """
        if authors:
            with suppress(StoreRefused):
                await self._keeper.drop(list(authors))

    async def forget(self, names: Sequence[FeedName]) -> None:
        """Delete these feeds. If the disk refuses, the next start deletes them."""
        if names:
            with suppress(StoreRefused):
                await self._keeper.forget(names)
