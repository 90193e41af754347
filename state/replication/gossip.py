"""Messages about feeds between nodes, encoded as msgpack, and the interface that sends them.

Wire format: docs/spec/state.md.

Kinds and parts that this version does not know are skipped. Entries are sent as their sealed bytes.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple, Protocol, TypeVar

from msgspec import Meta

from ...transport.decoding import read, read_rows
from ...transport.errors import Undecodable
from ...transport.identity import KEY_BYTES, PeerId
from ...transport.lane.frame import Bytes
from ...transport.message import PublicKey, Row, pack
from .. import defaults
from ..errors import BadMessage, StateError
from ..feeds.digest import HASH_BYTES, Plot
from ..feeds.entry import FORKED, MAX_EPOCH, SEALED_BYTES, Head
from ..feeds.kinds import KINDS
from .interest import Keeps

NEWS: Final = "state.news"
DIGEST: Final = "state.digest"
HEADS: Final = "state.heads"
PULL: Final = "state.pull"
HAVE: Final = "state.have"

R = TypeVar("R", bound=Row)

_Kind = Annotated[str, Meta(max_length=32)]
_Part = Annotated[int, Meta(ge=0, le=2**16)]
_Parts = Annotated[bytes, Meta(max_length=256)]  # or buckets, one byte each
_Mark = Annotated[bytes, Meta(min_length=HASH_BYTES, max_length=HASH_BYTES)]
_BUCKET_BYTES: Final = 1 + HASH_BYTES
_Buckets = Annotated[bytes, Meta(max_length=256 * _BUCKET_BYTES)]
_Sealed = Annotated[bytes, Meta(min_length=1, max_length=SEALED_BYTES)]
Item = Annotated[tuple[_Sealed, ...], Meta(min_length=1, max_length=2)]
"""One sealed entry, or the two entries of a proof."""
_ROWS: Final = Meta(max_length=defaults.DIGEST_ROWS)


class Told(NamedTuple):
    """The head of a feed in a message, with the first 16 bytes of its hash.

    If the feed has no entries, the epoch is 0.
    """

    key: PublicKey
    kind: _Kind
    part: _Part
    epoch: Annotated[int, Meta(ge=0, le=FORKED.epoch)]
    seq: Annotated[int, Meta(ge=0, le=MAX_EPOCH)]
    hash: _Mark

    @property
    def plot(self) -> Plot:
        return self.kind, self.part

    def same(self, head: Head | None) -> bool:
        """Return whether this is the same head as `head`, where None means that there are no
        entries."""
        mine = (0, 0, bytes(HASH_BYTES)) if head is None else (*head[:2], head.hash[:HASH_BYTES])
        return self[3:] == mine


_Keeps = Annotated[tuple[tuple[_Kind, _Parts], ...], _ROWS]
"""Kinds of feeds that a node stores, each with its parts."""


class _Compare(Row, frozen=True):
    top: _Mark
    roots: Annotated[tuple[tuple[_Kind, _Part, _Mark], ...], _ROWS] | None
    keeps: _Keeps | None


class _Compared(Row, frozen=True):
    detailed: bool
    rows: Annotated[tuple[tuple[_Kind, _Part, _Mark, _Buckets | None], ...], _ROWS]
    keeps: _Keeps | None


class _Ask(Row, frozen=True):
    rows: Annotated[tuple[tuple[_Kind, _Part, _Parts], ...], _ROWS]
    after: Annotated[bytes, Meta(max_length=KEY_BYTES)]


class _Heads(Row, frozen=True):
    more: bool
    heads: Annotated[tuple[Told, ...], Meta(max_length=defaults.HEADS)]


class _Pulled(Row, frozen=True):
    more: bool
    items: Annotated[tuple[Item, ...], Meta(max_length=defaults.PULL_ITEMS)]


def told(key: bytes, plot: Plot, head: Head | None) -> Told:
    """Return a head in the form in which it is sent in messages."""
    if head is None:
        return Told(key, *plot, 0, 0, bytes(HASH_BYTES))
    return Told(key, *plot, head.epoch, head.seq, head.hash[:HASH_BYTES])


def encode_heads(heads: Sequence[Told]) -> bytes:
    """Encode heads for `state.news`, `state.pull`, `state.have` or the reply to `state.have`.

    There may be at most NEWS_HEADS in news, PULL_FEEDS in a pull, and HAVE_FEEDS in the last two.
    """
    return pack(heads)


def decode_heads(payload: Bytes, most: int = defaults.NEWS_HEADS) -> list[Told]:
    """Decode at most `most` heads. Raises BadMessage if the message is malformed or has more."""
    try:
        found = read_rows(Told, payload, limit=defaults.NEWS_BYTES, most=most)
    except Undecodable as error:
        raise BadMessage(f"malformed message: {error}") from None
    return _known(found)


@dataclass(frozen=True, slots=True)
class Compare:
    """The call `state.digest`, which asks whether both nodes have the same heads.

    The call covers the plots (kinds and parts) that both nodes store. `top` is the hash over all
    roots. Without `roots`, the reply has no buckets. `keeps` are the plots that the caller stores.
    """

    top: bytes
    roots: Mapping[Plot, bytes] | None = None
    keeps: Keeps = None

    def encode(self) -> bytes:
        roots = self.roots
        rows = None if roots is None else tuple((*plot, root) for plot, root in roots.items())
        return pack(_Compare(self.top, rows, _keeps_rows(self.keeps)))

    @classmethod
    def decode(cls, payload: Bytes) -> "Compare":
        """Decode the call. Raises BadMessage if it is malformed."""
        said = _read(_Compare, payload, defaults.DIGEST_MESSAGE)
        rows = said.roots
        roots = None if rows is None else {_plot(row): row[2] for row in rows if _is_known(row)}
        return cls(said.top, roots, _keeps(said.keeps))


@dataclass(frozen=True, slots=True)
class Compared:
    """The reply to `state.digest`, with the roots or the bucket hashes of the plots that differ.

    If nothing differs, the reply has no roots. `keeps` are the plots that the replying node stores.
    """

    roots: Mapping[Plot, bytes]
    buckets: Mapping[Plot, Mapping[int, bytes]] | None = None
    keeps: Keeps = None

    def encode(self) -> bytes:
        buckets = self.buckets
        rows = tuple(
            (*plot, root, None if buckets is None else _bucket_bytes(buckets.get(plot, {})))
            for plot, root in self.roots.items()
        )
        return pack(_Compared(buckets is not None, rows, _keeps_rows(self.keeps)))

    @classmethod
    def decode(cls, payload: Bytes) -> "Compared":
        """Decode the reply. Raises BadMessage if it is malformed."""
        said = _read(_Compared, payload, defaults.DIGEST_MESSAGE)
        rows = [(_plot(row), row[2], _buckets(row[3])) for row in said.rows if _is_known(row)]
        roots = {plot: root for plot, root, _ in rows}
        buckets = {plot: found for plot, _, found in rows} if said.detailed else None
        return cls(roots, buckets, _keeps(said.keeps))


@dataclass(frozen=True, slots=True)
class HeadsQuestion:
    """The call `state.heads`, which asks for the heads in some buckets.

    `buckets` has the numbers of the buckets by plot, one byte each. In the first bucket, only
    authors with keys above `after` are asked for.
    """

    buckets: Mapping[Plot, bytes]
    after: bytes = b""

    def encode(self) -> bytes:
        rows = tuple((*plot, numbers) for plot, numbers in self.buckets.items())
        return pack(_Ask(rows, self.after))

    @classmethod
    def decode(cls, payload: Bytes) -> "HeadsQuestion":
        """Decode the call. Raises BadMessage if it is malformed."""
        said = _read(_Ask, payload, defaults.DIGEST_MESSAGE)
        return cls({_plot(row): row[2] for row in said.rows if _is_known(row)}, said.after)

    def rest(self, last: Told, number: int) -> "HeadsQuestion":
        """Return the call that asks for the heads that an incomplete reply left out.

        `last` is the last head in that reply, and `number` the number of its bucket.
        """
        plots = list(self.buckets)
        left = plots[plots.index(last.plot) :] if last.plot in self.buckets else []
        rest = {plot: self.buckets[plot] for plot in left}
        if left:
            numbers = self.buckets[last.plot]
            rest[last.plot] = numbers[numbers.index(number) :] if number in numbers else b""
        return HeadsQuestion(rest, last.key)


@dataclass(frozen=True, slots=True)
class HeadsReply:
    """The reply to `state.heads`, in the order of the call. If `more` is True, it is incomplete."""

    heads: Sequence[Told]
    more: bool = False

    def encode(self) -> bytes:
        return pack(_Heads(self.more, tuple(self.heads)))

    @classmethod
    def decode(cls, payload: Bytes) -> "HeadsReply":
        """Decode the reply. Raises BadMessage if it is malformed."""
        said = _read(_Heads, payload, defaults.HEADS_BYTES)
        return cls(_known(said.heads), said.more)


@dataclass(frozen=True, slots=True)
class Pulled:
    """The reply to `state.pull`. If `more` is True, some of the entries asked for did not fit."""

    items: Sequence[Item]
    more: bool = False

    def encode(self) -> bytes:
        return pack(_Pulled(self.more, tuple(self.items)))

    @classmethod
    def decode(cls, payload: Bytes) -> "Pulled":
        """Decode the reply. Raises BadMessage if it is malformed."""
        limit = defaults.PULL_BYTES + 2 * SEALED_BYTES + defaults.NEWS_BYTES
        said = _read(_Pulled, payload, limit)
        return cls(list(said.items), said.more)


def _read(kind: type[R], payload: Bytes, limit: int) -> R:
    try:
        return read(kind, payload, limit=limit)
    except Undecodable as error:
        raise BadMessage(f"malformed message: {error}") from None


def _plot(row: tuple[str, int, *tuple[object, ...]]) -> Plot:
    return row[0], row[1]


def _is_known(row: tuple[str, int, *tuple[object, ...]]) -> bool:
    """Return whether this version knows the kind and part with which a row begins."""
    return row[0] in KINDS and row[1] in KINDS[row[0]].parts


def _known(heads: Iterable[Told]) -> list[Told]:
    return [head for head in heads if _is_known(head.plot)]


def _buckets(packed: bytes | None) -> dict[int, bytes]:
    """Return the hash of each bucket by number. Raises BadMessage if the size is wrong."""
    packed = packed or b""
    if len(packed) % _BUCKET_BYTES:
        raise BadMessage(f"the size of packed buckets is no multiple of {_BUCKET_BYTES} bytes")
    starts = range(0, len(packed), _BUCKET_BYTES)
    return {packed[at]: packed[at + 1 : at + _BUCKET_BYTES] for at in starts}


def _bucket_bytes(buckets: Mapping[int, bytes]) -> bytes:
    return b"".join(bytes((number,)) + hashed for number, hashed in buckets.items())


def _keeps(rows: _Keeps | None) -> Keeps:
    if rows is None:
        return None
    return frozenset(
        (kind, part) for kind, parts in rows for part in parts if _is_known((kind, part))
    )


def _keeps_rows(keeps: Keeps) -> _Keeps | None:
    if keeps is None:
        return None
    parts: dict[str, list[int]] = {}
    for kind, part in sorted(keeps):
        parts.setdefault(kind, []).append(part)
    return tuple((kind, bytes(numbers)) for kind, numbers in parts.items())


class Unanswered(Exception):
    """A peer refused a call, went away, or took too long to reply."""


class ReplicationPeers(Protocol):
    """The linked peers, and the time, as the feed exchange sees them."""

    def now(self) -> float: ...

    def post(self, peer: PeerId, method: str, payload: bytes, *, later: bool = False) -> None:
        """Send a message that gets no reply.

        If `later`, it may wait until other messages are sent.
        """
        ...

    async def call(self, peer: PeerId, method: str, payload: bytes) -> bytes:
        """Call a method of a peer, and return the reply. Raises Unanswered if there is none."""
        ...

    def blame(self, peer: PeerId, error: StateError) -> None:
        """Close the link to a peer that broke the protocol."""
        ...

    async def pause(self) -> None:
        """Let other tasks run."""
        ...

    def turn(self) -> AbstractAsyncContextManager[object]:
        """Return a context manager that only one task at a time can enter.

        Hold it while changing feeds.
        """
        ...
