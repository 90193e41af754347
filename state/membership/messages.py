"""Encoding and decoding of membership messages, with bounds and types checked.

Wire: docs/spec/membership.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from sys import intern

import msgpack

from ...transport.decoding import Reader
from ...transport.errors import Undecodable
from ...transport.identity import SIGNATURE_BYTES, PeerId
from ...transport.networks import Nearness
from .. import defaults
from ..errors import BadRecord
from .record import unpack
from .roster import Offer, Tag

Told = tuple[Nearness, int, bytes]
"""How near a record came from, the seconds since its author had a link, and its sealed bytes."""


def read_told(payload: bytes | memoryview) -> list[Told]:
    """Return the records in a message. Raises BadRecord.

    They are read item by item, because the records may be 8 MiB of bytes in few elements.
    """
    try:
        reader = Reader(payload, limit=defaults.BATCH_BYTES, text=0)
        count = reader.array()
        if count > defaults.BATCH:
            raise BadRecord(f"a message has over {defaults.BATCH} records")
        items = [
            (reader.array(), reader.flat(), reader.flat(), reader.flat()) for _ in range(count)
        ]
        reader.end()
    except Undecodable as error:
        raise BadRecord(f"malformed message of records: {error}") from None
    if any(
        (size, type(reach), type(age), type(sealed)) != (3, int, int, bytes) or age < 0
        for size, reach, age, sealed in items
    ):
        raise BadRecord("a message of records has a wrong form")
    return [(Nearness(min(max(reach, 0), 2)), age, sealed) for _, reach, age, sealed in items]


_OFFER = Struct(f">{defaults.TAG_BYTES}sQBH")
"""An item of a digest: the author's tag, the record's number, its nearness, its age in seconds."""


def encode_digest(offers: Mapping[Tag, Offer]) -> bytes:
    """Encode `member.digest`: the records that this node offers, of at most MEMBERS authors."""
    return b"".join(
        _OFFER.pack(tag, offer.seq, offer.reach, min(offer.age, defaults.MAX_AGE))
        for tag, offer in offers.items()
    )


def read_digest(payload: bytes | memoryview) -> dict[Tag, Offer]:
    """Return the records that a peer offers, by author. Raises BadRecord."""
    count, rest = divmod(len(payload), _OFFER.size)
    if rest or count > defaults.MEMBERS:
        raise BadRecord("a digest has a wrong size")
    return {
        tag: Offer(seq, Nearness(min(reach, max(Nearness))), age)
        for tag, seq, reach, age in _OFFER.iter_unpack(payload)
    }


def read_sums(payload: bytes | memoryview) -> bytes:
    """Return a peer's checksums of the records that it knows, one for each bucket. Raises
    BadRecord."""
    if len(payload) != defaults.SUMS * defaults.SUM_BYTES:
        raise BadRecord("sums of records have a wrong size")
    return bytes(payload)


def encode_tags(tags: Iterable[Tag]) -> bytes:
    """Encode `member.pull`: the authors whose records this node asks for, at most BATCH."""
    return b"".join(tags)


def read_tags(payload: bytes | memoryview) -> list[Tag]:
    """Return the tags of the authors whose records a peer asks for. Raises BadRecord."""
    count, rest = divmod(len(payload), defaults.TAG_BYTES)
    if rest or count > defaults.BATCH:
        raise BadRecord("a request for records has a wrong size")
    data = bytes(payload)
    cuts = range(0, len(data), defaults.TAG_BYTES)
    return list(dict.fromkeys(data[at : at + defaults.TAG_BYTES] for at in cuts))


def read_links(payload: bytes | memoryview) -> tuple[bool, Sequence[PeerId], Sequence[PeerId]]:
    """Decode a report on links.

    Returns whether the report is complete, the peers with a live link to the sender, and the peers
    that no longer have one. Raises BadRecord.
    """
    match unpack(payload, list, defaults.LINKS_BYTES):
        case [bool(whole), list(has), list(lost), *_] if all(map(_is_name, (*has, *lost))):
            return whole, _names(has), _names(lost)
    raise BadRecord("a list of links has a wrong form")


def encode_find(ident: int, number: bytes, further: bool, peers: Sequence[PeerId]) -> bytes:
    """Encode `live.find`: the question's own number, the number that the members sign, whether to
    ask further peers, and the members."""
    return bytes(msgpack.packb([ident, number, further, list(peers)]))


def read_find(payload: bytes | memoryview) -> tuple[int, bytes, bool, list[PeerId]]:
    """Return the values of a `live.find`, in the order of the message. Raises BadRecord."""
    match unpack(payload, list, defaults.LINKS_BYTES):
        case [int(ident), bytes(number), bool(further), list(peers), *_]:
            fits = 0 <= ident < 2**32 and len(number) == defaults.NONCE_BYTES
            if fits and 0 < len(peers) <= defaults.ASKED_FOR and all(map(_is_name, peers)):
                return ident, number, further, _names(peers)
    raise BadRecord("a request for members has a wrong form")


_FOUND = Struct(f">IH{SIGNATURE_BYTES}s")
"""The number of a question, a member's position in it, and that member's signature."""


def encode_found(ident: int, place: int, proof: bytes) -> bytes:
    """Encode `live.found`, the reply about one member."""
    return _FOUND.pack(ident, place, proof)


def read_found(payload: bytes | memoryview) -> tuple[int, int, bytes]:
    """Return a question's number, the member's position in it, and its signature. Raises
    BadRecord."""
    if len(payload) != _FOUND.size:
        raise BadRecord("a reply about a member has a wrong size")
    return _FOUND.unpack(payload)


def read_gather(payload: bytes | memoryview) -> tuple[bytes, list[PeerId]]:
    """Return the asker's nonce and the members that must sign. Raises BadRecord."""
    match unpack(payload, list, defaults.LINKS_BYTES):
        case [bytes(nonce), list(peers), *_] if len(nonce) == defaults.NONCE_BYTES:
            if len(peers) <= defaults.ASKED_FOR and all(map(_is_name, peers)):
                return nonce, _names(peers)
    raise BadRecord("a request for proofs has a wrong form")


def read_gathered(payload: bytes | memoryview) -> tuple[list[bytes], list[bytes]]:
    """Return the Merkle path to the signed root, and the signatures. Raises BadRecord."""
    match unpack(payload, list, defaults.LINKS_BYTES):
        case [list(path), list(proofs), *_] if len(path) <= defaults.PATH:
            hashes = all(isinstance(x, bytes) and len(x) == defaults.NONCE_BYTES for x in path)
            signed = all(isinstance(x, bytes) and len(x) in (0, SIGNATURE_BYTES) for x in proofs)
            if hashes and signed:
                return path, proofs
    raise BadRecord("a reply about members has a wrong form")


def _names(found: Sequence[str]) -> list[PeerId]:
    """Return the names as interned peer ids. All peers name much the same members, so this saves
    memory."""
    return [PeerId(intern(name)) for name in found]


def _is_name(value: object) -> bool:
    """Whether a value may be a peer id.

    Names are kept, so their length is limited to bound the memory that a peer can use.
    """
    return isinstance(value, str) and len(value) <= defaults.NAME_BYTES
