"""Storage interface for feed entries (`Archive`), and an implementation of it in memory."""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from ...transport.identity import PeerId
from .entry import FORKED, Entry, FeedName, Head, Proof


class ArchivedFeed(NamedTuple):
    """A feed found in the archive at startup.

    `bytes` is the size of the sealed entries of its epoch. If the feed has forked, the head is
    FORKED and `bytes` is the size of the two entries that prove the fork.
    """

    name: FeedName
    head: Head
    bytes: int


class Archive(Protocol):
    """Storage for feed entries.

    The changes made by `put`, `put_proof` and `drop` are committed when the call returns, in the
    order of the calls. `entries` and `proof` see all earlier changes, including those that are not
    committed yet.
    """

    async def load(self) -> Sequence[ArchivedFeed]:
        """Return every intact feed.

        Damaged feeds are dropped, so that they are fetched from peers again.
        """
        ...

    async def entries(
        self, name: FeedName, epoch: int, from_seq: int, limit: int
    ) -> Sequence[bytes]:
        """Return sealed entries of an epoch from `from_seq` on, in order and without a gap.

        Returns as many as fit into `limit` bytes, but at least one if there is any. They are not
        parsed, because most are passed on to a peer as they are (`read_stored` parses one).
        """
        ...

    async def put(self, entries: Sequence[Entry]) -> None:
        """Store entries, each of which must be the next one of its feed.

        An entry with seq 0 of a later epoch replaces all stored entries of its feed. Entries that
        are stored already are skipped.
        """
        ...

    async def put_proof(self, name: FeedName, proof: Proof) -> None:
        """Replace the entries of a forked feed with the proof of the fork."""
        ...

    async def proof(self, name: FeedName) -> Proof | None:
        """Return the proof that a feed has forked, or None."""
        ...

    async def cut(self, name: FeedName, head: Head | None) -> None:
        """Delete the entries of a feed after `head`, or all if `head` is None.

        Any proof is deleted too.
        """
        ...

    async def drop(self, authors: Collection[PeerId]) -> None:
        """Delete all feeds of these authors, with their proofs."""
        ...

    async def forget(self, names: Sequence[FeedName]) -> None:
        """Delete these feeds, with their proofs."""
        ...


class MemoryArchive:
    """An `Archive` that stores entries only in memory."""

    def __init__(self) -> None:
        self._entries: dict[FeedName, list[Entry]] = {}  # of one epoch, from seq 0 on
        self._proofs: dict[FeedName, Proof] = {}

    async def load(self) -> Sequence[ArchivedFeed]:
        whole = [
            ArchivedFeed(name, entries[-1].head, sum(entry.size for entry in entries))
            for name, entries in self._entries.items()
        ]
        forked = self._proofs.items()
        return whole + [ArchivedFeed(name, FORKED, proof.size) for name, proof in forked]

    async def entries(
        self, name: FeedName, epoch: int, from_seq: int, limit: int
    ) -> Sequence[bytes]:
        found: list[bytes] = []
        for entry in self._entries.get(name, ())[from_seq:]:
            limit -= entry.size
            if entry.epoch != epoch or (limit < 0 and found):
                break
            found.append(entry.sealed)
        return found

    async def put(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            kept = self._entries.get(entry.name)
            if entry.name in self._proofs:
                continue
            if kept is None or entry.epoch > kept[0].epoch:
                assert entry.seq == 0
                self._entries[entry.name] = [entry]
            elif entry.epoch == kept[0].epoch and entry.seq == len(kept):
                kept.append(entry)

    async def put_proof(self, name: FeedName, proof: Proof) -> None:
        self._entries.pop(name, None)
        self._proofs.setdefault(name, proof)

    async def proof(self, name: FeedName) -> Proof | None:
        return self._proofs.get(name)

    async def cut(self, name: FeedName, head: Head | None) -> None:
        self._proofs.pop(name, None)
        entries = self._entries.pop(name, [])
        kept = [] if head is None else entries[: head.seq + 1]
        if kept and kept[-1].head == head:
            self._entries[name] = kept

    async def drop(self, authors: Collection[PeerId]) -> None:
        gone = set(authors)
        for kept in (self._entries, self._proofs):
            for name in [name for name in kept if name.author in gone]:
                del kept[name]

    async def forget(self, names: Sequence[FeedName]) -> None:
        for name in names:
            self._entries.pop(name, None)
            self._proofs.pop(name, None)

    def sizes(self) -> dict[FeedName, tuple[int, int]]:
        """Return (bytes, number) of the sealed entries of each feed."""
        return {
            name: (sum(entry.size for entry in entries), len(entries))
            for name, entries in self._entries.items()
        }
