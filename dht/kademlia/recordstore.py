"""Record store: records of other authors, whose keys are near this node's own key.

It accepts only records in this node's part of the key space, and has limits per author, per network
and per key, so that no author and no network can fill it. If it is full, the network that uses the
most space loses its record that is farthest from this node's key. No I/O. Times are seconds of the
host's monotonic clock, except `wall`, which is in seconds since 1970.
"""

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil
from typing import TypeVar

from ...transport.identity import PeerId, public_key_of
from .. import defaults
from ..records.key import SPACE, Key, point
from ..records.record import Record, time_code
from ..shares import Shares
from .messages import Aged
from .table import random_rank

_OVERHEAD = 512  # bytes of memory that an entry takes in addition to its sealed record
_Slot = tuple[PeerId, str]
N = TypeVar("N", bound=str)


@dataclass(slots=True, eq=False)
class _StoredRecord:
    """A stored record without its decoded body.

    The decoded body of a blob record with many runs takes thirty times as much memory as the sealed
    bytes.
    """

    author: PeerId
    key: Key
    slot: str
    kind: str
    made: int
    ttl: int
    gone: bool
    sealed: bytes
    network: str  # of the sender; "" if it is in a local network
    distance: int
    serial: int  # distinguishes records of equal distance
    rank: int  # pseudorandom: decides which records of a crowded key stay
    heard: float  # when its author last announced it
    until: float  # when it expires
    last: float  # latest possible `until`, if no later record arrives
    ends: int = 0  # its key in `RecordStore._ends`

    @property
    def size(self) -> int:
        """Bytes that the entry counts as: the sealed record and `_OVERHEAD`."""
        return len(self.sealed) + _OVERHEAD


