"""Writer of this node's own feeds: turns facts into entries, and never signs two with one number.

This key may have written more entries than the store holds: the store may be an old backup, and
another process may use the same key. Therefore the first entry of each feed in a run begins an
epoch. So does the first entry after a write whose outcome is unknown. If a peer sends an epoch of
this key that another process began, the writer begins a later one.

No I/O. The caller stores the entries that `flush` returns, calls `stored`, and only then sends
peers news of them.

A feed may contain facts of earlier runs, some of which arrive from peers only after the start. It
may also be full for a while. Therefore `OwnFacts` stores the facts that the node should have, and
`settle` passes them to the writer repeatedly.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

import msgpack

from ...transport.identity import Identity, PeerId
from ...transport.signed import ENVELOPE_OVERHEAD
from .. import defaults
from ..errors import FeedFull
from .entry import NO_PARENT, Entry, FeedName, Head, client_of, seal_entry
from .feed import Document, EntryOutcome, EntryVerdict, Feed, snapshot
from .kinds import KINDS, FeedKind, all_parts
from .scan import HEADER_BYTES, Changes, fact_bytes

ENTRY_OVERHEAD = ENVELOPE_OVERHEAD + 106  # bytes around an update, at most
_DELETION_BYTES = 10  # bytes of one deletion in an update, at most
_UPDATE_FRAME = HEADER_BYTES + 16  # bytes around the items and deletions, at most


@dataclass(slots=True)
class _Own:
    """A feed of this node, with the facts that the feed should have."""

    feed: Feed
    kind: FeedKind
    facts: dict[str, bytes] = field(default_factory=dict)  # all facts that the feed should have
    live_bytes: int = HEADER_BYTES  # upper bound of a snapshot of them
    changed: Changes = field(default_factory=dict)  # changes that no entry contains yet
    flying: Changes | None = None  # changes in entries that are being stored
    epoch: int = 0  # latest epoch begun in this run; 0: none to continue
    known: int = 0  # latest epoch of this feed ever seen or made
    anew: bool = False  # the stored entries may differ, so a new epoch must begin
    next_at: float = 0.0  # earliest time of the next entry

    @property
    def document(self) -> Document | None:
        """The document, or None if its epoch may not be continued."""
        head = self.feed.head
        continues = head is not None and head.epoch == self.epoch >= self.known
        return self.feed.document if continues and not self.anew else None

    def put(self, key: str, value: bytes | None) -> None:
        """Set a fact, or delete it if `value` is None.

        The change is pending until an entry contains it.
        """
        held = self.facts.pop(key, None)
        self.live_bytes -= 0 if held is None else fact_bytes(key, held)
        if value is not None:
            self.facts[key] = value
            self.live_bytes += fact_bytes(key, value)
        self.changed.pop(key, None)
        self.changed[key] = value

    def room_for(self, key: str, value: bytes) -> bool:
        """Return whether this fact fits into the feed together with the others."""
        held = self.facts.get(key)
        grown = fact_bytes(key, value) - (0 if held is None else fact_bytes(key, held))
        keys = len(self.facts) + (held is None)
        return self.live_bytes + grown <= self.kind.live_bytes and keys <= self.kind.keys


class FeedWriter:
    """Writer of the feeds of one identity.

    `feed_of` returns the replica's feed with a name; its document must be in memory. `lot(n)`
    returns a random number 0 .. n-1. Nothing is written before the time `held_until`, unless enough
    peers have reported this node's feeds before (see `reported`).
    """

    def __init__(
        self,
        identity: Identity,
        feed_of: Callable[[FeedName], Feed],
        *,
        lot: Callable[[int], int],
        held_until: float = 0.0,
    ) -> None:
        # when a peer last sent a later epoch by another process with this key
        self.contested_at = -inf
        self._identity = identity
        self._feed_of = feed_of
        self._lot = lot
        self._held_until = held_until
        self._reported: set[PeerId] = set()
        self.own: dict[FeedName, _Own] = {}

    def set(self, kind: str, part: int, key: str, value: Mapping[str, object] | None) -> None:
        """Set a fact of this node to `value`, or delete it if `value` is None.

        A later call of `flush` returns the entry with the change. Raises FeedFull with code
        `bad-fact` if the value cannot be encoded, `fact-too-large` if the key or the value is too
        large, `feed-full` if the feed has no space for it, and `forked` if the feed has forked.
        """
        own = self._find(FeedName(self._identity.peer, kind, part))
        if own.feed.forked:
            raise FeedFull("forked", f"this node's `{kind}` feed has forked and cannot be written")
        packed = None if value is None else _packed(key, value)
        if own.epoch and packed == own.facts.get(key):
            return
        if packed is not None and not own.room_for(key, packed):
            raise FeedFull("feed-full", f"this node's `{kind}` feed is full")
        own.put(key, packed)

    def keys(self, kind: str, part: int) -> Collection[str]:
        """Return the keys of the facts that a feed should have, including those of earlier runs."""
        own = self._find(FeedName(self._identity.peer, kind, part))
        document = own.feed.document
        earlier = document.facts() if document is not None and not own.epoch else {}
        return own.facts.keys() | (earlier.keys() - own.changed.keys())

    def get(self, kind: str, part: int, key: str) -> bytes | None:
        """Return the packed value that a fact should have, or None if the fact should not exist."""
        own = self._find(FeedName(self._identity.peer, kind, part))
        if own.epoch or key in own.changed:
            return own.facts.get(key)
        return None if own.feed.document is None else own.feed.document.get(key)

    def reported(self, peer: PeerId, linked: int) -> bool:
        """Count a report of a peer: it has no entries of this node's feeds that are missing here.

        Writing begins after reports of WRITE_REPORTS peers, or of `linked` peers if fewer are
        linked. Returns True if this was the last report that was needed.
        """
        if not self._held_until:
            return False
        self._reported.add(peer)
        if len(self._reported) < min(defaults.WRITE_REPORTS, linked):
            return False
        self._held_until = 0.0
        self._reported.clear()
        return True

    def wake(self, now: float) -> float | None:
        """Return the seconds until `flush` has work, or None if there is nothing to write."""
        times = [own.next_at for own in self.own.values() if _is_due(own)]
        return max(0.0, min(times) - now, self._held_until - now) if times else None

    def flush(self, now: float, wall_ms: int) -> list[Entry]:
        """Return the entries to write now, at most one for each feed.

        The caller stores them, and then calls `stored` or `failed`. `wall_ms` is the wall clock in
        ms.
        """
        if now < self._held_until:
            return []
        due = [own for own in self.own.values() if _is_due(own) and own.next_at <= now]
        entries = []
        for own in due:
            own.next_at = now + defaults.WRITE_PAUSE
            if (entry := self._next_entry(own, wall_ms)) is not None:
                entries.append(entry)
        return entries

    def stored(self, entries: Iterable[Entry]) -> list[tuple[Entry, EntryVerdict]]:
        """Admit entries that are on disk now to their feeds, and return each with its verdict.

        After that, peers may be sent news of them.
        """
        verdicts = []
        for entry in entries:
            own = self.own[entry.name]
            verdict = own.feed.admit(entry)
            verdicts.append((entry, verdict))
            if verdict.outcome is EntryOutcome.NEWS:
                own.flying = None
            else:  # the feed has forked
                self.failed([entry])
        return verdicts

    def failed(self, entries: Iterable[Entry]) -> None:
        """Make the facts in these entries pending again, to be written in a later epoch.

        The entries may be on disk or not, so their epoch must not be continued.
        """
        for entry in entries:
            own = self.own[entry.name]
            own.changed = {**(own.flying or {}), **own.changed}
            own.flying = None
            own.known = max(own.known, entry.epoch)
            own.epoch, own.anew = 0, True

    def takes(self, entry: Entry, now: float) -> bool:
        """Return whether to admit an entry of this node's own feeds that a peer has sent.

        Entries of earlier runs are admitted, which recovers them. If this run has written to the
        feed already, an entry of a later epoch comes from another process with this key. Such an
        entry is refused, and this writer begins a still later epoch after a pause.
        """
        own = self.own.get(entry.name)
        if own is None or not own.epoch or entry.epoch <= own.epoch:
            return True
        if entry.epoch > own.known:
            own.known = entry.epoch
            own.next_at = max(own.next_at, now + defaults.RECLAIM_PAUSE)
            self.contested_at = now
        return False

    def renew(self) -> None:
        """Begin a new epoch of each of this node's feeds, because the stored entries are lost.

        Feeds that this run has not changed are included.
        """
        for kind, part in all_parts():
            own = self._find(FeedName(self._identity.peer, kind, part))
            own.anew |= own.feed.head is not None or own.flying is not None

    def _find(self, name: FeedName) -> _Own:
        if name not in self.own:
            self.own[name] = _Own(self._feed_of(name), KINDS[name.kind])
            _recall(self.own[name])
        return self.own[name]

    def _next_entry(self, own: _Own, wall_ms: int) -> Entry | None:
        """Return an entry with the pending changes, or with as many of them as fit into one update.

        Returns None if nothing needs to be written.
        """
        if not own.epoch:
            _recall(own)
        held = own.feed.document
        own.changed = {
            key: value
            for key, value in own.changed.items()
            if (held.get(key) if held else None) != value
        }
        if (document := own.document) is not None:
            return self._continue(own, document, wall_ms)
        if own.changed or own.epoch or own.anew:
            return self._begin(own, wall_ms)
        return None

    def _continue(self, own: _Own, document: Document, wall_ms: int) -> Entry | None:
        head = own.feed.head
        changes = _first_of(own.changed, own.kind.update_bytes - _UPDATE_FRAME)
        if head is None or not own.changed:
            return None
        update = document.write(changes)
        size = own.feed.size + len(update) + ENTRY_OVERHEAD
        # The feed is mostly history: a snapshot costs no more than the entries that it replaces.
        worth = 2 * (own.live_bytes + ENTRY_OVERHEAD)
        named = document.named + len(changes)
        full = named > own.kind.keys or head.seq + 1 >= own.kind.entries
        if full or not changes or size > min(worth, own.kind.epoch_bytes):
            return self._begin(own, wall_ms)
        own.flying = changes
        own.changed = {k: v for k, v in own.changed.items() if k not in changes}
        return self._seal(own, Head(head.epoch, head.seq + 1, head.hash), wall_ms, update)

    def _begin(self, own: _Own, wall_ms: int) -> Entry:
        """Return an entry with a snapshot of all facts, which begins a later epoch than any known
        one."""
        head = own.feed.head
        known = max(own.known, own.epoch, head.epoch if head else 0)
        own.epoch = wall_ms
        # If the clock is behind, the step is random, so that two copies of a store begin different
        # epochs.
        if wall_ms <= known:
            own.epoch = known + 1 + self._lot(defaults.EPOCH_LOT)
        facts = dict(sorted(own.facts.items()))
        update = snapshot(own.kind, client_of(own.feed.name, own.epoch), facts)
        own.flying, own.changed, own.anew = own.changed, {}, False
        return self._seal(own, Head(own.epoch, 0, NO_PARENT), wall_ms, update)

    def _seal(self, own: _Own, after: Head, wall_ms: int, update: bytes) -> Entry:
        """Return a signed entry with this update.

        `after` has the entry's epoch and seq; `after.hash` is the hash of the entry before it.
        """
        return seal_entry(
            self._identity,
            own.kind.name,
            own.feed.name.part,
            epoch=after.epoch,
            seq=after.seq,
            parent=after.hash,
            made=max(0, wall_ms),
            update=update,
        )


def _is_due(own: _Own) -> bool:
    renewal = own.anew or (own.epoch and own.known > own.epoch)
    return not own.feed.forked and own.flying is None and bool(own.changed or renewal)


def _recall(own: _Own) -> None:
    """Rebuild the facts that a feed should have: its document's facts with the pending changes.

    Facts of the document that no longer fit are left out.
    """
    document = own.feed.document
    assert document is not None or own.feed.head is None or own.feed.forked, "load it first"
    own.facts, own.live_bytes = {}, HEADER_BYTES
    changed, own.changed = own.changed, {}
    for key, value in changed.items():
        own.put(key, value)
    held = document.facts() if document else {}
    for key, value in held.items():
        if key not in changed and own.room_for(key, value):
            own.facts[key] = value
            own.live_bytes += fact_bytes(key, value)


def _first_of(changes: Changes, most: int) -> Changes:
    """Return the first of these changes, as many as fit into an update of `most` bytes."""
    chosen: Changes = {}
    for key, value in changes.items():
        most -= _DELETION_BYTES + (0 if value is None else fact_bytes(key, value))
        if most < 0:
            break
        chosen[key] = value
    return chosen


def _packed(key: str, value: Mapping[str, object]) -> bytes:
    try:
        packed: bytes = msgpack.packb(dict(value))
        size = len(key.encode())
    except (ValueError, OverflowError):
        raise FeedFull("bad-fact", "a fact has text or a number that cannot be encoded") from None
    if len(packed) > defaults.FACT_BYTES or not 0 < size <= defaults.FACT_KEY_BYTES:
        limits = f"{defaults.FACT_BYTES} bytes or its key is not 1 to {defaults.FACT_KEY_BYTES}"
        raise FeedFull("fact-too-large", f"a fact exceeds {limits} bytes")
    return packed


Value = Mapping[str, object]
Place = tuple[int, str]
"""Part and key of a fact."""


@dataclass(frozen=True, slots=True)
class WrittenFacts:
    """All facts that this node's feeds of one kind should have, by (part, key).

    `mine` returns whether a key belongs to this set. A fact in the feeds is outdated if its key
    belongs to the set but is not in `facts`.
    """

    kind: str
    facts: Mapping[Place, Value]
    mine: Callable[[str], bool] = lambda key: True


class OwnFacts:
    """The facts that this node publishes about itself, grouped by kind."""

    def __init__(self) -> None:
        self.said: dict[str, WrittenFacts] = {}
        """The facts by their kind."""

    def say(self, said: WrittenFacts) -> None:
        """Replace the facts of the kind `said.kind`. `settle` writes them."""
        self.said[said.kind] = said

    def settle(self, writer: FeedWriter) -> FeedFull | None:
        """Pass all facts to the writer, and delete outdated facts from the feeds.

        If a feed refuses a fact, the others are written all the same. Returns the last such error,
        or None if there was none.
        """
        failed: FeedFull | None = None
        for said in self.said.values():
            for (part, key), value in (*_stale(said, writer), *said.facts.items()):
                try:
                    writer.set(said.kind, part, key, value)
                except FeedFull as error:
                    failed = error
        return failed


def _stale(said: WrittenFacts, writer: FeedWriter) -> Iterator[tuple[Place, None]]:
    for part in KINDS[said.kind].parts:
        for key in writer.keys(said.kind, part):
            if said.mine(key) and (part, key) not in said.facts:
                yield (part, key), None
