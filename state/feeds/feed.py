"""The state of one feed in a replica, with its document, and the rules for admitting entries.

The states of a feed form a lattice: nothing, the entries of an epoch in order, the entries of a
later epoch, and at the top a proven fork. Replicas that have received the same entries in any order
have equal feeds, because every limit that refuses an entry depends on this feed alone.

The document is one pycrdt `Doc` with one root map of facts, written by one author. Only this module
passes updates to pycrdt, and only after `scan.read_update` has accepted them and they fit into the
limits of the feed's kind.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

from .. import defaults
from ..errors import BadEntry, BadUpdate
from .entry import FORKED, NO_PARENT, Entry, FeedName, Head, Proof, client_of
from .kinds import KINDS, FeedKind
from .scan import EMPTY, ROOT, Changes, DocumentFacts, fact_bytes, read_update, write_update

if TYPE_CHECKING:
    from pycrdt import Doc, Map


class Document:
    """The document of one epoch of a feed.

    `client` is the CRDT client id of the epoch, from `entry.client_of`.
    """

    def __init__(self, kind: FeedKind, client: int) -> None:
        self.kind = kind
        self._ledger = DocumentFacts(client, kind.keys)
        self.doc, self._map = _new_doc(client)
        self._update_bytes = 0

    def apply(self, update: bytes) -> Changes:
        """Apply an update. Return the new value of each key that it changes, None if deleted.

        Raises BadUpdate with code `bad-update` if no honest author would write the update, and with
        code `too-large` if the facts would exceed a limit of the kind. Then the document is
        unchanged.
        """
        changes = read_update(self._ledger, update)
        if self._live_bytes_with(changes) > self.kind.live_bytes:
            raise BadUpdate("too-large", "the facts would exceed the size limit of the feed's kind")
        if self.named + sum(key not in self._ledger.last for key in changes) > self.kind.keys:
            raise BadUpdate("too-large", "the facts would exceed the key limit of the feed's kind")
        self.doc.apply_update(update)
        self._ledger.record(changes)
        self._update_bytes += len(update)
        return changes

    def write(self, changes: Mapping[str, bytes | None]) -> bytes:
        """Return the update that makes these changes, without applying it. None deletes a key.

        Call `apply` once the update is stored. Raises BadUpdate with code `bad-update` if a change
        deletes a key that has no value, and with code `too-large` if a key or a value is too large.
        """
        return write_update(self._ledger, changes)

    def get(self, key: str) -> bytes | None:
        """Return the value of a key, or None if it has none."""
        value = self._map.get(key)
        return None if value is None else bytes(value)

    def facts(self) -> dict[str, bytes]:
        """Return all keys that have a value, with their values, sorted by key."""
        held = self._map.to_py() or {}
        return {key: bytes(held[key]) for key in sorted(held)}

    @property
    def named(self) -> int:
        """The number of different keys that have ever been set in the epoch."""
        return len(self._ledger.last)

    @property
    def live_bytes(self) -> int:
        """An upper bound of the size in bytes of a snapshot of the present facts."""
        return self._ledger.live_bytes

    @property
    def shown_memory(self) -> int:
        """Approximate memory in bytes that the facts take in the views."""
        ledger = self._ledger
        return (
            defaults.FACT_MEMORY * len(ledger.live) + defaults.FACT_MEMORY_TIMES * ledger.live_bytes
        )

    @property
    def memory(self) -> int:
        """Approximate memory in bytes that the document takes, for the limit on documents in
        memory."""
        items = defaults.DOCUMENT_ITEM_BYTES * self._ledger.clock
        return self._update_bytes + items + defaults.DOCUMENT_KEY_BYTES * (self.named + 1)

    def _live_bytes_with(self, changes: Changes) -> int:
        trial = self._ledger.live_bytes
        for key, value in changes.items():
            trial -= self._ledger.live.get(key, 0)
            trial += 0 if value is None else fact_bytes(key, value)
        return trial


def snapshot(kind: FeedKind, client: int, facts: Mapping[str, bytes]) -> bytes:
    """Return the update that begins an epoch with these facts.

    Raises BadUpdate with code `too-large` if they exceed a limit of the kind.
    """
    update = write_update(DocumentFacts(client, kind.keys), facts)
    if len(update) > kind.live_bytes or len(facts) > kind.keys:
        raise BadUpdate("too-large", f"these facts do not fit into one `{kind.name}` feed")
    return update


def _new_doc(client: int) -> "tuple[Doc[Map[bytes]], Map[bytes]]":
    from pycrdt import Doc, Map  # the import takes 60 ms of CPU, which commands without state save

    doc: Doc[Map[bytes]] = Doc(client_id=client)
    return doc, doc.get(ROOT, type=Map)


OTHER_BRANCH: Final = "other-branch"
NOWHERE: Final = Head(0, 0, NO_PARENT)
"""The end of a feed that has no valid entries."""


class EntryOutcome(Enum):
    """The outcome of admitting an entry to its feed."""

    NEWS = "news"  # admitted; `changed` has its changes
    KNOWN = "known"  # this entry is stored already
    OLD = "old"  # of an epoch that a later one has replaced
    GAP = "gap"  # entries before it are missing
    # the document is not in memory: pass the stored entries to `load`, then admit again
    LOAD = "load"
    CHECK = "check"  # an entry with this number is stored: pass both to `compare`
    FORK = "fork"  # `proof` empties the feed for good
    REFUSED = "refused"  # never admitted; `code` gives the reason


@dataclass(frozen=True, slots=True)
class EntryVerdict:
    """The result of admitting an entry to its feed, with the changes that follow from it."""

    outcome: EntryOutcome
    changed: Mapping[str, bytes | None] = field(default_factory=dict)  # None: deleted
    fresh: bool = False  # a new epoch has begun: all facts that are not in `changed` are deleted
    proof: Proof | None = None
    code: str = ""  # too-large, epoch-full, bad-update, bad-chain, forked, revoked


class Feed:
    """One feed as this node knows it: its head, its sizes, and its document while that is in
    memory."""

    __slots__ = (
        "__weakref__", "_document", "_head", "_loading", "_memory", "_size", "end", "name",
    )  # fmt: skip

    def __init__(
        self,
        name: FeedName,
        head: Head | None = None,
        size: int = 0,
        end: Head | None = None,
        memory: int = 0,
    ) -> None:
        """Create a feed, or resume a stored one from its head and size.

        `size` is the size in bytes of the entries of its epoch. `memory` is the memory in bytes
        that its facts take in the views, 0 if unknown. A feed that has forked is resumed with the
        head `FORKED`.
        """
        self.name = name
        self.end = end
        """The last entry that counts, if the group has revoked the feed's author, else None. Later
        entries are refused, and so is the proof of a fork."""
        self._head = head
        self._size = size
        self._memory = memory
        self._document: Document | None = None
        self._loading: _Loading | None = None

    @property
    def head(self) -> Head | None:
        """The head: `FORKED` if the feed has forked, None if it has no entries here."""
        return self._head

    @property
    def size(self) -> int:
        """The size in bytes of the sealed entries of the epoch.

        For a forked feed, the size of the proof.
        """
        return self._size

    @property
    def memory(self) -> int:
        """Approximate memory in bytes that the facts take in the views.

        For a resumed feed, this is the `memory` passed to the constructor until the document has
        been in memory.
        """
        return self._memory

    @property
    def forked(self) -> bool:
        """Whether a fork is proven. Then the feed is empty, and stays empty."""
        return self._head == FORKED

    @property
    def document(self) -> Document | None:
        """The document, or None if it is not in memory."""
        return self._document

    def admit(self, entry: Entry) -> EntryVerdict:
        """Admit an entry of this feed if it is the next entry or begins a later epoch.

        The caller must store the entry before it sends other nodes news of it.
        """
        assert entry.name == self.name
        head = self._head
        if self.forked:
            return EntryVerdict(EntryOutcome.REFUSED, code="forked")
        if beyond(entry.head, self.end):
            return EntryVerdict(EntryOutcome.REFUSED, code="revoked")
        if head is None or entry.epoch > head.epoch:
            return self._begin(entry) if entry.seq == 0 else EntryVerdict(EntryOutcome.GAP)
        if entry.epoch < head.epoch:
            return EntryVerdict(EntryOutcome.OLD)
        if entry.seq <= head.seq:
            # the feed is complete: no other entry leads to its end
            if entry.head != head and head == self.end:
                return EntryVerdict(EntryOutcome.REFUSED, code="revoked")
            return EntryVerdict(EntryOutcome.KNOWN if entry.head == head else EntryOutcome.CHECK)
        if entry.seq > head.seq + 1:
            return EntryVerdict(EntryOutcome.GAP)
        return self._extend(entry, head)

    def compare(self, stored: Entry, entry: Entry) -> EntryVerdict:
        """Compare an entry with the stored entry of the same number.

        Returns KNOWN if they are equal, and otherwise FORK. If the feed has an end (`end`), at most
        one of two different entries leads to it. The result is then REFUSED with code
        `other-branch`.
        """
        if stored.hash == entry.hash:
            return EntryVerdict(EntryOutcome.KNOWN)
        if self.end is not None:
            return EntryVerdict(EntryOutcome.REFUSED, code=OTHER_BRANCH)
        return self.fork(Proof.of(stored, entry))

    def fork(self, proof: Proof) -> EntryVerdict:
        """Empty the feed because of a proof that it has forked in any epoch.

        Returns FORK, KNOWN if the feed has forked already, or REFUSED if the author is revoked.
        """
        assert proof.name == self.name
        if self.forked:
            return EntryVerdict(EntryOutcome.KNOWN)
        if self.end is not None:
            return EntryVerdict(EntryOutcome.REFUSED, code="revoked")
        self._head, self._size, self._memory = FORKED, proof.size, 0
        self.unload()
        return EntryVerdict(EntryOutcome.FORK, proof=proof, fresh=True)

    def load(self, entries: Iterable[Entry]) -> bool:
        """Rebuild the document from the stored entries of the epoch, in order.

        The entries may be passed in several calls, from seq 0 on. Returns True once the head is
        reached. Raises BadEntry with code `damaged` if the entries do not lead to the head. The
        store must then drop the feed.
        """
        if self._document is not None or self._head is None or self.forked:
            return True
        loading = self._loading or _Loading(self.name, self._head)
        self._loading = None
        for entry in entries:
            loading.take(entry)
        if loading.done:
            self._document = loading.document
            self._memory = loading.document.shown_memory
            return True
        self._loading = loading
        return False

    def weigh(self, size: int) -> None:
        """Set the size in bytes of the entries, if the feed was resumed with an unknown size."""
        self._size = size

    def unload(self) -> None:
        """Remove the document from memory. `load` rebuilds it."""
        self._document = self._loading = None

    def _begin(self, entry: Entry) -> EntryVerdict:
        kind = entry.kind
        if entry.parent != NO_PARENT:
            return EntryVerdict(EntryOutcome.REFUSED, code="bad-chain")
        if len(entry.update) > kind.live_bytes:
            return EntryVerdict(EntryOutcome.REFUSED, code="too-large")
        document = Document(kind, client_of(self.name, entry.epoch))
        verdict = self._apply(document, entry, fresh=True)
        if verdict.outcome is EntryOutcome.NEWS:
            self.unload()
            self._document, self._size = document, entry.size
        return verdict

    def _extend(self, entry: Entry, head: Head) -> EntryVerdict:
        kind = entry.kind
        if entry.parent != head.hash:
            return EntryVerdict(EntryOutcome.REFUSED, code="bad-chain")
        if len(entry.update) > kind.update_bytes:
            return EntryVerdict(EntryOutcome.REFUSED, code="too-large")
        if entry.seq >= kind.entries or self._size + entry.size > kind.epoch_bytes:
            return EntryVerdict(EntryOutcome.REFUSED, code="epoch-full")
        if self._document is None:
            return EntryVerdict(EntryOutcome.LOAD)
        verdict = self._apply(self._document, entry)
        if verdict.outcome is EntryOutcome.NEWS:
            self._size += entry.size
        return verdict

    def _apply(self, document: Document, entry: Entry, *, fresh: bool = False) -> EntryVerdict:
        try:
            changes = applied(document, entry)
        except BadUpdate as error:
            return EntryVerdict(EntryOutcome.REFUSED, code=error.code)
        self._head = entry.head
        self._memory = document.shown_memory
        return EntryVerdict(EntryOutcome.NEWS, changed=changes, fresh=fresh)


class _Loading:
    """A document that is being rebuilt from stored entries."""

    def __init__(self, name: FeedName, head: Head) -> None:
        self.document = Document(KINDS[name.kind], client_of(name, head.epoch))
        self._name = name
        self._head = head
        self._next = 0
        self._parent = NO_PARENT

    @property
    def done(self) -> bool:
        return self._parent == self._head.hash

    def take(self, entry: Entry) -> None:
        expected = (self._name, self._head.epoch, self._next, self._parent)
        if self.done or (entry.name, entry.epoch, entry.seq, entry.parent) != expected:
            raise _damaged(self._name)
        try:
            applied(self.document, entry)
        except BadUpdate:
            raise _damaged(self._name) from None
        self._next, self._parent = entry.seq + 1, entry.hash
        if self._next > self._head.seq and not self.done:
            raise _damaged(self._name)


def beyond(head: Head, end: Head | None) -> bool:
    """Return whether this head comes after the end of its feed, or is on another branch.

    A head with the number of the end but another hash is on another branch. `end` is None if the
    feed has no end. Then the result is False.
    """
    return end is not None and (head[:2] > end[:2] or (head[:2] == end[:2] and head != end))


def applied(document: Document, entry: Entry) -> Changes:
    if entry.seq and entry.update == EMPTY:
        raise BadUpdate("bad-update", "an update changes nothing")
    return document.apply(entry.update)


def _damaged(name: FeedName) -> BadEntry:
    return BadEntry("damaged", f"the stored `{name.kind}` feed of `{name.author}` is damaged")
