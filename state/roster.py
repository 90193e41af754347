"""The records this node knows: what it takes in, whom it believes, whom to dial next.

Sans-I/O: sealed bytes and `now` in, records and addresses out. `live` are the peers with a link;
their records always have room. Others are hearsay of some linked peer, within its quota, and are
dropped after a while without a link.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from math import inf
from typing import NamedTuple

from ..transport.address import Address
from ..transport.errors import TransportError
from ..transport.identity import PeerId
from ..transport.place import Nearness, is_public
from ..transport.rates import Bucket, Rate, Rates
from . import defaults
from .errors import BadRecord, Forged
from .reach import dialable
from .record import MemberRecord, open_record, peek


@dataclass(slots=True)
class Known:
    """A record and what this node holds of its author."""

    record: MemberRecord
    sealed: bytes
    reach: Nearness
    source: PeerId  # who told of it
    pace: Bucket
    heard: float  # when it last had a link, ours or somebody's who told of it
    due: float  # when to dial
    pause: float = defaults.DIAL_PAUSE[0]  # after the next failure
    tag: "Tag" = b""  # its author's
    rank: bytes = b""  # in which order this node dials those who are due together
    dialling: bool = False
    met: bool = False  # this node has had a link with it
    counted: bool = False  # its dial counts against `source` unless it succeeds
    places: frozenset[tuple[str, int]] = frozenset()  # IP addresses and ports it publishes
    mark: int = 0  # `mark_of` the sealed bytes
    lost: bool = False  # its link has ended


class Offer(NamedTuple):
    """What a node tells of a record it could send: its number, how near it came from, and for
    how many seconds, rounded up, its author had no link of which the node knows.

    The age travels with the record, so that who is gone is forgotten by all at about the same
    time, however long they tell each other.
    """

    seq: int
    reach: Nearness
    age: int


def mark_of(sealed: bytes) -> int:
    """Return the eight bytes that a record adds to the sums that nodes compare."""
    return int.from_bytes(sha256(sealed).digest()[: defaults.SUM_BYTES])


Tag = bytes
"""The first 8 bytes of SHA-256 of a peer id. Messages name the author of a record by it, since peer
ids would be most of them. Two identities with one tag delay each other's records, and no others."""


def tag_of(peer: PeerId) -> Tag:
    return sha256(peer.encode()).digest()[: defaults.TAG_BYTES]


def _bucket_of(tag: Tag) -> int:
    """Return the bucket that an author's record belongs to."""
    return tag[0] % defaults.SUMS


