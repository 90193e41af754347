"""Encoding and decoding of membership messages. Decoding checks types and limits.

Wire format: docs/spec/membership.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from sys import intern
from typing import Annotated, NamedTuple, TypeVar

from msgspec import Meta

from ...transport.decoding import ITEMS, read, read_rows
from ...transport.errors import Undecodable
from ...transport.identity import SIGNATURE_BYTES, PeerId
from ...transport.lane.frame import Bytes
from ...transport.message import Natural, Row, pack
from ...transport.networks import Nearness
from .. import defaults
from ..errors import BadRecord
from .roster import RecordOffer, Tag

R = TypeVar("R", bound=Row)
Told = tuple[Nearness, int, bytes]
"""A record in a message: (how near its source is, seconds since its author had a link, its sealed
bytes)."""


class _ToldRecord(NamedTuple):
    reach: int
    age: Natural  # seconds
    sealed: bytes


_Name = Annotated[str, Meta(max_length=defaults.NAME_BYTES)]
"""A peer id. Names are stored, so their length is limited to bound the memory that a peer can
use."""
_Names = Annotated[tuple[_Name, ...], Meta(max_length=ITEMS)]
_Nonce = Annotated[bytes, Meta(min_length=defaults.NONCE_BYTES, max_length=defaults.NONCE_BYTES)]


class _LinkList(Row, frozen=True):
    whole: bool
    has: _Names
    lost: _Names


class _Lost(Row, frozen=True):
    peers: _Names


class _Find(Row, frozen=True):
    ident: Annotated[int, Meta(ge=0, lt=2**32)]
    number: _Nonce
    further: bool
    peers: Annotated[tuple[_Name, ...], Meta(min_length=1, max_length=defaults.ASKED_FOR)]


class _Gather(Row, frozen=True):
    nonce: _Nonce
    peers: Annotated[tuple[_Name, ...], Meta(max_length=defaults.ASKED_FOR)]


class _Gathered(Row, frozen=True):
    path: Annotated[list[_Nonce], Meta(max_length=defaults.PATH)]
    proofs: Annotated[
        list[Annotated[bytes, Meta(max_length=SIGNATURE_BYTES)]], Meta(max_length=ITEMS)
    ]

    def check(self) -> None:
        if any(len(proof) not in (0, SIGNATURE_BYTES) for proof in self.proofs):
            raise ValueError(f"expected signatures of 0 or {SIGNATURE_BYTES} bytes")


def read_told(payload: Bytes) -> list[Told]:
    """Decode the records in a message. Raises BadRecord if the message is malformed."""
    try:
        found = read_rows(_ToldRecord, payload, limit=defaults.BATCH_BYTES, most=defaults.BATCH)
    except Undecodable as error:
        raise BadRecord(f"malformed message of records: {error}") from None
    return [(Nearness(min(max(each.reach, 0), 2)), each.age, each.sealed) for each in found]


_OFFER = Struct(f">{defaults.TAG_BYTES}sQBH")
"""An item of a digest: author's tag, record's sequence number, nearness of its source, age in
seconds."""


def encode_digest(offers: Mapping[Tag, RecordOffer]) -> bytes:
    """Encode `member.digest`, which lists the records that this node offers, of at most MEMBERS
    authors."""
    return b"".join(
        _OFFER.pack(tag, offer.seq, offer.reach, min(offer.age, defaults.MAX_AGE))
        for tag, offer in offers.items()
    )


def read_digest(payload: Bytes) -> dict[Tag, RecordOffer]:
    """Decode the records that a peer offers, by author. Raises BadRecord if the size is wrong."""
    count, rest = divmod(len(payload), _OFFER.size)
    if rest or count > defaults.MEMBERS:
        raise BadRecord("a digest has a wrong size")
    return {
        tag: RecordOffer(seq, Nearness(min(reach, max(Nearness))), age)
        for tag, seq, reach, age in _OFFER.iter_unpack(payload)
    }


def read_sums(payload: Bytes) -> bytes:
    """Return a peer's checksums of the records that it knows, one after the other for each bucket.

    Raises BadRecord if the size is wrong.
    """
    if len(payload) != defaults.SUMS * defaults.SUM_BYTES:
        raise BadRecord("sums of records have a wrong size")
    return bytes(payload)


def encode_tags(tags: Iterable[Tag]) -> bytes:
    """Encode `member.pull`, which names the authors whose records this node asks for, at most
    BATCH."""
    return b"".join(tags)


def read_tags(payload: Bytes) -> list[Tag]:
    """Return the tags of the authors whose records a peer asks for.

    Raises BadRecord if the size is wrong.
    """
    count, rest = divmod(len(payload), defaults.TAG_BYTES)
    if rest or count > defaults.BATCH:
        raise BadRecord("a request for records has a wrong size")
    data = bytes(payload)
    cuts = range(0, len(data), defaults.TAG_BYTES)
    return list(dict.fromkeys(data[at : at + defaults.TAG_BYTES] for at in cuts))


def read_lost(payload: Bytes) -> Sequence[PeerId]:
    """Decode a peer's message on links that watchers have lost.

    Raises BadRecord if the message is malformed.
    """
    return _interned(_read(_Lost, payload).peers)


def read_links(payload: Bytes) -> tuple[bool, Sequence[PeerId], Sequence[PeerId]]:
    """Decode a peer's report on its links.

    Returns (whether the report is complete, peers with a live link to the sender, peers that no
    longer have one). Raises BadRecord if the report is malformed.
    """
    found = _read(_LinkList, payload)
    return found.whole, _interned(found.has), _interned(found.lost)


def encode_find(ident: int, number: bytes, further: bool, peers: Sequence[PeerId]) -> bytes:
    """Encode `live.find`, a question to a peer about members.

    `ident` is the question's own number, and `number` the nonce that the members sign. `further`
    means that the peer may ask its witnesses in turn.
    """
    return pack(_Find(ident, number, further, tuple(peers)))


def read_find(payload: Bytes) -> tuple[int, bytes, bool, list[PeerId]]:
    """Decode a `live.find` to (number of the question, nonce, whether to ask witnesses, members).

    Raises BadRecord if the message is malformed.
    """
    found = _read(_Find, payload)
    return found.ident, found.number, found.further, _interned(found.peers)


_FOUND = Struct(f">IH{SIGNATURE_BYTES}s")
"""The number of a question, a member's position in it, and that member's signature."""


def encode_found(ident: int, place: int, proof: bytes) -> bytes:
    """Encode `live.found`, the reply to a question about one member.

    `place` is the member's position in the question, and `proof` its signature.
    """
    return _FOUND.pack(ident, place, proof)


def read_found(payload: Bytes) -> tuple[int, int, bytes]:
    """Decode a `live.found` to (number of the question, member's position in it, signature).

    Raises BadRecord if the size is wrong.
    """
    if len(payload) != _FOUND.size:
        raise BadRecord("a reply about a member has a wrong size")
    return _FOUND.unpack(payload)


def read_gather(payload: Bytes) -> tuple[bytes, list[PeerId]]:
    """Decode a `live.gather` to (nonce of the asking peer, members that must sign).

    Raises BadRecord if the message is malformed.
    """
    found = _read(_Gather, payload)
    return found.nonce, _interned(found.peers)


def read_gathered(payload: Bytes) -> tuple[list[bytes], list[bytes]]:
    """Decode a reply to `live.gather` to (Merkle path from nonce to signed root, signatures).

    Raises BadRecord if the reply is malformed.
    """
    found = _read(_Gathered, payload)
    return found.path, found.proofs


def _read(kind: type[R], payload: Bytes) -> R:
    try:
        return read(kind, payload, limit=defaults.LINKS_BYTES)
    except Undecodable as error:
        raise BadRecord(f"malformed message: {error}") from None


def _interned(names: Iterable[str]) -> list[PeerId]:
    """Return the names as interned peer ids.

    All peers name much the same members, so interning saves memory.
    """
    return [PeerId(intern(name)) for name in names]
