"""Entries: the signed, numbered updates of one author's document, each naming the one before.

The sealed bytes are what is kept and what travels, exactly as they came, so fields this version
does not know survive. Spec: docs/spec/state.md.
"""

import hashlib
import struct
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgpack

from ..transport.decoding import decode
from ..transport.errors import Undecodable
from ..transport.identity import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    Identity,
    PeerId,
    peer_id_of,
    public_key_of,
    verify,
)
from ..transport.signed import ENVELOPE_OVERHEAD, seal
from . import defaults
from .errors import BadEntry
from .kinds import KINDS, Kind

DOMAIN = "shoal/feed/1"
HASH_BYTES = 32
NO_PARENT = bytes(HASH_BYTES)  # of an epoch's first entry
MAX_EPOCH = defaults.MAX_SEQ - 1
SEALED_BYTES = 2 + defaults.ENTRY_HEADER_BYTES + defaults.SNAPSHOT_BYTES + ENVELOPE_OVERHEAD
# How an envelope begins, in the one spelling: an array of three, of which the first two are
# byte strings of 32 and 64; then the third, of any size.
_KEY = slice(3, 3 + KEY_BYTES)
_SIGNATURE = slice(_KEY.stop + 2, _KEY.stop + 2 + SIGNATURE_BYTES)


class FeedName(NamedTuple):
    """Which feed: its author, its kind, its part (0 where the kind has none)."""

    author: PeerId
    kind: str
    part: int


class Head(NamedTuple):
    """The last entry of a feed, by number and hash. Heads order by (epoch, seq)."""

    epoch: int
    seq: int
    hash: bytes


FORKED = Head(MAX_EPOCH + 1, 0, hashlib.sha256(DOMAIN.encode() + b" forked").digest())
"""The head of every feed with a proven fork: above all others, whichever entries prove it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a feed. Make it with `seal_entry`, `open_entry` or `read_stored`."""

    name: FeedName
    epoch: int  # 1 .. MAX_EPOCH; an honest author's is its wall clock in ms
    seq: int  # 0, a snapshot, begins the epoch
    parent: bytes  # hash of the entry before, NO_PARENT for seq 0
    made: int  # ms, the author's wall clock: for people only
    update: bytes = field(repr=False)
    hash: bytes
    sealed: bytes = field(repr=False)

    @property
    def head(self) -> Head:
        """Its number and hash."""
        return Head(self.epoch, self.seq, self.hash)

    @property
    def kind(self) -> Kind:
        """The kind of its feed, with the limits."""
        return KINDS[self.name.kind]

    @property
    def size(self) -> int:
        """Bytes as it travels and is kept: the same for everybody who has it."""
        return len(self.sealed)


@dataclass(frozen=True, slots=True)
class Proof:
    """Two entries by one author with the same number: the feed has forked."""

    first: Entry  # the one with the lower hash
    second: Entry

    @classmethod
    def of(cls, one: Entry, other: Entry) -> "Proof":
        """The proof by two entries, in either order. Raises `BadEntry("bad-proof")`."""
        same = one.name == other.name and (one.epoch, one.seq) == (other.epoch, other.seq)
        if not same or one.hash == other.hash:
            raise BadEntry("bad-proof", "two entries prove no fork")
        return cls(*sorted((one, other), key=lambda entry: entry.hash))

    @property
    def name(self) -> FeedName:
        """The feed that forked."""
        return self.first.name

    @property
    def size(self) -> int:
        """Bytes of both entries."""
        return self.first.size + self.second.size

    @property
    def sealed(self) -> tuple[bytes, bytes]:
        """The bytes of both entries, for `open_proof`."""
        return self.first.sealed, self.second.sealed


def seal_entry(
    identity: Identity,
    kind: str,
    part: int,
    *,
    epoch: int,
    seq: int,
    parent: bytes,
    made: int,
    update: bytes,
) -> Entry:
    """A signed entry of an own feed. Raises BadEntry where others would not take it."""
    header = {"kind": kind, "part": part, "epoch": epoch, "seq": seq, "parent": parent}
    told = msgpack.packb(header | {"made": made})
    return read_stored(seal(identity, DOMAIN, struct.pack(">H", len(told)) + told + update))


def open_entry(sealed: bytes) -> Entry:
    """The entry in signed bytes from a stranger, its signature checked.

    Raises BadEntry: `too-large`, `bad-envelope` and `bad-signature` blame who handed it on,
    `bad-entry` and `unknown-kind` its author, or a later version.
    """
    entry, signature, body = _read(sealed)
    if not verify(entry.name.author, DOMAIN, body, signature):
        raise BadEntry("bad-signature", f"an entry is not signed by `{entry.name.author}`")
    return entry


