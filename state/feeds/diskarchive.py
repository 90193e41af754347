"""The archive of a node's replica on disk: an `Archive` over the store."""

from collections.abc import Collection, Sequence
from contextlib import suppress

from ...transport.identity import PeerId
from ..errors import StoreRefused
from .archive import Stored
from .committer import Keeper
from .entry import Entry, FeedName, Head, Proof, read_stored


class KeptArchive:
    """An `Archive` over a `Keeper`.

    Entries by the author `own` must be on disk before a peer learns of them. Entries by others may
    wait in memory while the disk refuses.
    """

    def __init__(self, own: PeerId, keeper: Keeper) -> None:
        self._own = own
        self._keeper = keeper

    async def load(self) -> Sequence[Stored]:
        """Return every stored feed. Raises StoreRefused."""
        return [
            Stored(feed.name, feed.head, feed.size)
            async for batch in self._keeper.load()
            for feed in batch
        ]

    async def entries(
        self, name: FeedName, epoch: int, from_seq: int, limit: int
    ) -> Sequence[Entry]:
        """Return entries as `Archive.entries` does. Raises StoreRefused."""
        found = await self._keeper.entries(name, epoch, from_seq, limit=limit)
        return [read_stored(sealed) for sealed in found]

    async def put(self, entries: Sequence[Entry]) -> None:
        """Store entries as `Archive.put` does. Raises StoreRefused, BadOrder."""
        own = any(entry.name.author == self._own for entry in entries)
        await self._keeper.put(entries, own=own)

    async def put_proof(self, name: FeedName, proof: Proof) -> None:
        """Store a proof. If the disk refuses it, a later run learns of the fork again."""
        with suppress(StoreRefused):
            await self._keeper.put_proof(proof)

    async def proof(self, name: FeedName) -> Proof | None:
        """Return the proof that a feed has forked, or None. Raises StoreRefused."""
        return await self._keeper.proof(name)

    async def cut(self, name: FeedName, head: Head | None) -> None:
        """Cut a feed. If the disk refuses, the next start cuts it again."""
        with suppress(StoreRefused):
            await self._keeper.cut(name, head)

    async def drop(self, authors: Collection[PeerId]) -> None:
        """Drop authors. If the disk refuses, the next start drops those that are not kept."""
        if authors:
            with suppress(StoreRefused):
                await self._keeper.drop(list(authors))

    async def forget(self, names: Sequence[FeedName]) -> None:
        """Delete feeds. If the disk refuses, the next start deletes them."""
        if names:
            with suppress(StoreRefused):
                await self._keeper.forget(names)
