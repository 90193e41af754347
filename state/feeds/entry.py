"""Feed entries: signed, numbered updates of one author's document, chained by hashes.

An entry's sealed bytes are its signed form. They are stored and forwarded exactly as they were
received, so fields that this version does not know survive. Spec: docs/spec/state.md.
"""

import hashlib
import struct
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import msgpack
from msgspec import Meta

from ...transport.decoding import decode, typed
from ...transport.errors import Undecodable
from ...transport.identity import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    Identity,
    PeerId,
    peer_id_of,
    public_key_of,
    verify,
)
from ...transport.message import Digest, Message, pack
from ...transport.signed import ENVELOPE_OVERHEAD, seal
from .. import defaults
from ..errors import BadEntry
from .kinds import KINDS, FeedKind

DOMAIN = "shoal/feed/1"
HASH_BYTES = 32
NO_PARENT = bytes(HASH_BYTES)  # parent of an epoch's first entry
MAX_EPOCH = defaults.MAX_SEQ - 1
SEALED_BYTES = 2 + defaults.ENTRY_HEADER_BYTES + defaults.SNAPSHOT_BYTES + ENVELOPE_OVERHEAD
# The canonical start of an envelope: an array of three, whose first two items are byte strings of
# 32 and 64 bytes. The third item may have any size.
_KEY = slice(3, 3 + KEY_BYTES)
_SIGNATURE = slice(_KEY.stop + 2, _KEY.stop + 2 + SIGNATURE_BYTES)


class FeedName(NamedTuple):
    """The name of a feed: its author, kind, and part (0 if the kind has no parts)."""

    author: PeerId
    kind: str
    part: int


class Head(NamedTuple):
    """The number and hash of a feed's last entry. Heads are ordered by (epoch, seq)."""

    epoch: int
    seq: int
    hash: bytes


FORKED = Head(MAX_EPOCH + 1, 0, hashlib.sha256(DOMAIN.encode() + b" forked").digest())
"""The head of every feed with a proven fork. It is above all other heads, and is the same whichever
entries prove the fork."""


_Number = Annotated[int, Meta(ge=0, le=MAX_EPOCH)]


class _Header(Message, frozen=True):
    """The fields of an entry besides its update, in the order in which they are signed."""

    kind: str
    part: int
    epoch: Annotated[int, Meta(ge=1, le=MAX_EPOCH)]
    seq: _Number
    parent: Digest
    made: _Number


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a feed, created by `seal_entry`, `open_entry` or `read_stored`."""

    name: FeedName
    epoch: int  # 1 .. MAX_EPOCH; an honest author uses its wall clock in ms
    seq: int  # 0 is the snapshot that begins the epoch
    parent: bytes  # hash of the previous entry, NO_PARENT for seq 0
    made: int  # the author's wall clock in ms; for display only
    update: bytes = field(repr=False)
    hash: bytes
    sealed: bytes = field(repr=False)

    @property
    def head(self) -> Head:
        """The entry's number and hash."""
        return Head(self.epoch, self.seq, self.hash)

    @property
    def kind(self) -> FeedKind:
        """The kind of the entry's feed, with its limits."""
        return KINDS[self.name.kind]

    @property
    def size(self) -> int:
        """The size of the sealed bytes, which is the same at every node."""
        return len(self.sealed)


@dataclass(frozen=True, slots=True)
class Proof:
    """The proof of a fork: two different entries by one author with the same number."""

    first: Entry  # the one with the lower hash
    second: Entry

    @classmethod
    def of(cls, one: Entry, other: Entry) -> "Proof":
        """Return the proof from two entries in either order.

        Raises BadEntry with code `bad-proof` if the entries are equal or their numbers differ.
        """
        same = one.name == other.name and (one.epoch, one.seq) == (other.epoch, other.seq)
        if not same or one.hash == other.hash:
            raise BadEntry("bad-proof", "two entries prove no fork")
        return cls(*sorted((one, other), key=lambda entry: entry.hash))

    @property
    def name(self) -> FeedName:
        """The name of the feed that has forked."""
        return self.first.name

    @property
    def size(self) -> int:
        """The size of both entries in bytes."""
        return self.first.size + self.second.size

    @property
    def sealed(self) -> tuple[bytes, bytes]:
        """The sealed bytes of both entries, which `open_proof` accepts."""
        return self.first.sealed, self.second.sealed