class RecordStore:
    """Records of other authors. `radius` is the largest XOR distance of their keys from our own."""

    def __init__(
        self, own: Key, entropy: Callable[[int], bytes], *, limit: int = defaults.STORE_BYTES
    ) -> None:
        """Create an empty store. `limit` is the most bytes of all records together."""
        self.radius: float = SPACE
        self._own = point(own)
        self._nonce = entropy(16)
        self.limit = limit
        self._author_limit = limit * defaults.STORE_AUTHOR // defaults.STORE_BYTES
        self._subnet_limit = limit * defaults.STORE_SUBNET // defaults.STORE_BYTES
        self._keys: dict[Key, dict[_Slot, _StoredRecord]] = {}
        self.shares = Shares()  # bytes of each network
        """Bytes of each network."""
        self._far: dict[
            str, list[tuple[int, int, _StoredRecord]]
        ] = {}  # by network, sorted by distance
        self._authors: Counter[PeerId] = Counter()  # bytes of each author
        self._ends: dict[int, dict[_StoredRecord, None]] = {}  # expiry / `ENDS_TOGETHER` -> records
        self._next: list[int] = []  # heap of the keys of `_ends`
        self.bytes = 0
        self._count = 0
        self._serial = 0
        self.turn = 0

    def __len__(self) -> int:
        return self._count

    # Storing.

    def put(
        self, record: Record, *, sender: PeerId, network: str, age: float, now: float, wall: float
    ) -> str:
        """Store a record and return "", or return a code that says why it was not stored.

        The codes are `expired`, `far-future`, `not-near`, `older`, `quota`, `full`. `network` is
        the network of the sender, "" if it is in a local network. `age` is the age of the record in
        seconds, as the sender claims. It is ignored if the sender is the author, whose record
        counts as new. It is raised to the least value that the wall clocks allow for any other
        sender. An unchanged record lives longer only if its author sends it again, and never longer
        than `LIVES` times its ttl.
        """
        self.expire(now)
        aged = 0.0
        if sender != record.author:
            aged = max(age, wall - record.made / 1000 - defaults.CLOCKS_APART, 0.0)
        code = "expired" if aged >= record.ttl else time_code(record, wall)
        if not code and point(record.key) ^ self._own > self.radius:
            code = "not-near"
        if code:
            return code
        slots = self._keys.get(record.key, {})
        old = slots.get((record.author, record.slot))
        if old is not None and old.until <= now:
            self._remove(old)
            old = None
        if old is not None and old.made >= record.made:
            return self._again(old, record, sender, network, now)
        return self._fit(self._entry(record, network, now, aged), old)

    def _entry(self, record: Record, network: str, now: float, aged: float) -> _StoredRecord:
        """Return the entry for a record that arrived at `now`, and was `aged` seconds old then."""
        # A withdrawal is stored until no node would accept the record that it withdraws.
        longer = defaults.GONE_LONGER if record.gone else 0.0
        self._serial += 1
        return _StoredRecord(
            author=record.author,
            key=record.key,
            slot=record.slot,
            kind=record.body.kind,
            made=record.made,
            ttl=record.ttl,
            gone=record.gone,
            sealed=record.sealed,
            network=network,
            distance=point(record.key) ^ self._own,
            serial=self._serial,
            rank=random_rank(self._nonce, public_key_of(record.author) + record.key),
            heard=now - aged,
            until=now - aged + record.ttl + longer,
            last=now + defaults.LIVES * record.ttl + longer,
        )

    def _again(
        self, old: _StoredRecord, record: Record, sender: PeerId, network: str, now: float
    ) -> str:
        """Process a record that is not later than the stored one.

        Return "" if both are equal, or `older`. If the author of the stored record has sent it
        again, the stored record lives longer.
        """
        if old.sealed != record.sealed:
            return "older"
        if sender == record.author:
            old.heard = now
            old.until = max(old.until, min(now + record.ttl, old.last))  # `expire` requeues it
            self._move(old, network)
        return ""

    def _move(self, entry: _StoredRecord, network: str) -> None:
        """Count a record for the network from which its author sent it.

        Otherwise a node that sent the record before the author could evict it by filling the quota
        of its own network.
        """
        if network != entry.network and self._allowed(network, entry.size):
            self._remove(entry)
            entry.network = network
            self._add(entry)

    def _allowed(self, network: str, more: int) -> bool:
        """Return whether a network may use `more` further bytes."""
        return not network or self.shares[network] + more <= self._subnet_limit

    def _fit(self, entry: _StoredRecord, old: _StoredRecord | None) -> str:
        """Evict other records if an entry needs space, and add it. Return "", or `quota` or `full`.

        `old` is the record that it replaces in its slot, or None.
        """
        more = entry.size - (old.size if old is not None else 0)
        by_network = entry.size - (old.size if old and old.network == entry.network else 0)
        if self._authors[entry.author] + more > self._author_limit or not self._allowed(
            entry.network, by_network
        ):
            return "quota"
        evicted = [old] if old is not None else self._evicted_under_key(entry)
        further = [] if entry in evicted else self._evicted_for_space(entry, evicted)
        if entry in evicted or further is None:
            return "full"
        for each in (*evicted, *further):
            self._remove(each)
        self._add(entry)
        return ""

    def _evicted_under_key(self, entry: _StoredRecord) -> list[_StoredRecord]:
        """Return the record to evict under the key of `entry`: none, one, or `entry` itself.

        If the author has used too many slots, it is the author's oldest record. If the key has too
        many records, it is one of the network or the author with the most of them. It is chosen by
        rank, which is random and different on each node, so that not all replicas evict the same
        record.
        """
        here = [*self._keys.get(entry.key, {}).values(), entry]
        own = [each for each in here if each.author == entry.author]
        if len(own) > defaults.SLOTS.get(entry.kind, defaults.SLOTS_OTHER):
            return [min(own, key=lambda each: each.made)]
        if len(here) <= defaults.STORE_KEY:
            return []
        return [max(self._ranked(here), key=lambda ranked: ranked[:3])[3]]

    @staticmethod
    def _ranked(here: Sequence[_StoredRecord]) -> Iterator[tuple[int, int, int, _StoredRecord]]:
        """Yield (group position, author position, random rank, entry) for each entry of a key.

        The entry with the highest values is evicted. The author position counts the entries of the
        same author up to this one, in the order of the random rank. The group position counts those
        of the same network or author, whichever is more.
        """
        networks: Counter[str] = Counter()
        authors: Counter[PeerId] = Counter()
        for entry in sorted(here, key=lambda each: (each.rank, -each.made)):
            if entry.network:
                networks[entry.network] += 1
            authors[entry.author] += 1
            group = max(networks[entry.network], authors[entry.author])
            yield group, authors[entry.author], entry.rank, entry

    def _evicted_for_space(
        self, entry: _StoredRecord, evicted: Sequence[_StoredRecord]
    ) -> list[_StoredRecord] | None:
        """Return the records to evict besides `evicted` so that `entry` fits.

        Each is the farthest record of the network that uses the most space at that moment, counting
        `entry`. Returns None if `entry` itself would be that record, and should not be stored.
        """
        going = list(evicted)
        needed = self.bytes + entry.size - self.limit - sum(each.size for each in evicted)
        changes = Counter({entry.network: entry.size})
        for each in evicted:
            changes[each.network] -= each.size
        while needed > 0:
            network = self.shares.largest(entry.network, changes)
            farthest = self._farthest(network, going)
            own = network == entry.network
            if farthest is None or (own and farthest.distance <= entry.distance):
                return None
            going.append(farthest)
            needed -= farthest.size
            changes[network] -= farthest.size
        return going[len(evicted) :]

    def _farthest(self, network: str, going: Collection[_StoredRecord]) -> _StoredRecord | None:
        """Return the farthest record of a network that is not in `going`, or None."""
        listed = reversed(self._far.get(network, ()))
        return next((entry for _, _, entry in listed if entry not in going), None)

    def _add(self, entry: _StoredRecord) -> None:
        """Add an entry to all indexes."""
        self._keys.setdefault(entry.key, {})[entry.author, entry.slot] = entry
        insort(self._far.setdefault(entry.network, []), (entry.distance, entry.serial, entry))
        self._count += 1
        self._authors[entry.author] += entry.size
        self.shares.change(entry.network, entry.size)
        self.bytes += entry.size
        self._end_at(entry)

    def _remove(self, entry: _StoredRecord) -> None:
        """Remove an entry from all indexes."""
        slots = self._keys[entry.key]
        del slots[entry.author, entry.slot]
        self._count -= 1
        if not slots:
            del self._keys[entry.key]
        far = self._far[entry.network]
        del far[bisect_left(far, (entry.distance, entry.serial, entry))]
        if not far:
            del self._far[entry.network]
        self.bytes -= entry.size
        _take(self._authors, entry.author, entry.size)
        self.shares.change(entry.network, -entry.size)
        if (together := self._ends.get(entry.ends)) is not None:
            together.pop(entry, None)

    # Expiry.

    def _end_at(self, entry: _StoredRecord) -> None:
        """Schedule the expiry of an entry."""
        entry.ends = ceil(entry.until / defaults.ENDS_TOGETHER)
        if entry.ends not in self._ends:
            self._ends[entry.ends] = {}
            heappush(self._next, entry.ends)
        self._ends[entry.ends][entry] = None

    def expire(self, now: float) -> bool:
        """Remove up to `EXPIRED_AT_ONCE` expired records.

        Return whether no expired record is left.
        """
        for _ in range(defaults.EXPIRED_AT_ONCE):
            if not self._next or self._next[0] * defaults.ENDS_TOGETHER > now:
                return True
            ending = self._ends[self._next[0]]
            if not ending:
                del self._ends[heappop(self._next)]
                continue
            entry, _ = ending.popitem()
            if entry.until > now:
                self._end_at(entry)  # meanwhile, its author has sent it again
            else:
                self._remove(entry)
        return False

    # Finding.

    def find(
        self,
        keys: Sequence[Key],
        now: float,
        *,
        most: int = defaults.K,
        kinds: Collection[str] = (),
        limit: int = defaults.MESSAGE_RECORDS,
    ) -> tuple[tuple[Aged, ...], ...]:
        """Return up to `most` records and up to `most` withdrawals for each key.

        Only records of the given kinds are returned, or all if `kinds` is empty. The keys share
        `limit` bytes fairly. The order rotates with each call, so that no record is always the last
        one.
        """
        self.expire(now)
        self.turn += 1
        queues = [self._chosen(key, now, most, kinds) for key in keys]
        found: list[list[Aged]] = [[] for _ in keys]
        for rank in range(max(map(len, queues), default=0)):
            for place, queue in enumerate(queues):
                if rank < len(queue) and len(queue[rank].sealed) <= limit:
                    entry = queue[rank]
                    limit -= len(entry.sealed)
                    found[place].append(Aged(ceil(now - entry.heard), entry.sealed))
        return tuple(map(tuple, found))

    def _chosen(
        self, key: Key, now: float, most: int, kinds: Collection[str]
    ) -> list[_StoredRecord]:
        """Return the entries of a key in an order that alternates between networks and authors."""
        here = [
            entry
            for entry in self._keys.get(key, {}).values()
            if entry.until > now and (not kinds or entry.kind in kinds)
        ]
        if len(here) > 1:
            start = self.turn % len(here)
            here = here[start:] + here[:start]
            groups: defaultdict[str, int] = defaultdict(int)
            ranks = []
            for entry in here:
                name = entry.network or entry.author
                groups[name] += 1
                ranks.append(groups[name])
            order = sorted(range(len(here)), key=lambda index: ranks[index])
            here = [here[index] for index in order]
        live = [entry for entry in here if not entry.gone][:most]
        return live + [entry for entry in here if entry.gone][:most]


def _take(counter: "Counter[N]", name: N, amount: int) -> None:
    """Subtract an amount from a counter, and remove the name if nothing is left."""
    counter[name] -= amount
    if not counter[name]:
        del counter[name]
