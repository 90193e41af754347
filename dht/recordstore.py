"""Records of others that lie with this node, because their keys are near its own.

Nobody can fill it: it takes what lies in this node's part of the key space, so much of one author,
so much from one network, so many under one key; where it is full, the farthest goes. Sans-I/O;
times are seconds of the host's monotonic clock, but for `wall`.
"""

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil
from typing import TypeVar

from ..transport.identity import PeerId, public_key_of
from . import defaults
from .key import SPACE, Key, point
from .messages import Aged
from .record import Record, time_code
from .table import lot

_OVERHEAD = 512  # bytes that an entry takes beside its record
_Slot = tuple[PeerId, str]
N = TypeVar("N", bound=str)


@dataclass(slots=True, eq=False)
class _Entry:
    record: Record
    network: str  # of who sent it, "" for one that is near
    lot: int
    heard: float  # of its author, when last
    until: float
    last: float  # until when at most, without a later record

    @property
    def size(self) -> int:
        return len(self.record.sealed) + _OVERHEAD


class RecordStore:
    """Other people's records. `radius` is how far from our key a record may lie."""

    def __init__(
        self, own: Key, entropy: Callable[[int], bytes], *, limit: int = defaults.STORE_BYTES
    ) -> None:
        """`limit`: bytes of all records together."""
        self.radius: float = SPACE
        self._own = point(own)
        self._nonce = entropy(16)
        self.limit = limit
        self._author_limit = limit * defaults.STORE_AUTHOR // defaults.STORE_BYTES
        self._subnet_limit = limit * defaults.STORE_SUBNET // defaults.STORE_BYTES
        self._keys: dict[Key, dict[_Slot, _Entry]] = {}
        self._far: list[tuple[int, Key]] = []  # every key, by its distance
        self._authors: Counter[PeerId] = Counter()  # bytes
        self._networks: Counter[str] = Counter()  # bytes
        self._ends: list[tuple[float, Key, _Slot]] = []
        self.bytes = 0
        self._count = 0
        self.turn = 0

    def __len__(self) -> int:
        return self._count

    # Keeping.

    def put(
        self, record: Record, *, sender: PeerId, network: str, age: float, now: float, wall: float
    ) -> str:
        """Keep a record, or say by a code why not: `expired`, `far-future`, `not-near`, `older`,
        `quota`, `full`. `network` is the sender's, "" for a near one.

        `age` counts where somebody else than its author sends it. An unchanged record lives
        longer only by its author, and never beyond `LIVES` times its ttl.
        """
        self.expire(now)
        aged = 0.0 if sender == record.author else max(age, 0.0)
        code = "expired" if aged >= record.ttl else time_code(record, wall)
        if not code and point(record.key) ^ self._own > self.radius:
            code = "not-near"
        if code:
            return code
        slots = self._keys.get(record.key, {})
        old = slots.get((record.author, record.slot))
        if old is not None and old.record.made >= record.made:
            return self._again(old, record, sender, now)
        entry = _Entry(
            record,
            network,
            lot(self._nonce, public_key_of(record.author) + record.key),
            now - aged,
            now - aged + record.ttl,
            now + defaults.LIVES * record.ttl,
        )
        return self._fit(entry, old)

    def _again(self, old: _Entry, record: Record, sender: PeerId, now: float) -> str:
        if old.record.sealed != record.sealed:
            return "older"
        if sender == record.author:
            old.heard = now
            old.until = min(now + record.ttl, old.last)
            self._end_at(old)
        return ""

    def _fit(self, entry: _Entry, old: _Entry | None) -> str:
        record = entry.record
        more = entry.size - (old.size if old is not None else 0)
        by_network = entry.size - (old.size if old and old.network == entry.network else 0)
        if self._authors[record.author] + more > self._author_limit or (
            entry.network and self._networks[entry.network] + by_network > self._subnet_limit
        ):
            return "quota"
        leaving = [] if old is not None else self._leaving(entry)
        if entry in leaving:
            return "full"
        leaving += [] if old is None else [old]
        room = self.limit - self.bytes - entry.size + sum(each.size for each in leaving)
        if room < 0:
            farther = list(self._farther(record.key, -room, leaving))
            if sum(each.size for each in farther) < -room:
                return "full"
            leaving += farther
        for each in leaving:
            self._remove(each)
        self._add(entry)
        return ""

    def _leaving(self, entry: _Entry) -> list[_Entry]:
        """Who makes room under the key: of an author's slots the earliest made; of authors those
        with most others of their network, then by lot, so that replicas keep different ones."""
        here = [*self._keys.get(entry.record.key, {}).values(), entry]
        own = [each for each in here if each.record.author == entry.record.author]
        if len(own) > defaults.SLOTS.get(entry.record.body.kind, defaults.SLOTS_OTHER):
            return [min(own, key=lambda each: each.record.made)]
        if len(here) <= defaults.STORE_KEY:
            return []
        return [max(self._ranked(here), key=lambda ranked: ranked[:3])[3]]

    @staticmethod
    def _ranked(here: Sequence[_Entry]) -> Iterator[tuple[int, int, int, _Entry]]:
        """How many of its network, then of its author come before it, and its lot."""
        networks: Counter[str] = Counter()
        authors: Counter[PeerId] = Counter()
        for entry in sorted(here, key=lambda each: (each.lot, -each.record.made)):
            if entry.network:
                networks[entry.network] += 1
            authors[entry.record.author] += 1
            group = max(networks[entry.network], authors[entry.record.author])
            yield group, authors[entry.record.author], entry.lot, entry

    def _farther(self, key: Key, needed: int, leaving: Collection[_Entry]) -> Iterator[_Entry]:
        """Entries of keys farther than this one, farthest first, until enough bytes are free."""
        mine = point(key) ^ self._own
        for far, other in reversed(self._far):
            if far <= mine or needed <= 0:
                return
            for entry in self._keys[other].values():
                if entry not in leaving:
                    needed -= entry.size
                    yield entry

    def _add(self, entry: _Entry) -> None:
        record = entry.record
        slots = self._keys.get(record.key)
        if slots is None:
            slots = self._keys[record.key] = {}
            insort(self._far, (point(record.key) ^ self._own, record.key))
        slots[record.author, record.slot] = entry
        self._count += 1
        self._authors[record.author] += entry.size
        if entry.network:
            self._networks[entry.network] += entry.size
        self.bytes += entry.size
        self._end_at(entry)

    def _remove(self, entry: _Entry) -> None:
        record = entry.record
        slots = self._keys[record.key]
        del slots[record.author, record.slot]
        self._count -= 1
        if not slots:
            del self._keys[record.key]
            del self._far[bisect_left(self._far, (point(record.key) ^ self._own, record.key))]
        self.bytes -= entry.size
        _take(self._authors, record.author, entry.size)
        if entry.network:
            _take(self._networks, entry.network, entry.size)

    # Ending.

    def _end_at(self, entry: _Entry) -> None:
        record = entry.record
        heappush(self._ends, (entry.until, record.key, (record.author, record.slot)))
        if len(self._ends) > 2 * len(self) + 64:
            self._ends = [
                (each.until, key, slot)
                for key, slots in self._keys.items()
                for slot, each in slots.items()
            ]
            self._ends.sort()

    def expire(self, now: float) -> None:
        """Drop what has ended."""
        while self._ends and self._ends[0][0] <= now:
            _, key, slot = heappop(self._ends)
            entry = self._keys.get(key, {}).get(slot)
            if entry is not None and entry.until <= now:
                self._remove(entry)

    # Handing out.

    def find(
        self,
        keys: Sequence[Key],
        now: float,
        *,
        most: int = defaults.K,
        kinds: Collection[str] = (),
        limit: int = defaults.MESSAGE_RECORDS,
    ) -> tuple[tuple[Aged, ...], ...]:
        """For each key up to `most` records, and as many that say that something is gone; of
        `limit` bytes in all, shared fairly among the keys.

        Each asking begins elsewhere in the order, so that nobody's records always stand behind.
        """
        self.expire(now)
        self.turn += 1
        queues = [self._chosen(key, most, kinds) for key in keys]
        found: list[list[Aged]] = [[] for _ in keys]
        for rank in range(max(map(len, queues), default=0)):
            for place, queue in enumerate(queues):
                if rank < len(queue) and len(queue[rank].record.sealed) <= limit:
                    entry = queue[rank]
                    limit -= len(entry.record.sealed)
                    found[place].append(Aged(ceil(now - entry.heard), entry.record.sealed))
        return tuple(map(tuple, found))

    def _chosen(self, key: Key, most: int, kinds: Collection[str]) -> list[_Entry]:
        """Of different networks and authors first."""
        here = [
            entry
            for entry in self._keys.get(key, {}).values()
            if not kinds or entry.record.body.kind in kinds
        ]
        if len(here) > 1:
            start = self.turn % len(here)
            here = here[start:] + here[:start]
            groups: defaultdict[str, int] = defaultdict(int)
            ranks = []
            for entry in here:
                name = entry.network or entry.record.author
                groups[name] += 1
                ranks.append(groups[name])
            order = sorted(range(len(here)), key=lambda index: ranks[index])
            here = [here[index] for index in order]
        live = [entry for entry in here if not entry.record.gone][:most]
        return live + [entry for entry in here if entry.record.gone][:most]


def _take(counter: "Counter[N]", name: N, amount: int) -> None:
    counter[name] -= amount
    if not counter[name]:
        del counter[name]
