"""Encoding and decoding of membership messages, with bounds and types checked.

Wire: docs/spec/membership.md.
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
from .roster import Offer, Tag

R = TypeVar("R", bound=Row)
Told = tuple[Nearness, int, bytes]
"""How near a record came from, the seconds since its author had a link, and its sealed bytes."""


class _Told(NamedTuple):
    reach: int
    age: Natural  # seconds
    sealed: bytes


_Name = Annotated[str, Meta(max_length=defaults.NAME_BYTES)]
"""A peer id. Names are kept, so their length is limited to bound the memory that a peer can use."""
_Names = Annotated[tuple[_Name, ...], Meta(max_length=ITEMS)]
_Nonce = Annotated[bytes, Meta(min_length=defaults.NONCE_BYTES, max_length=defaults.NONCE_BYTES)]


class _Links(Row, frozen=True):
    whole: bool
    has: _Names
    lost: _Names


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
    """Return the records in a message. Raises BadRecord."""
    try:
        found = read_rows(_Told, payload, limit=defaults.BATCH_BYTES, most=defaults.BATCH)
    except Undecodable as error:
        raise BadRecord(f"malformed message of records: {error}") from None
    return [(Nearness(min(max(each.reach, 0), 2)), each.age, each.sealed) for each in found]


_OFFER = Struct(f">{defaults.TAG_BYTES}sQBH")
"""An item of a digest: the author's tag, the record's number, its nearness, its age in seconds."""


def encode_digest(offers: Mapping[Tag, Offer]) -> bytes:
    """Encode `member.digest`: the records that this node offers, of at most MEMBERS authors."""
    return b"".join(
        _OFFER.pack(tag, offer.seq, offer.reach, min(offer.age, defaults.MAX_AGE))
        for tag, offer in offers.items()
    )


def read_digest(payload: Bytes) -> dict[Tag, Offer]:
    """Return the records that a peer offers, by author. Raises BadRecord."""
    count, rest = divmod(len(payload), _OFFER.size)
    if rest or count > defaults.MEMBERS:
        raise BadRecord("a digest has a wrong size")
    return {
        tag: Offer(seq, Nearness(min(reach, max(Nearness))), age)
        for tag, seq, reach, age in _OFFER.iter_unpack(payload)
    }


def read_sums(payload: Bytes) -> bytes:
    """Return a peer's checksums of the records that it knows, one for each bucket. Raises
    BadRecord."""
    if len(payload) != defaults.SUMS * defaults.SUM_BYTES:
        raise BadRecord("sums of records have a wrong size")
    return bytes(payload)


def encode_tags(tags: Iterable[Tag]) -> bytes:
    """Encode `member.pull`: the authors whose records this node asks for, at most BATCH."""
    return b"".join(tags)


def read_tags(payload: Bytes) -> list[Tag]:
    """Return the tags of the authors whose records a peer asks for. Raises BadRecord."""
    count, rest = divmod(len(payload), defaults.TAG_BYTES)
    if rest or count > defaults.BATCH:
        raise BadRecord("a request for records has a wrong size")
    data = bytes(payload)
    cuts = range(0, len(data), defaults.TAG_BYTES)
    return list(dict.fromkeys(data[at : at + defaults.TAG_BYTES] for at in cuts))


def read_links(payload: Bytes) -> tuple[bool, Sequence[PeerId], Sequence[PeerId]]:
    """Decode a report on links.

    Returns whether the report is complete, the peers with a live link to the sender, and the peers
    that no longer have one. Raises BadRecord.
    """
    found = _read(_Links, payload)
    return found.whole, _interned(found.has), _interned(found.lost)


def encode_find(ident: int, number: bytes, further: bool, peers: Sequence[PeerId]) -> bytes:
    """Encode `live.find`: the question's own number, the number that the members sign, whether to
    ask further peers, and the members."""
    return pack(_Find(ident, number, further, tuple(peers)))


def read_find(payload: Bytes) -> tuple[int, bytes, bool, list[PeerId]]:
    """Return the values of a `live.find`, in the order of the message. Raises BadRecord."""
    found = _read(_Find, payload)
    return found.ident, found.number, found.further, _interned(found.peers)


_FOUND = Struct(f">IH{SIGNATURE_BYTES}s")
"""The number of a question, a member's position in it, and that member's signature."""


def encode_found(ident: int, place: int, proof: bytes) -> bytes:
    """Encode `live.found`, the reply about one member."""
    return _FOUND.pack(ident, place, proof)


def read_found(payload: Bytes) -> tuple[int, int, bytes]:
    """Return a question's number, the member's position in it, and its signature. Raises
    BadRecord."""
    if len(payload) != _FOUND.size:
        raise BadRecord("a reply about a member has a wrong size")
    return _FOUND.unpack(payload)


def read_gather(payload: Bytes) -> tuple[bytes, list[PeerId]]:
    """Return the asker's nonce and the members that must sign. Raises BadRecord."""
    found = _read(_Gather, payload)
    return found.nonce, _interned(found.peers)


def read_gathered(payload: Bytes) -> tuple[list[bytes], list[bytes]]:
    """Return the Merkle path to the signed root, and the signatures. Raises BadRecord."""
    found = _read(_Gathered, payload)
    return found.path, found.proofs


def _read(kind: type[R], payload: Bytes) -> R:
    try:
        return read(kind, payload, limit=defaults.LINKS_BYTES)
    except Undecodable as error:
        raise BadRecord(f"malformed message: {error}") from None


def _interned(names: Iterable[str]) -> list[PeerId]:
    """Return the names as interned peer ids. All peers name much the same members, so this saves
    memory."""
    return [PeerId(intern(name)) for name in names]
