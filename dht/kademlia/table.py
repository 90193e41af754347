"""Routing table: buckets of contacts that answered, by their distance from this node.

The buckets are those of Kademlia (Maymounkov and Mazières 2002, sections 2.2 and 4.1), where old
contacts stay. Further limits prevent the owner of many addresses from filling them. No I/O. Times
are seconds of the host's monotonic clock.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from statistics import median
from typing import Final

import msgpack

from ...transport.decoding import decode
from ...transport.errors import Undecodable
from ...transport.identity import PeerId
from .. import defaults
from ..errors import BadMessage
from ..records.contact import Contact, read_contact
from ..records.key import SPACE, Key, key_at, node_key, point

_BITS: Final = 256
_WITNESS: Final = 60.0  # seconds without any reply, after which failures do not count
_DUMPED: Final = 400  # most contacts in a dump


@dataclass(slots=True)
class _KnownContact:
    """A contact, the time of its last reply, and its failed requests in a row."""

    contact: Contact
    heard: float
    failures: int = 0


@dataclass(slots=True)
class _Bucket:
    """Contacts in the table (`entries`), and contacts that may replace them (`waiting`).

    Both are in the order of their last reply. `looked` is the time of the last look-up in the range
    of the bucket, None if there was none.
    """

    entries: dict[PeerId, _KnownContact] = field(default_factory=dict)
    waiting: dict[PeerId, _KnownContact] = field(default_factory=dict)
    looked: float | None = None


class Table:
    """Routing table of one node. `own` is the key of this node."""

    def __init__(
        self,
        own: Key,
        entropy: Callable[[int], bytes],
        *,
        subnet_limits: bool = True,
        spread: bool = True,
    ) -> None:
        """Create an empty table. Tests can switch two defences off.

        `subnet_limits` limits the contacts of one public network. `spread` distributes the contacts
        of a bucket over its range.
        """
        self._own = point(own)
        self._entropy = entropy
        self._limited = subnet_limits
        self._spread = spread
        self.buckets: dict[int, _Bucket] = {}
        self.networks: Counter[str] = Counter()
        self._heard = -_WITNESS
        self._samples: dict[int, float] = {}
        self._size: float | None = None

    def __len__(self) -> int:
        """Return the number of contacts, without those that wait."""
        return sum(len(bucket.entries) for bucket in self.buckets.values())

    def __contains__(self, peer: PeerId) -> bool:
        """Return whether a peer is in the table. Peers that wait do not count."""
        return peer in self._bucket(peer).entries

    def contact(self, peer: PeerId) -> Contact | None:
        """Return the contact of a peer, or None if the peer is not in the table."""
        for bucket in self.buckets.values():
            if (entry := bucket.entries.get(peer)) is not None:
                return entry.contact
        return None

    def contacts(self) -> Iterator[Contact]:
        """Yield all contacts, without those that wait."""
        for bucket in self.buckets.values():
            for entry in bucket.entries.values():
                yield entry.contact

    def rows(self) -> list[tuple[int, int, int, int]]:
        """Return a row for each bucket that is not empty.

        A row has the number of leading bits that the keys share with this node's key, the number of
        contacts, how many of these are publicly reachable, and the number of contacts that wait.
        """
        return [
            (
                index,
                len(bucket.entries),
                sum(bool(entry.contact.networks) for entry in bucket.entries.values()),
                len(bucket.waiting),
            )
            for index, bucket in sorted(self.buckets.items())
            if bucket.entries or bucket.waiting
        ]

    # Results of requests.

    def answered(self, contact: Contact, now: float) -> bool:
        """Record that a serving contact answered.

        Return whether the contact is in the table now.
        """
        if contact.point == self._own:
            return False
        self._heard = now
        bucket = self.buckets.setdefault(self._index(contact.point), _Bucket())
        old = bucket.entries.pop(contact.peer, None)
        if old is not None and old.failures == 0 and old.contact.networks == contact.networks:
            bucket.entries[contact.peer] = _KnownContact(
                contact, now
            )  # fast path: only the order changes
            return True
        self._size = None
        if old is not None:
            self.networks.subtract(old.contact.networks)
        bucket.waiting.pop(contact.peer, None)
        entry = _KnownContact(contact, now)
        if self._admit(bucket, entry):
            return True
        bucket.waiting[contact.peer] = entry
        if len(bucket.waiting) > defaults.K:
            del bucket.waiting[next(iter(bucket.waiting))]
        return False

    def failed(self, peer: PeerId, now: float) -> None:
        """Record a failed request to a peer. After several failures, the peer is evicted.

        If no contact has answered for a minute, the failure does not count, because this node's own
        network is probably down.
        """
        if now - self._heard > _WITNESS:
            return
        bucket = self._bucket(peer)
        bucket.waiting.pop(peer, None)
        entry = bucket.entries.get(peer)
        if entry is None:
            return
        entry.failures += 1
        limit = defaults.FAILURES if bucket.waiting else defaults.FAILURES_LAST
        if entry.failures >= limit:
            self._remove(bucket, peer)
            self._promote(bucket)

    def forget(self, peer: PeerId) -> None:
        """Remove a peer that has stopped serving or has lied."""
        bucket = self._bucket(peer)
        bucket.waiting.pop(peer, None)
        if peer in bucket.entries:
            self._remove(bucket, peer)
            self._promote(bucket)

    def _bucket(self, peer: PeerId) -> _Bucket:
        """Return the bucket of a peer, or a new empty one if it does not exist."""
        return self.buckets.get(self._index(point(node_key(peer)))) or _Bucket()

    def _admit(self, bucket: _Bucket, entry: _KnownContact) -> bool:
        """Add a contact to a bucket if the limits allow it. Return whether it was added."""
        if self._crowded(bucket, entry.contact):
            return False
        if len(bucket.entries) >= defaults.K and not self._evict_for(bucket, entry):
            return False
        bucket.entries[entry.contact.peer] = entry
        self.networks.update(entry.contact.networks)
        return True

    def _crowded(self, bucket: _Bucket, contact: Contact) -> bool:
        """Return whether a network of the contact has reached its limit."""
        if not self._limited:
            return False
        here = Counter(name for entry in bucket.entries.values() for name in entry.contact.networks)
        return any(
            here[name] >= defaults.SUBNET_PER_BUCKET
            or self.networks[name] >= defaults.SUBNET_PER_TABLE
            for name in contact.networks
        )

    def _evict_for(self, bucket: _Bucket, entry: _KnownContact) -> bool:
        """Evict a contact from a full bucket in favour of `entry`. Return whether one was evicted.

        It evicts a failing contact if there is one. Otherwise, if `entry` is publicly reachable, it
        evicts a contact that is not. Otherwise, it evicts one in the most crowded part of the
        bucket's range.
        """
        failing = [e for e in bucket.entries.values() if e.failures >= defaults.FAILURES]
        indirect = [e for e in bucket.entries.values() if not e.contact.networks]
        leaving = (
            failing
            or (indirect if entry.contact.networks else [])
            or self._crowded_part(bucket, entry)
        )
        if not leaving:
            return False
        self._remove(bucket, leaving[0].contact.peer)
        return True

    def _crowded_part(self, bucket: _Bucket, entry: _KnownContact) -> list[_KnownContact]:
        """Return the contacts in the most crowded part of the bucket's range.

        The latest to answer come first. Returns [] if evicting one in favour of `entry` would not
        balance the parts. Without this rule, an attacker could generate many identities next to one
        key, and fill the bucket with them.
        """
        if not self._spread:
            return []
        parts: dict[int, list[_KnownContact]] = {}
        for each in bucket.entries.values():
            parts.setdefault(self._part(each.contact), []).append(each)
        fullest = max(parts.values(), key=len)
        here = len(parts.get(self._part(entry.contact), []))
        return fullest[::-1] if len(fullest) > here + 1 else []

    def _part(self, contact: Contact) -> int:
        """Return the number of the part of its bucket's range in which a contact lies."""
        width = _BITS - 1 - self._index(contact.point)
        return contact.point >> max(width - defaults.SPREAD_BITS, 0)

    def _remove(self, bucket: _Bucket, peer: PeerId) -> None:
        """Remove a contact from a bucket."""
        self._size = None
        entry = bucket.entries.pop(peer)
        self.networks.subtract(entry.contact.networks)

    def _promote(self, bucket: _Bucket) -> None:
        """Move the latest waiting contact that the limits allow into the table."""
        for entry in reversed(list(bucket.waiting.values())):
            if self._admit(bucket, entry):
                del bucket.waiting[entry.contact.peer]
                self._reorder(bucket)
                return

    def _reorder(self, bucket: _Bucket) -> None:
        """Sort the contacts of a bucket by their last reply."""
        bucket.entries = dict(sorted(bucket.entries.items(), key=lambda item: item[1].heard))

    # Queries.

    def nearest(self, place: Key | int, count: int = defaults.K) -> list[Contact]:
        """Return up to `count` contacts nearest to a position, nearest first.

        Contacts whose latest requests have failed are left out.
        """
        at = place if isinstance(place, int) else point(place)
        alive = (
            entry.contact
            for bucket in self.buckets.values()
            for entry in bucket.entries.values()
            if entry.failures < defaults.FAILURES
        )
        return nsmallest(count, alive, key=lambda contact: contact.point ^ at)

    def to_check(self, now: float, quiet: float) -> list[Contact]:
        """Return the contacts to ping: in each bucket, the contact that was silent for longest.

        Buckets without waiting contacts are left out, and so are contacts that answered in the last
        `quiet` seconds.
        """
        oldest = (
            next(iter(bucket.entries.values()))
            for bucket in self.buckets.values()
            if bucket.waiting and bucket.entries
        )
        return [entry.contact for entry in oldest if now - entry.heard > quiet]

    def refresh_due(self, now: float) -> list[Key]:
        """Return a random key in the range of each bucket that had no look-up in the last hour."""
        if not self.buckets:
            return []
        return [
            self._random_key(index)
            for index in range(self._deepest() + 1)
            if (bucket := self.buckets.setdefault(index, _Bucket())).looked is None
            or now - bucket.looked > defaults.REFRESH
        ]

    def looked(self, key: Key, now: float) -> None:
        """Record that a look-up of a key has ended."""
        if point(key) != self._own:
            self.buckets.setdefault(self._index(point(key)), _Bucket()).looked = now

    def _deepest(self) -> int:
        """Return the index of the last bucket that is at least half full.

        The buckets after it have only this node's neighbours.
        """
        full = [n for n, bucket in self.buckets.items() if len(bucket.entries) >= defaults.K // 2]
        return max(full, default=0)

    def _index(self, at: int) -> int:
        """Return the index of the bucket for a position.

        The index is the number of leading bits that the position shares with this node's key.
        """
        return _BITS - (at ^ self._own).bit_length()

    def _random_key(self, index: int) -> Key:
        """Return a random key in the range of a bucket."""
        width = _BITS - 1 - index
        tail = int.from_bytes(self._entropy(32)) % (1 << width)
        return key_at((((self._own >> width) ^ 1) << width) | tail)

    # Size of the network.

    def sample(self, key: Key, found: Sequence[Contact]) -> None:
        """Estimate the density of nodes around a key from the nearest contacts that answered.

        The estimate is stored relative to the density around this node, which is always known. It
        therefore stays valid while the network grows. Each 256th of the key space counts as one
        sample. An attacker that generates identities next to one key therefore changes only one
        sample, and hardly the median.
        """
        if len(found) < defaults.K:
            return
        around = self.nearest(self._own, defaults.K)
        if len(around) < defaults.K:
            return
        self._size = None
        part = key[0]
        self._samples.pop(part, None)
        self._samples[part] = _density(point(key), found) / _density(self._own, around)
        while len(self._samples) > defaults.SAMPLES:
            del self._samples[next(iter(self._samples))]

    @property
    def size(self) -> float:
        """Estimated number of serving nodes, including this one."""
        if self._size is None:
            self._size = self._estimate()
        return self._size

    def _estimate(self) -> float:
        """Return a new estimate of the number of serving nodes."""
        known = len(self) + 1.0
        around = self.nearest(self._own, defaults.K)
        if len(around) < defaults.K:
            return known
        return max(known, _density(self._own, around) * median([1.0, *self._samples.values()]))

    def radius(self, nodes: float = defaults.REGION_NODES) -> int:
        """Return the distance from a key within which `nodes` nodes are expected."""
        return min(int(SPACE * (nodes / self.size)), SPACE)

    # Persistence.

    def dump(self) -> bytes:
        """Encode the contacts for the next start, the latest to answer first."""
        entries = [e for bucket in self.buckets.values() for e in bucket.entries.values()]
        entries.sort(key=lambda entry: -entry.heard)
        dumped: bytes = msgpack.packb([entry.contact.packed for entry in entries[:_DUMPED]])
        return dumped

    @staticmethod
    def load(dumped: bytes) -> list[Contact]:
        """Decode the output of `dump`. Returns no contacts if the bytes are damaged.

        The contacts must be asked before they are used: only a contact that answers enters the
        table.
        """
        try:
            listed = decode(dumped, limit=_DUMPED * (defaults.CONTACT_BYTES + 8), items=_DUMPED)
            return [read_contact(each) for each in listed if type(each) is bytes]
        except (Undecodable, TypeError, BadMessage):
            return []


def _density(at: int, found: Iterable[Contact]) -> float:
    """Estimate the number of nodes, assuming that the density around `at` is the same everywhere.

    `found` are the contacts around `at`. With d the distance of the K-th nearest as a share of the
    key space, (K - 1) / d is an unbiased estimator if positions are uniformly random.
    """
    distances = nsmallest(defaults.K, (contact.point ^ at for contact in found))
    return (defaults.K - 1) * SPACE / max(distances[-1], 1)


def random_rank(nonce: bytes, key: bytes) -> int:
    """Return a pseudorandom rank of a key, which cannot be predicted without the nonce."""
    return int.from_bytes(hashlib.sha256(nonce + key).digest()[:8])
