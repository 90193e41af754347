"""Table of the member records that this node knows. It also chooses the members to dial next.

No I/O: sealed bytes and `now` (seconds of the monotonic clock) go in, records and addresses come
out. `live` has the peers with a link, whose records are always stored. Other records are hearsay
from a linked peer. They are stored within a quota for each such peer, and dropped after a while
without a link to their author.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from math import inf
from typing import NamedTuple

from ...transport.address import Address
from ...transport.errors import TransportError
from ...transport.identity import PeerId
from ...transport.networks import Nearness, is_public
from ...transport.rates import Rate, RateLimiter, Rates
from .. import defaults
from ..errors import BadRecord, Forged
from .reach import dialable
from .record import MemberRecord, open_record, peek


@dataclass(slots=True)
class KnownMember:
    """A member record, with what this node knows about its author."""

    record: MemberRecord
    sealed: bytes
    reach: Nearness
    source: PeerId  # the peer that sent it first
    pace: RateLimiter
    heard: float  # when the author last had a link to this node or to a peer that reported it
    due: float  # when to dial
    pause: float = defaults.DIAL_PAUSE[0]  # seconds to wait after the next failed dial
    tag: "Tag" = b""  # of the author
    rank: bytes = b""  # order of dials among members that are due together
    dialling: bool = False
    met: bool = False  # this node has had a link to it
    counted: bool = False  # the dial under way counts against `source` unless it succeeds
    # (IP address, port) pairs that the author publishes as its own
    places: frozenset[tuple[str, int]] = frozenset()
    mark: int = 0  # `mark_of` the sealed bytes


class RecordOffer(NamedTuple):
    """An offer of a record: its sequence number, how near its source is, and its age.

    The age is the number of seconds, rounded up, since the author last had a link that the node
    knows of. The age is sent with the record, so that all nodes forget a dead member at about the
    same time, however often they forward the record to each other.
    """

    seq: int
    reach: Nearness
    age: int


def mark_of(sealed: bytes) -> int:
    """Return the eight bytes, as a number, that a record adds to the checksums that nodes
    compare."""
    return int.from_bytes(sha256(sealed).digest()[: defaults.SUM_BYTES])


Tag = bytes
"""The first 8 bytes of SHA-256 of a peer id. Messages name the author of a record by its tag,
because peer ids would take up most of a message. Two identities with the same tag delay only each
other's records."""


def tag_of(peer: PeerId) -> Tag:
    return sha256(peer.encode()).digest()[: defaults.TAG_BYTES]


def _bucket_of(tag: Tag) -> int:
    """Return the number of the bucket that an author's record belongs to."""
    return tag[0] % defaults.SUMS


