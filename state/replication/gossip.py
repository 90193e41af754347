"""Messages about feeds between nodes, encoded as msgpack. Wire: docs/spec/state.md.

Every message is bounded before it is read, type-checked here, and read item by item, because a
megabyte of empty lists would take a hundred megabytes of memory. Kinds and parts that this version
does not know are skipped. Entries stay sealed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

import msgpack

from ...transport.decoding import Reader
from ...transport.errors import Undecodable
from ...transport.identity import KEY_BYTES
from ...transport.lane.frame import Bytes
from .. import defaults
from ..errors import BadMessage
from ..feeds.digest import HASH_BYTES, Plot
from ..feeds.entry import FORKED, MAX_EPOCH, SEALED_BYTES, Head
from ..feeds.kinds import KINDS
from .interest import Keeps


class Told(NamedTuple):
    """The head of a feed in a message, with the first 16 bytes of its hash. The epoch of a feed
    without entries is 0."""

    key: bytes
    kind: str
    part: int
    epoch: int
    seq: int
    hash: bytes

    @property
    def plot(self) -> Plot:
        return self.kind, self.part

    def same(self, head: Head | None) -> bool:
        """Whether this describes the same head."""
        mine = (0, 0, bytes(HASH_BYTES)) if head is None else (*head[:2], head.hash[:HASH_BYTES])
        return self[3:] == mine


def told(key: bytes, plot: Plot, head: Head | None) -> Told:
    """Return a head as it is sent in messages."""
    if head is None:
        return Told(key, *plot, 0, 0, bytes(HASH_BYTES))
    return Told(key, *plot, head.epoch, head.seq, head.hash[:HASH_BYTES])


def encode_heads(heads: Sequence[Told]) -> bytes:
    """Encode the heads in `state.news`, `state.pull`, `state.have` or the reply to `state.have`.

    The limits are NEWS_HEADS for news, PULL_FEEDS for pulls and HAVE_FEEDS for the last two.
    """
    return _packed(heads)


def decode_heads(payload: Bytes, most: int = defaults.NEWS_HEADS) -> list[Told]:
    """Decode at most `most` heads. Raises BadMessage."""
    reader = _Reader(payload, defaults.NEWS_BYTES)
    found = reader.rows(most, _HEAD, _told)
    reader.end()
    return list(filter(None, found))


@dataclass(frozen=True, slots=True)
class Compare:
    """The call `state.digest`, which asks whether both nodes have the same heads of the plots that
    both keep.

    Without `roots` the reply has no buckets. `keeps` is what the asker keeps.
    """

    top: bytes
    roots: Mapping[Plot, bytes] | None = None
    keeps: Keeps = None

    def encode(self) -> bytes:
        roots = self.roots
        rows = None if roots is None else [[*plot, root] for plot, root in roots.items()]
        return _packed([self.top, rows, _keeps_rows(self.keeps)])

    @classmethod
    def decode(cls, payload: Bytes) -> "Compare":
        """Raises BadMessage."""
        reader = _Reader(payload, defaults.DIGEST_MESSAGE)
        reader.header(3)
        top = _hash(reader.value())
        rows = None if reader.nil() else reader.rows(defaults.DIGEST_ROWS, 3, _root)
        keeps = reader.keeps()
        reader.end()
        return cls(top, None if rows is None else dict(filter(None, rows)), keeps)


@dataclass(frozen=True, slots=True)
class Compared:
    """The reply to `state.digest`: the roots or the bucket hashes of the plots that differ.

    Nothing is included if nothing differs. `keeps` is what the replying node keeps.
    """

    roots: Mapping[Plot, bytes]
    buckets: Mapping[Plot, Mapping[int, bytes]] | None = None
    keeps: Keeps = None

    def encode(self) -> bytes:
        buckets = self.buckets
        rows = [
            [*plot, root, None if buckets is None else _bucket_bytes(buckets.get(plot, {}))]
            for plot, root in self.roots.items()
        ]
        return _packed([buckets is not None, rows, _keeps_rows(self.keeps)])

    @classmethod
    def decode(cls, payload: Bytes) -> "Compared":
        """Raises BadMessage."""
        reader = _Reader(payload, defaults.DIGEST_MESSAGE)
        reader.header(3)
        detailed = _typed(reader.value(), bool)
        rows = list(filter(None, reader.rows(defaults.DIGEST_ROWS, 4, _compared)))
        keeps = reader.keeps()
        reader.end()
        roots = {plot: root for plot, root, _ in rows}
        buckets = {plot: found for plot, _, found in rows} if detailed else None
        return cls(roots, buckets, keeps)


@dataclass(frozen=True, slots=True)
class Ask:
    """The call `state.heads`, which asks for the heads in some buckets.

    In the first bucket, it asks only for authors with keys above `after`.
    """

    buckets: Mapping[Plot, bytes]
    after: bytes = b""

    def encode(self) -> bytes:
        return _packed([[[*plot, numbers] for plot, numbers in self.buckets.items()], self.after])

    @classmethod
    def decode(cls, payload: Bytes) -> "Ask":
        """Raises BadMessage."""
        reader = _Reader(payload, defaults.DIGEST_MESSAGE)
        reader.header(2)
        rows = reader.rows(defaults.DIGEST_ROWS, 3, _asked)
        after = _sized(reader.value(), 0, KEY_BYTES)
        reader.end()
        return cls(dict(filter(None, rows)), after)

    def rest(self, last: Told, number: int) -> "Ask":
        """Return the call for the rest, after a reply that ended with this head in that bucket."""
        plots = list(self.buckets)
        left = plots[plots.index(last.plot) :] if last.plot in self.buckets else []
        rest = {plot: self.buckets[plot] for plot in left}
        if left:
            numbers = self.buckets[last.plot]
            rest[last.plot] = numbers[numbers.index(number) :] if number in numbers else b""
        return Ask(rest, last.key)


@dataclass(frozen=True, slots=True)
class Heads:
    """The reply to `state.heads`, in the order of the call. `more` means that it is incomplete."""

    heads: Sequence[Told]
    more: bool = False

    def encode(self) -> bytes:
        return _packed([self.more, self.heads])

    @classmethod
    def decode(cls, payload: Bytes) -> "Heads":
        """Raises BadMessage."""
        reader = _Reader(payload, defaults.HEADS_BYTES)
        reader.header(2)
        more = _typed(reader.value(), bool)
        heads = reader.rows(defaults.HEADS, _HEAD, _told)
        reader.end()
        return cls(list(filter(None, heads)), more)


Row = TypeVar("Row")
Value = TypeVar("Value")
Item = tuple[bytes] | tuple[bytes, bytes]
"""One sealed entry, or the two entries of a proof."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """The reply to `state.pull`. `more` means that there is more of what was asked for."""

    items: Sequence[Item]
    more: bool = False

    def encode(self) -> bytes:
        return _packed([self.more, self.items])

    @classmethod
    def decode(cls, payload: Bytes) -> "Pulled":
        """Raises BadMessage."""
        reader = _Reader(payload, defaults.PULL_BYTES + 2 * SEALED_BYTES + defaults.NEWS_BYTES)
        reader.header(2)
        more = _typed(reader.value(), bool)
        items: list[Item] = []
        for _ in range(reader.header(None, defaults.PULL_ITEMS)):
            size = reader.header(None, 2)
            first = _sized(reader.value(), 1, SEALED_BYTES)
            second = (_sized(reader.value(), 1, SEALED_BYTES),) if size == 2 else ()
            items.append((first, *second))
        reader.end()
        return cls(items, more)


_HEAD: Final = 6  # items in a head
_KIND_BYTES: Final = 32
_BUCKET_BYTES: Final = 1 + HASH_BYTES


class _Reader:
    """Reader of lists with checked lengths, and of flat values. Its methods raise BadMessage."""

    def __init__(self, payload: Bytes, limit: int) -> None:
        try:
            self._reader = Reader(payload, limit=limit, text=_KIND_BYTES)
        except Undecodable as error:
            raise BadMessage(f"malformed message: {error}") from None

    def header(self, size: int | None, most: int = 0) -> int:
        """Read a list's length, which must be `size`, or at most `most` if that is None."""
        count: int = self._read(self._reader.array)
        if count > most if size is None else count != size:
            wanted = f"at most {most}" if size is None else str(size)
            raise BadMessage(f"expected a list of {wanted} items, got {count}")
        return count

    def value(self) -> Any:
        """Read a value that is neither a list nor a map."""
        return self._read(self._reader.flat)

    def nil(self) -> bool:
        """Read nil if it is next, and return whether it was."""
        return self._reader.at_nil() and self.value() is None

    def keeps(self) -> Keeps:
        """Read what a node keeps: nil for everything, or a list of kinds with their parts."""
        if self.nil():
            return None
        return frozenset(plot for row in self.rows(defaults.DIGEST_ROWS, 2, _kept) for plot in row)

    def rows(self, most: int, size: int, made: Callable[..., Row]) -> list[Row]:
        """Read a list of at most `most` lists of `size` items each."""
        count = self.header(None, most)
        return [self._row(size, made) for _ in range(count)]

    def _row(self, size: int, made: Callable[..., Row]) -> Row:
        self.header(size)
        return made(*[self.value() for _ in range(size)])

    def end(self) -> None:
        self._read(self._reader.end)

    @staticmethod
    def _read(read: Callable[[], Any]) -> Any:
        try:
            return read()
        except Undecodable as error:
            raise BadMessage(f"malformed message: {error}") from None