class UncheckedEntry(NamedTuple):
    """An entry from a peer as it claims to be, before its signature is checked (`parse_entry`)."""

    entry: Entry
    signature: bytes
    body: bytes  # what the signature covers

    def checked(self) -> Entry:
        """Check the signature, which takes 0.1 ms, and return the entry.

        Raises BadEntry with code `bad-signature` if the author has not signed the entry.
        """
        if not verify(self.entry.name.author, DOMAIN, self.body, self.signature):
            name = self.entry.name
            raise BadEntry("bad-signature", f"an entry is not signed by `{name.author}`")
        return self.entry


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
    """Return a signed entry of one of this node's own feeds.

    Raises BadEntry if other nodes would refuse the entry.
    """
    told = pack(_Header(kind, part, epoch, seq, parent, made))
    return read_stored(seal(identity, DOMAIN, struct.pack(">H", len(told)) + told + update))


def open_entry(sealed: bytes) -> Entry:
    """Parse an entry's sealed bytes from a peer, and check its signature.

    Raises BadEntry. With code `too-large`, `bad-envelope` or `bad-signature`, the peer that sent
    the entry is to blame. With code `bad-entry` or `unknown-kind`, its author is to blame, or a
    later version wrote it.
    """
    return parse_entry(sealed).checked()


def open_proof(first: bytes, second: bytes) -> Proof:
    """Parse the sealed bytes of two entries, check both signatures, and return the proof of a fork.

    Raises BadEntry if an entry is invalid or the two prove no fork.
    """
    return Proof.of(open_entry(first), open_entry(second))


def read_stored(sealed: bytes) -> Entry:
    """Parse an entry's sealed bytes without checking the signature.

    Use this for entries that were checked before they were stored, and use `open_entry` for entries
    from peers. Raises BadEntry if the bytes are malformed.
    """
    return parse_entry(sealed).entry


def parse_entry(sealed: bytes) -> UncheckedEntry:
    """Parse an entry's sealed bytes from a peer, and leave its signature to be checked later.

    Raises BadEntry if the bytes are malformed.
    """
    public_key, signature, body = _unseal(sealed)
    header, update = _split(body)
    kind, part = header.kind, header.part
    if kind not in KINDS or part not in KINDS[kind].parts:
        raise BadEntry("unknown-kind", "this version does not know the kind or part of an entry")
    entry = Entry(
        name=FeedName(peer_id_of(public_key), KINDS[kind].name, part),  # share one string
        epoch=header.epoch,
        seq=header.seq,
        parent=header.parent,
        made=header.made,
        update=update,
        hash=_hash(public_key, body),
        sealed=sealed,
    )
    return UncheckedEntry(entry, signature, body)


def client_of(name: FeedName, epoch: int) -> int:
    """Return the CRDT client id of a feed's document, from 1 to 2^32 - 1.

    The id is a hash, so each epoch of each feed has its own.
    """
    told = f"{DOMAIN} client {name.kind} {name.part} {epoch} ".encode()
    digest = hashlib.sha256(told + public_key_of(name.author)).digest()
    return int.from_bytes(digest[:4]) or 1


def _hash(public_key: bytes, body: bytes) -> bytes:
    """Return the hash of an entry, over the author's key and the body.

    The signature is not hashed, because one body can have many valid signatures.
    """
    domain = DOMAIN.encode()
    return hashlib.sha256(struct.pack(">I", len(domain)) + domain + public_key + body).digest()


def _unseal(sealed: bytes) -> tuple[bytes, bytes, bytes]:
    """Return (public key, signature, body) of a canonical envelope.

    The envelope is parsed by hand, because a decoder would create objects from anything that a peer
    sends. Raises BadEntry if the envelope is too large or not canonical.
    """
    if len(sealed) > SEALED_BYTES:
        raise BadEntry("too-large", f"an entry exceeds {SEALED_BYTES} bytes")
    public_key, signature, rest = sealed[_KEY], sealed[_SIGNATURE], sealed[_SIGNATURE.stop :]
    body = rest[{0xC4: 2, 0xC5: 3}.get(rest[0], 5) :] if rest else b""
    if msgpack.packb([public_key, signature, body]) != sealed:
        raise BadEntry("bad-envelope", "the envelope of an entry is malformed or not canonical")
    return public_key, signature, body


def _split(body: bytes) -> tuple[_Header, bytes]:
    """Split an entry's body into the header and the update. Raises BadEntry if one is malformed."""
    size = int.from_bytes(body[:2])
    header, update = body[2 : 2 + size], body[2 + size :]
    if len(header) != size or size > defaults.ENTRY_HEADER_BYTES:
        raise BadEntry("bad-entry", "the header of an entry is too large or truncated")
    if len(update) > defaults.SNAPSHOT_BYTES:
        raise BadEntry("bad-entry", "an entry's update is too large")
    try:
        fields = decode(header, limit=defaults.ENTRY_HEADER_BYTES, once=True)
        return typed(_Header, fields), update
    except Undecodable as error:
        raise BadEntry("bad-entry", f"the header of an entry is malformed: {error}") from None
