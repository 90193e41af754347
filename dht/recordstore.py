"""Records of others that lie with this node, because their keys are near its own.

Nobody can fill it: it takes what lies in this node's part of the key space, so much of one author,
so much from one network, so many under one key; where it is full, the farthest goes of what came
from the network that has most. Sans-I/O; times are seconds of the host's monotonic clock, but for
`wall`.
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
from .shares import Shares
from .table import lot

_OVERHEAD = 512  # bytes that an entry takes beside its record
_Slot = tuple[PeerId, str]
N = TypeVar("N", bound=str)


@dataclass(slots=True, eq=False)
class _Entry:
    """Of the record only what is needed here: a body that was read, such as that of a blob in many
    runs, takes thirty times the bytes that are counted."""

    author: PeerId
    key: Key
    slot: str
    kind: str
    made: int
    ttl: int
    gone: bool
    sealed: bytes
    network: str  # of who sent it, "" for one that is near
    distance: int
    serial: int
    lot: int
    heard: float  # of its author, when last
    until: float
    last: float  # until when at most, without a later record
    ends: int = 0  # under what it stands among those that end

    @property
    def size(self) -> int:
        return len(self.sealed) + _OVERHEAD


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
        self._shares = Shares()  # bytes of each network
        self._far: dict[str, list[tuple[int, int, _Entry]]] = {}  # of each, by their distance
        self._authors: Counter[PeerId] = Counter()  # bytes
        self._ends: dict[int, dict[_Entry, None]] = {}  # by `ENDS_TOGETHER`
        self._next: list[int] = []  # which of them are there, the next one first
        self.bytes = 0
        self._count = 0
        self._serial = 0
        self.turn = 0

    def __len__(self) -> int:
        return self._count

    # Keeping.

    def put(
        self, record: Record, *, sender: PeerId, network: str, age: float, now: float, wall: float
    ) -> str:
        """Keep a record, or say by a code why not: `expired`, `far-future`, `not-near`, `older`,
        `quota`, `full`. `network` is the sender's, "" for a near one.

        `age` counts where somebody else than its author sends it; it is no less than the wall
        clocks say at the very least. An unchanged record lives longer only by its author, and
        never beyond `LIVES` times its ttl.
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

    def _entry(self, record: Record, network: str, now: float, aged: float) -> _Entry:
        """What is gone is remembered until nobody would take what it took back."""
        longer = defaults.GONE_LONGER if record.gone else 0.0
        self._serial += 1
        return _Entry(
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
            lot=lot(self._nonce, public_key_of(record.author) + record.key),
            heard=now - aged,
            until=now - aged + record.ttl + longer,
            last=now + defaults.LIVES * record.ttl + longer,
        )

    def _again(self, old: _Entry, record: Record, sender: PeerId, network: str, now: float) -> str:
        if old.sealed != record.sealed:
            return "older"
        if sender == record.author:
            old.heard = now
            old.until = max(old.until, min(now + record.ttl, old.last))  # `expire` sees it
            self._move(old, network)
        return ""

    def _move(self, entry: _Entry, network: str) -> None:
        """Its author's own network answers for it: else whoever sent it before its author did
        could push it out with what it sends itself."""
        if network != entry.network and self._allowed(network, entry.size):
            self._remove(entry)
            entry.network = network
            self._add(entry)

    def _allowed(self, network: str, more: int) -> bool:
        """Whether one network may have so many bytes more."""
        return not network or self._shares[network] + more <= self._subnet_limit

    def _fit(self, entry: _Entry, old: _Entry | None) -> str:
        more = entry.size - (old.size if old is not None else 0)
        by_network = entry.size - (old.size if old and old.network == entry.network else 0)
        if self._authors[entry.author] + more > self._author_limit or not self._allowed(
            entry.network, by_network
        ):
            return "quota"
        leaving = [old] if old is not None else self._leaving(entry)
        making = [] if entry in leaving else self._making_room(entry, leaving)
        if entry in leaving or making is None:
            return "full"
        for each in (*leaving, *making):
            self._remove(each)
        self._add(entry)
        return ""

    def _leaving(self, entry: _Entry) -> list[_Entry]:
        """Who makes room under the key: of an author's slots the earliest made; of authors those
        with most others of their network, then by lot, so that replicas keep different ones."""
        here = [*self._keys.get(entry.key, {}).values(), entry]
        own = [each for each in here if each.author == entry.author]
        if len(own) > defaults.SLOTS.get(entry.kind, defaults.SLOTS_OTHER):
            return [min(own, key=lambda each: each.made)]
        if len(here) <= defaults.STORE_KEY:
            return []
        return [max(self._ranked(here), key=lambda ranked: ranked[:3])[3]]

    @staticmethod
    def _ranked(here: Sequence[_Entry]) -> Iterator[tuple[int, int, int, _Entry]]:
        """How many of its network, then of its author come before it, and its lot."""
        networks: Counter[str] = Counter()
        authors: Counter[PeerId] = Counter()
        for entry in sorted(here, key=lambda each: (each.lot, -each.made)):
            if entry.network:
                networks[entry.network] += 1
            authors[entry.author] += 1
            group = max(networks[entry.network], authors[entry.author])
            yield group, authors[entry.author], entry.lot, entry

    def _making_room(self, entry: _Entry, leaving: Sequence[_Entry]) -> list[_Entry] | None:
        """Who else goes so that it fits: of the network that has most, it among them, what is
        farthest. None where it would have to be itself."""
        going = list(leaving)
        needed = self.bytes + entry.size - self.limit - sum(each.size for each in leaving)
        changes = Counter({entry.network: entry.size})
        for each in leaving:
            changes[each.network] -= each.size
        while needed > 0:
            network = self._shares.largest(entry.network, changes)
            farthest = self._farthest(network, going)
            own = network == entry.network
            if farthest is None or (own and farthest.distance <= entry.distance):
                return None
            going.append(farthest)
            needed -= farthest.size
            changes[network] -= farthest.size
        return going[len(leaving) :]

    def _farthest(self, network: str, going: Collection[_Entry]) -> _Entry | None:
        listed = reversed(self._far.get(network, ()))
        return next((entry for _, _, entry in listed if entry not in going), None)

    def _add(self, entry: _Entry) -> None:
        self._keys.setdefault(entry.key, {})[entry.author, entry.slot] = entry
        insort(self._far.setdefault(entry.network, []), (entry.distance, entry.serial, entry))
        self._count += 1
        self._authors[entry.author] += entry.size
        self._shares.change(entry.network, entry.size)
        self.bytes += entry.size
        self._end_at(entry)

    def _remove(self, entry: _Entry) -> None:
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
        self._shares.change(entry.network, -entry.size)
        if (together := self._ends.get(entry.ends)) is not None:
            together.pop(entry, None)

    # Ending.

    def _end_at(self, entry: _Entry) -> None:
        entry.ends = ceil(entry.until / defaults.ENDS_TOGETHER)
        if entry.ends not in self._ends:
            self._ends[entry.ends] = {}
            heappush(self._next, entry.ends)
        self._ends[entry.ends][entry] = None

    def expire(self, now: float) -> bool:
        """Drop what has ended, of many that end together a part; whether that was all."""
        for _ in range(defaults.EXPIRED_AT_ONCE):
            if not self._next or self._next[0] * defaults.ENDS_TOGETHER > now:
                return True
            ending = self._ends[self._next[0]]
            if not ending:
                del self._ends[heappop(self._next)]
                continue
            entry, _ = ending.popitem()
            if entry.until > now:
                self._end_at(entry)  # its author has prolonged its life since
            else:
                self._remove(entry)
        return False

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
        queues = [self._chosen(key, now, most, kinds) for key in keys]
        found: list[list[Aged]] = [[] for _ in keys]
        for rank in range(max(map(len, queues), default=0)):
            for place, queue in enumerate(queues):
                if rank < len(queue) and len(queue[rank].sealed) <= limit:
                    entry = queue[rank]
                    limit -= len(entry.sealed)
                    found[place].append(Aged(ceil(now - entry.heard), entry.sealed))
        return tuple(map(tuple, found))

    def _chosen(self, key: Key, now: float, most: int, kinds: Collection[str]) -> list[_Entry]:
        """Of different networks and authors first."""
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
    counter[name] -= amount
    if not counter[name]:
        del counter[name]