def _told(
    key: object, kind: object, part: object, epoch: object, seq: object, mark: object
) -> Told | None:
    numbers = _whole(epoch, FORKED.epoch), _whole(seq, MAX_EPOCH)
    key, mark, plot = _sized(key, KEY_BYTES, KEY_BYTES), _hash(mark), _plot(kind, part)
    return plot and Told(key, *plot, *numbers, mark)


def _root(kind: object, part: object, root: object) -> tuple[Plot, bytes] | None:
    plot, root = _plot(kind, part), _hash(root)
    return plot and (plot, root)


def _compared(
    kind: object, part: object, root: object, buckets: object
) -> tuple[Plot, bytes, dict[int, bytes]] | None:
    plot, root = _plot(kind, part), _hash(root)
    packed = b"" if buckets is None else _sized(buckets, 0, 256 * _BUCKET_BYTES)
    if len(packed) % _BUCKET_BYTES:
        raise BadMessage(f"the size of packed buckets is no multiple of {_BUCKET_BYTES} bytes")
    starts = range(0, len(packed), _BUCKET_BYTES)
    found = {packed[at]: packed[at + 1 : at + _BUCKET_BYTES] for at in starts}
    return plot and (plot, root, found)


def _asked(kind: object, part: object, numbers: object) -> tuple[Plot, bytes] | None:
    plot, numbers = _plot(kind, part), _sized(numbers, 0, 256)
    return plot and (plot, numbers)