class Roster:
    """All records but one's own."""

    def __init__(self, own: PeerId) -> None:
        self._own = own
        self.tag = tag_of(own)
        self._known: dict[PeerId, Known] = {}
        self._by_tag: dict[Tag, Known] = {}
        self._by_bytes: dict[bytes, Known] = {}  # by the sealed record
        self.live: dict[PeerId, None] = {}  # in order of their links
        self.reclaimed: int | None = None  # a sequence number of our own that others know
        self._ghosts = Rates(Rate(*defaults.GHOSTS))  # failed dials, by the source of the record
        self.counts: Callable[[PeerId], bool] = lambda peer: True
        """Whether somebody may be a member, and is dialled."""

    # What is known.

    def members(self) -> dict[PeerId, MemberRecord]:
        """The live ones whose record is known."""
        return {peer: self._known[peer].record for peer in self.live if peer in self._known}

    def known(self, peer: PeerId) -> Known | None:
        return self._known.get(peer)

    def tagged(self, tag: Tag) -> Known | None:
        """Return what is known of the author with this tag."""
        return self._by_tag.get(tag)

    def authors(self) -> frozenset[PeerId]:
        """Whose records are known."""
        return frozenset(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def offers(self, now: float, authors: Iterable[PeerId] | None = None) -> dict[Tag, Offer]:
        """What this node can tell, of everybody or of some: live members first."""
        if authors is None:
            authors = dict.fromkeys((*self.live, *self._known))
        return {
            known.tag: Offer(known.record.seq, known.reach, self._age(peer, known, now))
            for peer in authors
            if (known := self._known.get(peer)) is not None
        }

    def sums(self, own: int) -> bytes:
        """Return the XOR of the marks of all records, and of `own`, by bucket."""
        sums = [0] * defaults.SUMS
        for known in self._known.values():
            sums[_bucket_of(known.tag)] ^= known.mark
        sums[_bucket_of(self.tag)] ^= own
        return b"".join(each.to_bytes(defaults.SUM_BYTES) for each in sums)

    def differing(self, one: bytes, other: bytes) -> list[PeerId]:
        """Return the known authors in the buckets where two lists of sums differ."""
        size = defaults.SUM_BYTES
        cut = [slice(size * number, size * (number + 1)) for number in range(defaults.SUMS)]
        differ = [one[part] != other[part] for part in cut]
        return [peer for peer, known in self._known.items() if differ[_bucket_of(known.tag)]]

    def offer(self, peer: PeerId, now: float) -> Offer:
        """What this node can tell of one whom it knows."""
        known = self._known[peer]
        return Offer(known.record.seq, known.reach, self._age(peer, known, now))

    def _age(self, peer: PeerId, known: Known, now: float) -> int:
        return 0 if peer in self.live else math.ceil(now - known.heard)

    def at(self, host: str, port: int) -> list[PeerId]:
        """Who publishes that IP address and port as its own."""
        return [peer for peer, known in self._known.items() if (host, port) in known.places]

    def neighbours(self, peer: PeerId) -> list[PeerId]:
        """Return the members that publish the same address as this one.

        Either it is one machine that has changed its identity, or one of them lies. Many homes use
        the same private addresses, so those count only between members that are both near.
        """
        if (own := self._known.get(peer)) is None:
            return []
        return [p for p, known in self._known.items() if p != peer and _share(own, known)]

    def has(self, tag: Tag, seq: int) -> bool:
        """Whether a record of that author is known that is as late."""
        known = self._by_tag.get(tag)
        return known is not None and known.record.seq >= seq

    def lacking(
        self, offers: Mapping[Tag, Offer], near: Nearness, now: float, own_seq: int
    ) -> list[Tag]:
        """Whose records to ask for; one's own where a later one than ours goes about. Of the
        others it is noted how near and how alive the teller has them."""
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
        """The record, if it is news, of a member that had a link `age` seconds ago.

        Cheap checks come first, the signature last.

        Raises BadRecord where `source` is to blame: it wrote or handed on what nobody may.
        """
        if (known := self._by_bytes.get(sealed)) is not None:  # most come by many ways
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
            return None  # its author's mistake, or a later version's custom
        self._store(record, sealed, source, reach, now, now - age)
        return record

    @staticmethod
    def _heard_again(known: Known, reach: Nearness, heard: float) -> None:
        known.reach = max(known.reach, reach)
        known.heard = max(known.heard, heard)

    def _drop(self, peer: PeerId) -> None:
        known = self._known.pop(peer)
        del self._by_bytes[known.sealed]
        if self._by_tag.get(known.tag) is known:
            del self._by_tag[known.tag]

    def _reclaim(self, sealed: bytes) -> None:
        """Only our own key can have made it: this node before a restart with a clock that was
        ahead. Our next record must count as later."""
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
        """How many authors without a link each peer told of."""
        return Counter(known.source for peer, known in self._known.items() if peer not in self.live)

    def _make_room(self, source: PeerId | None) -> bool:
        """Drop the oldest hearsay of who told most, unless that is `source` itself."""
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
            pace = Bucket(Rate(*defaults.AUTHOR_UPDATES), now)
            rank = sha256(f"{self._own} {record.peer}".encode()).digest()
            known = Known(record, sealed, reach, source, pace, heard, due, rank=rank)
            known.places, known.mark = _places(record), mark_of(sealed)
            known.tag = tag_of(record.peer)
            self._known[record.peer] = self._by_bytes[sealed] = known
            self._by_tag.setdefault(known.tag, known)
            return
        if record.addresses != known.record.addresses:
            known.due = min(known.due, now)
        del self._by_bytes[known.sealed]
        self._by_bytes[sealed] = known
        known.record, known.sealed, known.places = record, sealed, _places(record)
        known.mark = mark_of(sealed)
        known.heard = max(known.heard, heard)
        known.reach = max(known.reach, reach)

    # Links.

    def linked(self, peer: PeerId, reach: Nearness) -> None:
        """A link came up."""
        self.live[peer] = None
        if known := self._known.get(peer):
            known.reach = max(known.reach, reach)
            known.pause = defaults.DIAL_PAUSE[0]
            known.met, known.lost = True, False

    def unlinked(self, peer: PeerId, now: float, *, searched: bool = False) -> None:
        """Forget the link, which answers no more; its peer is dialled again for a while.

        `searched`: not yet, because the link is still there and looks for a path itself.
        """
        self.live.pop(peer, None)
        if known := self._known.get(peer):
            known.heard = now
            known.due = inf if searched else now + known.pause
            known.lost = True

    def answered(self, peer: PeerId, now: float) -> None:
        """Somebody who has a link with it brought a proof that it answers."""
        if known := self._known.get(peer):
            known.heard = max(known.heard, now)

    # Dialling.

    def next_dials(
        self, now: float, most: int, lost: int = 0
    ) -> list[tuple[PeerId, list[Address]]]:
        """Return up to `most` members to dial now, with addresses; end each with `dialled`.

        Up to `lost` further members that have lost their link are dialled, however many links
        there are: after a cut each side has links enough, and would never look for the other.

        Each node has an order of its own among the members that are due, so that a swarm too large
        for a full mesh becomes a random graph. Failed dials are limited by the peer that handed on
        the record.
        """
        self._forget(now)
        found: list[tuple[PeerId, list[Address]]] = []
        if most <= 0 and lost <= 0:
            return found
        due = [item for item in self._waiting() if item[1].due <= now]
        for peer, known in sorted(due, key=lambda item: item[1].rank):
            if most <= 0 and not (known.lost and lost > 0):
                continue
            addresses = dialable(known.record.addresses, peer, known.reach)
            if not addresses:
                known.due = inf  # until it tells of another address
            elif not known.met and not self._ghosts.take(known.source, now):
                known.due = now + defaults.GHOST_WAIT
            else:
                known.dialling, known.counted = True, not known.met
                found.append((peer, addresses[: defaults.DIAL_ADDRESSES]))
                most, lost = (most, lost - 1) if known.lost and lost > 0 else (most - 1, lost)
        return found

    def where(self, peer: PeerId) -> list[Address]:
        """Where a peer may be dialled."""
        known = self._known.get(peer)
        return [] if known is None else dialable(known.record.addresses, peer, known.reach)

    def next_due(self, *, lost: bool = False) -> float:
        """Return when the next dial is due; with `lost`, of members that have lost their link."""
        waiting = (known.due for _, known in self._waiting() if known.lost or not lost)
        return min(waiting, default=inf)

    def dialled(self, peer: PeerId, now: float, jitter: Callable[[float], float]) -> None:
        """A dial ended. Without a link the next is later, each time twice as late."""
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
        """It misbehaved: once its link is gone, it is dialled late."""
        if known := self._known.get(peer):
            known.pause = defaults.DIAL_PAUSE[1]

    def _waiting(self) -> Iterator[tuple[PeerId, Known]]:
        """Who may be dialled. Looked through often, so it is one loop."""
        live, counts = self.live, self.counts
        return (
            (peer, known)
            for peer, known in self._known.items()
            if not known.dialling and peer not in live and counts(peer)
        )

    def _forget(self, now: float) -> None:
        oldest, live = now - defaults.FORGET, self.live
        gone = [p for p, known in self._known.items() if known.heard < oldest and p not in live]
        for peer in gone:
            self._drop(peer)


def _share(one: Known, other: Known) -> bool:
    """Return whether two members publish one address that means one machine."""
    shared = one.places & other.places
    if not shared or min(one.reach, other.reach) > Nearness.PUBLIC:
        return bool(shared)
    return any(is_public(host) for host, _ in shared)


def _places(record: MemberRecord) -> frozenset[tuple[str, int]]:
    """Where it listens itself: a relay's address is many others', too."""
    found = []
    for text in record.addresses:
        with suppress(TransportError):
            address = Address.parse(text)
            if address.relay is None:
                found.append((address.host, address.port))
    return frozenset(found)
