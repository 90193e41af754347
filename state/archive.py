"""Where the entries of all feeds are kept: what a replica asks of its store, and one in memory."""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from ..transport.identity import PeerId
from .entry import FORKED, Entry, FeedName, Head, Proof


class Stored(NamedTuple):
    """A feed as it is found at the start. `bytes`: of the sealed entries of its epoch; where it has
    forked, and the head is FORKED, of the two that prove it."""

    name: FeedName
    head: Head
    bytes: int


class Archive(Protocol):
    """What was given to `put`, `put_proof` and `drop` is committed when they return, in the order
    of the calls; `entries` and `proof` see at once what was given before, committed or not."""

    async def load(self) -> Sequence[Stored]:
        """Every feed that is kept and whole; a damaged one is dropped: it will be fetched again."""
        ...

    async def entries(
        self, name: FeedName, epoch: int, from_seq: int, limit: int
    ) -> Sequence[Entry]:
        """Entries of that epoch from that number on, in order, without a gap: as many as fit into
        `limit` bytes, but at least one where there is one. Signatures are not checked again."""
        ...

    async def put(self, entries: Sequence[Entry]) -> None:
        """Keep entries, each the next of its feed; seq 0 of a later epoch replaces what there is of
        its feed. One that is kept already is passed over."""
        ...

    async def put_proof(self, name: FeedName, proof: Proof) -> None:
        """A feed has forked: the proof in place of its entries."""
        ...

    async def proof(self, name: FeedName) -> Proof | None:
        """Why a feed counts as forked."""
        ...

    async def cut(self, name: FeedName, head: Head | None) -> None:
        """Keep of a feed what leads to this entry of its epoch, and no proof; None: nothing."""
        ...

    async def drop(self, authors: Collection[PeerId]) -> None:
        """Forget all feeds of these authors, with their proofs."""
        ...

    async def forget(self, names: Sequence[FeedName]) -> None:
        """Forget these feeds, with their proofs."""
        ...


class MemoryArchive:
    """An Archive that is gone when the process is."""

    def __init__(self) -> None:
        self._entries: dict[FeedName, list[Entry]] = {}  # of one epoch, from seq 0 on
        self._proofs: dict[FeedName, Proof] = {}

    async def load(self) -> Sequence[Stored]:
        whole = [
            Stored(name, entries[-1].head, sum(entry.size for entry in entries))
            for name, entries in self._entries.items()
        ]
        forked = self._proofs.items()
        return whole + [Stored(name, FORKED, proof.size) for name, proof in forked]

    async def entries(
        self, name: FeedName, epoch: int, from_seq: int, limit: int
    ) -> Sequence[Entry]:
        found: list[Entry] = []
        for entry in self._entries.get(name, ())[from_seq:]:
            limit -= entry.size
            if entry.epoch != epoch or (limit < 0 and found):
                break
            found.append(entry)
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
        """Bytes and number of the sealed entries of each feed."""
        return {
            name: (sum(entry.size for entry in entries), len(entries))
            for name, entries in self._entries.items()
        }