def open_proof(first: bytes, second: bytes) -> Proof:
    """The proof in the bytes of two entries, both signatures checked. Raises BadEntry."""
    return Proof.of(open_entry(first), open_entry(second))


def peek_entry(sealed: bytes) -> tuple[FeedName, Head]:
    """What the bytes claim to be, before the cost of the signature check. Raises BadEntry."""
    entry = read_stored(sealed)
    return entry.name, entry.head


def read_stored(sealed: bytes) -> Entry:
    """An entry whose signature was checked before it was stored, or is not yet.

    Nothing that comes from a peer goes on from here: `open_entry` is for that.
    """
    return _read(sealed)[0]


def client_of(name: FeedName, epoch: int) -> int:
    """The client id of a feed's document: 1 .. 2^32-1, another in each epoch."""
    told = f"{DOMAIN} client {name.kind} {name.part} {epoch} ".encode()
    digest = hashlib.sha256(told + public_key_of(name.author)).digest()
    return int.from_bytes(digest[:4]) or 1


def _read(sealed: bytes) -> tuple[Entry, bytes, bytes]:
    """The entry, the signature it claims, the body that this has to cover."""
    public_key, signature, body = _unseal(sealed)
    fields, update = _split(body)
    kind, part = fields.get("kind"), fields.get("part")
    if not isinstance(kind, str) or type(part) is not int:
        raise BadEntry("bad-entry", "an entry names no feed")
    if kind not in KINDS or part not in KINDS[kind].parts:
        raise BadEntry("unknown-kind", "an entry is of a kind or part this version does not keep")
    entry = Entry(
        name=FeedName(peer_id_of(public_key), KINDS[kind].name, part),  # not another text each
        epoch=_whole(fields.get("epoch"), 1, MAX_EPOCH),
        seq=_whole(fields.get("seq"), 0, MAX_EPOCH),
        parent=_parent(fields.get("parent")),
        made=_whole(fields.get("made"), 0, MAX_EPOCH),
        update=update,
        hash=_hash(public_key, body),
        sealed=sealed,
    )
    return entry, signature, body


def _hash(public_key: bytes, body: bytes) -> bytes:
    """Over what was said and by whom, not the signature: one body can be signed in many ways."""
    domain = DOMAIN.encode()
    return hashlib.sha256(struct.pack(">I", len(domain)) + domain + public_key + body).digest()


def _unseal(sealed: bytes) -> tuple[bytes, bytes, bytes]:
    """Public key, signature and body of an envelope in its one spelling.

    Read by hand: a decoder would make objects of whatever else a stranger sends.
    """
    if len(sealed) > SEALED_BYTES:
        raise BadEntry("too-large", f"an entry has over {SEALED_BYTES} bytes")
    public_key, signature, rest = sealed[_KEY], sealed[_SIGNATURE], sealed[_SIGNATURE.stop :]
    body = rest[{0xC4: 2, 0xC5: 3}.get(rest[0], 5) :] if rest else b""
    if msgpack.packb([public_key, signature, body]) != sealed:
        raise BadEntry("bad-envelope", "an entry is not readable, or not in the one spelling")
    return public_key, signature, body


def _split(body: bytes) -> tuple[dict[str, Any], bytes]:
    """The header's fields, and the update."""
    size = int.from_bytes(body[:2])
    header, update = body[2 : 2 + size], body[2 + size :]
    if len(header) != size or size > defaults.ENTRY_HEADER_BYTES:
        raise BadEntry("bad-entry", "an entry's header is too large, or ends too early")
    if len(update) > defaults.SNAPSHOT_BYTES:
        raise BadEntry("bad-entry", "an entry's update is too large")
    try:
        fields = decode(header, limit=defaults.ENTRY_HEADER_BYTES, once=True)
    except Undecodable:
        raise BadEntry("bad-entry", "an entry's header is not readable") from None
    if not isinstance(fields, dict):
        raise BadEntry("bad-entry", "an entry's header is not a map")
    return fields, update


def _whole(value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise BadEntry("bad-entry", "a number of an entry is out of bounds")
    return value


def _parent(value: object) -> bytes:
    if not isinstance(value, bytes) or len(value) != HASH_BYTES:
        raise BadEntry("bad-entry", "an entry's parent is no hash")
    return value