def _plot(kind: object, part: object) -> Plot | None:
    """Return the plot, or None if this version does not know it."""
    word, number = _typed(kind, str), _whole(part, 2**16)
    return (word, number) if word in KINDS and number in KINDS[word].parts else None


def _kept(kind: object, parts: object) -> list[Plot]:
    word, numbers = _typed(kind, str), _sized(parts, 0, 256)
    known = KINDS[word].parts if word in KINDS else ()
    return [(word, part) for part in numbers if part in known]


def _keeps_rows(keeps: Keeps) -> list[tuple[str, bytes]] | None:
    if keeps is None:
        return None
    parts: dict[str, list[int]] = {}
    for kind, part in sorted(keeps):
        parts.setdefault(kind, []).append(part)
    return [(kind, bytes(numbers)) for kind, numbers in parts.items()]


def _typed(value: object, kind: type[Value]) -> Value:
    if type(value) is not kind:
        raise BadMessage(f"expected {kind.__name__} in a message, got {type(value).__name__}")
    return value


def _whole(value: object, most: int) -> int:
    number = _typed(value, int)
    if not 0 <= number <= most:
        raise BadMessage(f"a number in a message is not in 0..{most}")
    return number


def _sized(value: object, least: int, most: int) -> bytes:
    data = _typed(value, bytes)
    if not least <= len(data) <= most:
        raise BadMessage(f"expected {least} to {most} bytes in a message, got {len(data)}")
    return data


def _hash(value: object) -> bytes:
    return _sized(value, HASH_BYTES, HASH_BYTES)


def _bucket_bytes(buckets: Mapping[int, bytes]) -> bytes:
    return b"".join(bytes((number,)) + hashed for number, hashed in buckets.items())


def _packed(value: object) -> bytes:
    packed: bytes = msgpack.packb(value)
    return packed
