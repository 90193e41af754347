"""The messages of membership, bounded and typed before they are used. docs/spec/membership.md."""

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from sys import intern

from ..transport.decoding import Reader
from ..transport.errors import Undecodable
from ..transport.identity import SIGNATURE_BYTES, PeerId
from ..transport.place import Nearness
from . import defaults
from .errors import BadRecord
from .record import unpack
from .roster import Offer, Tag

Told = tuple[Nearness, int, bytes]
"""How near a record came from, for how many seconds its author had no link, its sealed bytes."""


def read_told(payload: bytes | memoryview) -> list[Told]:
    """The records in a message, each as `Told`.

    Read item by item: the records are 8 MiB of bytes in few elements.
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
        raise BadRecord(f"a message of records is not readable: {error}") from None
    if any(
        (size, type(reach), type(age), type(sealed)) != (3, int, int, bytes) or age < 0
        for size, reach, age, sealed in items
    ):
        raise BadRecord("a message has something else than records")
    return [(Nearness(min(max(reach, 0), 2)), age, sealed) for _, reach, age, sealed in items]


_OFFER = Struct(f">{defaults.TAG_BYTES}sQBH")
"""In a digest: the author's tag, the record's number, how near it came from, its age in seconds."""


def encode_digest(offers: Mapping[Tag, Offer]) -> bytes:
    """`member.digest`: what this node can tell, of at most MEMBERS authors."""
    return b"".join(
        _OFFER.pack(tag, offer.seq, offer.reach, min(offer.age, defaults.MAX_AGE))
        for tag, offer in offers.items()
    )


def read_digest(payload: bytes | memoryview) -> dict[Tag, Offer]:
    """What a peer can tell, by author. Raises BadRecord."""
    count, rest = divmod(len(payload), _OFFER.size)
    if rest or count > defaults.MEMBERS:
        raise BadRecord("a digest has a wrong size")
    return {
        tag: Offer(seq, Nearness(min(reach, max(Nearness))), age)
        for tag, seq, reach, age in _OFFER.iter_unpack(payload)
    }


def read_sums(payload: bytes | memoryview) -> bytes:
    """Return a peer's sums of all records that it knows, by bucket. Raises BadRecord."""
    if len(payload) != defaults.SUMS * defaults.SUM_BYTES:
        raise BadRecord("sums of records have a wrong size")
    return bytes(payload)


def encode_tags(tags: Iterable[Tag]) -> bytes:
    """`member.pull`: whose records this node asks for, at most BATCH of them."""
    return b"".join(tags)


def read_tags(payload: bytes | memoryview) -> list[Tag]:
    """Return the tags of the authors whose records a peer asks for. Raises BadRecord."""
    count, rest = divmod(len(payload), defaults.TAG_BYTES)
    if rest or count > defaults.BATCH:
        raise BadRecord("a question for records has a wrong size")
    data = bytes(payload)
    cuts = range(0, len(data), defaults.TAG_BYTES)
    return list(dict.fromkeys(data[at : at + defaults.TAG_BYTES] for at in cuts))


def read_links(payload: bytes | memoryview) -> tuple[bool, Sequence[PeerId], Sequence[PeerId]]:
    """[whether that is all, peer ids with whom its sender has a link that answers, peer ids with
    whom it no longer has]. Raises BadRecord."""
    match unpack(payload, list, defaults.LINKS_BYTES):
        case [bool(whole), list(has), list(lost), *_] if all(map(_is_name, (*has, *lost))):
            return whole, _names(has), _names(lost)
    raise BadRecord("a list of links has a wrong form")


def read_find(payload: bytes | memoryview) -> tuple[PeerId, bytes, bool]:
    """[a member's peer id, the number that it is to sign, whether others may be asked]. Raises
    BadRecord."""
    match unpack(payload, list, 256):
        case [str(peer), bytes(nonce), bool(further), *_] if len(nonce) == defaults.NONCE_BYTES:
            return PeerId(peer), nonce, further
    raise BadRecord("a question for a member has a wrong form")


def read_gather(payload: bytes | memoryview) -> tuple[bytes, list[PeerId]]:
    """Return the asker's number and the members that are to sign. Raises BadRecord."""
    match unpack(payload, list, defaults.LINKS_BYTES):
        case [bytes(nonce), list(peers), *_] if len(nonce) == defaults.NONCE_BYTES:
            if len(peers) <= defaults.ASKED_FOR and all(map(_is_name, peers)):
                return nonce, _names(peers)
    raise BadRecord("a question for members has a wrong form")


def read_gathered(payload: bytes | memoryview) -> tuple[list[bytes], list[bytes]]:
    """Return the path to the signed number, and the signatures. Raises BadRecord."""
    match unpack(payload, list, defaults.LINKS_BYTES):
        case [list(path), list(proofs), *_] if len(path) <= defaults.PATH:
            hashes = all(isinstance(x, bytes) and len(x) == defaults.NONCE_BYTES for x in path)
            signed = all(isinstance(x, bytes) and len(x) in (0, SIGNATURE_BYTES) for x in proofs)
            if hashes and signed:
                return path, proofs
    raise BadRecord("an answer for members has a wrong form")


def _names(found: Sequence[str]) -> list[PeerId]:
    """Each peer names much the same members, and what it names is kept: once for all peers."""
    return [PeerId(intern(name)) for name in found]


def _is_name(value: object) -> bool:
    """Whether it may be a peer id. Such names are kept, so that so many of any length were more
    than a peer may fill here."""
    return isinstance(value, str) and len(value) <= defaults.NAME_BYTES