class Roster:
    """All known records except this node's own."""

    def __init__(self, own: PeerId) -> None:
        self._own = own
        self.tag = tag_of(own)
        self._known: dict[PeerId, KnownMember] = {}
        self._authors: frozenset[PeerId] | None = frozenset()  # None after a change
        self._by_tag: dict[Tag, KnownMember] = {}
        self._by_bytes: dict[bytes, KnownMember] = {}  # by the sealed record
        self._by_place: dict[tuple[str, int], dict[PeerId, None]] = {}  # by address of its own
        self.live: dict[PeerId, None] = {}  # in the order of their links
        self._lost: dict[PeerId, None] = {}  # members that had a link and have none now
        self._forget_at = -inf  # when to look for old records next
        # sequence number of a record of this node's key that came from a peer
        self.reclaimed: int | None = None
        self._ghosts = Rates(Rate(*defaults.GHOSTS))  # failed dials, by the source of the record
        self._counts: Callable[[PeerId], bool] = lambda peer: True

    def count_only(self, counts: Callable[[PeerId], bool]) -> None:
        """Set which peers count as members and are dialled: those for which `counts` is true."""
        self._counts = counts

    # Reading.

    def members(self) -> dict[PeerId, MemberRecord]:
        """Return the records of the linked members, as far as they are known."""
        return {peer: self._known[peer].record for peer in self.live if peer in self._known}

    def known(self, peer: PeerId) -> KnownMember | None:
        return self._known.get(peer)

    def tagged(self, tag: Tag) -> KnownMember | None:
        """Return the record of the author with this tag, or None if it is not known."""
        return self._by_tag.get(tag)

    def authors(self) -> frozenset[PeerId]:
        """Return the authors of all known records. While they do not change, this is the same
        object."""
        if self._authors is None:
            self._authors = frozenset(self._known)
        return self._authors

    def __len__(self) -> int:
        return len(self._known)

    def offers(self, now: float, authors: Iterable[PeerId] | None = None) -> dict[Tag, RecordOffer]:
        """Return offers of the records of these authors.

        If `authors` is None, returns offers of all known records, with those of live members first.
        """
        if authors is None:
            authors = dict.fromkeys((*self.live, *self._known))
        return {
            known.tag: RecordOffer(known.record.seq, known.reach, self._age(peer, known, now))
            for peer in authors
            if (known := self._known.get(peer)) is not None
        }

    def sums(self, own: int) -> bytes:
        """Return the checksums of the known records, one for each bucket.

        A checksum is the XOR of the marks of the bucket's records. `own` is the mark of this node's
        record.
        """
        sums = [0] * defaults.SUMS
        for known in self._known.values():
            sums[_bucket_of(known.tag)] ^= known.mark
        sums[_bucket_of(self.tag)] ^= own
        return b"".join(each.to_bytes(defaults.SUM_BYTES) for each in sums)

    def differing(self, one: bytes, other: bytes) -> list[PeerId]:
        """Return the known authors in the buckets in which two lists of checksums differ."""
        size = defaults.SUM_BYTES
        cut = [slice(size * number, size * (number + 1)) for number in range(defaults.SUMS)]
        differ = [one[part] != other[part] for part in cut]
        return [peer for peer, known in self._known.items() if differ[_bucket_of(known.tag)]]

    def offer(self, peer: PeerId, now: float) -> RecordOffer:
        """Return the offer of a known record."""
        known = self._known[peer]
        return RecordOffer(known.record.seq, known.reach, self._age(peer, known, now))

    def _age(self, peer: PeerId, known: KnownMember, now: float) -> int:
        return 0 if peer in self.live else math.ceil(now - known.heard)

    def at(self, host: str, port: int) -> list[PeerId]:
        """Return the members whose records have this IP address and port as an address of their
        own."""
        return list(self._by_place.get((host, port), ()))

    def neighbours(self, peer: PeerId) -> list[PeerId]:
        """Return the other members whose records have an address of this member.

        Either one machine has changed its identity, or one of the members lies. Many home networks
        use the same private addresses, so a private address counts only if both members are near.
        """
        if (own := self._known.get(peer)) is None:
            return []
        others = {other: None for place in sorted(own.places) for other in self._by_place[place]}
        return [each for each in others if each != peer and _share(own, self._known[each])]

    def has(self, tag: Tag, seq: int) -> bool:
        """Return whether a record of this author with this sequence number or a later one is
        known."""
        known = self._by_tag.get(tag)
        return known is not None and known.record.seq >= seq

    def lacking(
        self, offers: Mapping[Tag, RecordOffer], near: Nearness, now: float, own_seq: int
    ) -> list[Tag]:
        """Return the tags of the authors whose records to pull from a peer with these offers.

        The tag of this node is included if a later record of this node is offered. For records that
        are known already, updates how near their source is and when their author last had a link.
        """
        wanted = []
        for tag, offer in offers.items():
            known = self._by_tag.get(tag)
            if tag == self.tag:
                if offer.seq > own_seq:
                    wanted.append(tag)
            elif known is None or offer.seq > known.record.seq:
                wanted.append(tag)
            elif offer.seq == known.record.seq:
                self._heard_again(known, min(offer.reach, near), now - offer.age)
        return wanted[: 2 * defaults.VOUCHED]

    # Taking in.

    def receive(
        self, sealed: bytes, source: PeerId, reach: Nearness, now: float, age: float = 0.0
    ) -> MemberRecord | None:
        """Store a record, and return it if it is news.

        `age` is the number of seconds since its author last had a link to any node. Returns None if
        the record is known, older than the known one, or not admitted. Cheap checks come first, the
        signature last. Raises BadRecord if `source` is to blame, because it wrote or
        forwarded an invalid record.
        """
        if (known := self._by_bytes.get(sealed)) is not None:  # most come from many peers
            self._heard_again(known, reach, now - age)
            return None
        author, seq = peek(sealed)
        if author == self._own:
            self._reclaim(sealed)
            return None
        known = self._known.get(author)
        if known is not None and seq <= known.record.seq:
            self._heard_again(known, reach, now - age)
            return None
        if age >= defaults.FORGET:
            return None
        if not self._admits(author, source) or (known and not known.pace.take(now)):
            return None
        try:
            record = open_record(sealed)
        except Forged:
            raise
        except BadRecord:
            if source == author:
                raise
            return None  # its author made a mistake, or uses a later version
        self._store(record, sealed, source, reach, now, now - age)
        return record

    @staticmethod
    def _heard_again(known: KnownMember, reach: Nearness, heard: float) -> None:
        known.reach = max(known.reach, reach)
        known.heard = max(known.heard, heard)

    def _drop(self, peer: PeerId) -> None:
        self._place(peer, self._known[peer], frozenset())
        known = self._known.pop(peer)
        self._authors = None
        self._lost.pop(peer, None)
        del self._by_bytes[known.sealed]
        if self._by_tag.get(known.tag) is known:
            del self._by_tag[known.tag]

    def _reclaim(self, sealed: bytes) -> None:
        """Record the sequence number of a record that this node's key has signed elsewhere.

        This node's next record must be later. The other record is from before a restart with a
        clock that was ahead, or from another process with the same key.
        """
        seq = open_record(sealed).seq
        self.reclaimed = max(self.reclaimed or 0, seq)

    def _admits(self, author: PeerId, source: PeerId) -> bool:
        if author in self.live:
            self._make_room(None)
            return True
        if author in self._known:
            return True
        told = self._hearsay()
        if told[source] >= defaults.VOUCHED:
            return False
        return len(self._known) < defaults.MEMBERS or self._make_room(source)

    def _hearsay(self) -> Counter[PeerId]:
        """Return how many authors without a link each peer was the first to report."""
        return Counter(known.source for peer, known in self._known.items() if peer not in self.live)

    def _make_room(self, source: PeerId | None) -> bool:
        """Evict one hearsay record if the table is full. Return whether there is space now.

        The record is the oldest one of the peer with most hearsay. If that peer has no more of it
        than `source` itself, evicts nothing and returns False.
        """
        if len(self._known) < defaults.MEMBERS:
            return True
        told = self._hearsay()
        heaviest = max(told, key=lambda peer: told[peer], default=None)
        if heaviest is None or (source is not None and told[heaviest] <= told[source] + 1):
            return False
        oldest = min(
            (p for p, k in self._known.items() if k.source == heaviest and p not in self.live),
            key=lambda peer: self._known[peer].heard,
        )
        self._drop(oldest)
        return True

    def _store(
        self,
        record: MemberRecord,
        sealed: bytes,
        source: PeerId,
        reach: Nearness,
        now: float,
        heard: float,
    ) -> None:
        known = self._known.get(record.peer)
        if known is None:
            # Both ends of a link learn of each other at once: the larger peer id waits a little.
            due = now + (defaults.DIAL_YIELD if self._own > record.peer else 0.0)
            pace = RateLimiter(Rate(*defaults.AUTHOR_UPDATES), now)
            rank = sha256(f"{self._own} {record.peer}".encode()).digest()
            known = KnownMember(record, sealed, reach, source, pace, heard, due, rank=rank)
            self._place(record.peer, known, _places(record))
            known.tag, known.mark = tag_of(record.peer), mark_of(sealed)
            self._known[record.peer] = self._by_bytes[sealed] = known
            self._authors = None
            self._by_tag.setdefault(known.tag, known)
            return
        if record.addresses != known.record.addresses:
            known.due = min(known.due, now)
        del self._by_bytes[known.sealed]
        self._by_bytes[sealed] = known
        self._place(record.peer, known, _places(record))
        known.record, known.sealed, known.mark = record, sealed, mark_of(sealed)
        known.heard = max(known.heard, heard)
        known.reach = max(known.reach, reach)

    def _place(self, peer: PeerId, known: KnownMember, places: frozenset[tuple[str, int]]) -> None:
        """Replace the addresses of a member."""
        for place in sorted(known.places - places):
            del self._by_place[place][peer]
            if not self._by_place[place]:
                del self._by_place[place]
        for place in sorted(places - known.places):
            self._by_place.setdefault(place, {})[peer] = None
        known.places = places

    # Links.

    def linked(self, peer: PeerId, reach: Nearness) -> None:
        """Record a new link to a peer."""
        self.live[peer] = None
        if known := self._known.get(peer):
            known.reach = max(known.reach, reach)
            known.pause = defaults.DIAL_PAUSE[0]
            known.met = True
            self._lost.pop(peer, None)

    def unlinked(self, peer: PeerId, now: float, *, searched: bool = False) -> None:
        """Record that a link is quiet or has ended. Its peer is dialled again for a while.

        If `searched`, the peer is not dialled yet, because the link still exists and searches for a
        path itself.
        """
        self.live.pop(peer, None)
        if known := self._known.get(peer):
            known.heard = now
            known.due = inf if searched else now + known.pause
            self._lost[peer] = None

    def has_lost(self, peer: PeerId) -> bool:
        """Return whether a member had a link and has none now."""
        return peer in self._lost

    def answered(self, peer: PeerId, now: float) -> None:
        """Record that a linked peer has delivered a proof that a member is live."""
        if known := self._known.get(peer):
            known.heard = max(known.heard, now)

    # Dialling.

    def next_dials(
        self, now: float, most: int, lost: int = 0
    ) -> list[tuple[PeerId, list[Address]]]:
        """Return up to `most` members to dial now, with their addresses.

        End each dial with `dialled`.

        Up to `lost` further members that have lost their link are dialled, however many links this
        node has. Otherwise, after a partition, each side would have enough links and never dial the
        other side.

        Each node has its own order among the members that are due, so that a swarm too large for a
        full mesh becomes a random graph. Failed dials are limited for each peer that was the first
        to send the records.
        """
        self._forget(now)
        found: list[tuple[PeerId, list[Address]]] = []
        if most <= 0 and lost <= 0:
            return found
        due = [item for item in self._waiting(lost=most <= 0) if item[1].due <= now]
        for peer, known in sorted(due, key=lambda item: item[1].rank):
            again = lost > 0 and peer in self._lost
            if most <= 0 and not again:
                continue
            addresses = dialable(known.record.addresses, peer, known.reach)
            if not addresses:
                known.due = inf  # not before it publishes another address
            elif not known.met and not self._ghosts.take(known.source, now):
                known.due = now + defaults.GHOST_WAIT
            else:
                known.dialling, known.counted = True, not known.met
                found.append((peer, addresses[: defaults.DIAL_ADDRESSES]))
                most, lost = (most, lost - 1) if again else (most - 1, lost)
        return found

    def where(self, peer: PeerId) -> list[Address]:
        """Return the addresses of a peer that may be dialled."""
        known = self._known.get(peer)
        return [] if known is None else dialable(known.record.addresses, peer, known.reach)

    def next_due(self, *, lost: bool = False) -> float:
        """Return the time of the next dial, or infinity if none is planned.

        If `lost`, considers only members that have lost their link.
        """
        return min((known.due for _, known in self._waiting(lost=lost)), default=inf)

    def dialled(self, peer: PeerId, now: float, jitter: Callable[[float], float]) -> None:
        """Record the end of a dial. After a failed dial, the pause before the next one doubles."""
        if (known := self._known.get(peer)) is None:
            return
        known.dialling = False
        if peer in self.live:
            if known.counted:
                self._ghosts.give(known.source, now)
        else:
            known.due = now + jitter(known.pause)
            known.pause = min(2 * known.pause, defaults.DIAL_PAUSE[1])

    def put_off(self, peer: PeerId) -> None:
        """Delay the next dial of a peer that misbehaved, to begin after its link has ended."""
        if known := self._known.get(peer):
            known.pause = defaults.DIAL_PAUSE[1]

    def _waiting(self, *, lost: bool) -> Iterator[tuple[PeerId, KnownMember]]:
        """Return the members that may be dialled once they are due.

        If `lost`, considers only members that have lost their link. A node with enough links looks
        for these alone, so that its rounds do not look at all members.
        """
        live, counts, table = self.live, self._counts, self._known
        return (
            (peer, table[peer])
            for peer in (self._lost if lost else table)
            if not table[peer].dialling and peer not in live and counts(peer)
        )

    def _forget(self, now: float) -> None:
        if now < self._forget_at:
            return
        self._forget_at = now + defaults.FORGET_LOOK
        oldest, live = now - defaults.FORGET, self.live
        gone = [p for p, known in self._known.items() if known.heard < oldest and p not in live]
        for peer in gone:
            self._drop(peer)


def _share(one: KnownMember, other: KnownMember) -> bool:
    """Return whether two members publish an address that only one machine can have."""
    shared = one.places & other.places
    if not shared or min(one.reach, other.reach) > Nearness.PUBLIC:
        return bool(shared)
    return any(is_public(host) for host, _ in shared)


def _places(record: MemberRecord) -> frozenset[tuple[str, int]]:
    """Return the addresses, as (host, port), at which a member itself listens.

    Addresses at relays are left out, because many members share them.
    """
    found = []
    for text in record.addresses:
        with suppress(TransportError):
            address = Address.parse(text)
            if address.relay is None:
                found.append((address.host, address.port))
    return frozenset(found)
