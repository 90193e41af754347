"""Messages of `dht.find` and `dht.store`, encoded as msgpack. Spec: docs/spec/dht.md.

Decoding checks types and limits. The records inside a message are not verified here.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Annotated, Final, TypeVar

from msgspec import Meta
from msgspec.structs import force_setattr

from ...transport.decoding import read
from ...transport.errors import Undecodable
from ...transport.message import Message, Natural, Row, pack
from .. import defaults
from ..errors import BadMessage
from ..records.contact import Contact, read_contact
from ..records.key import KeyBytes

M = TypeVar("M", bound=Message)
_LISTED: Final = 1_024  # most items of any list
_CODE_BYTES: Final = 32

_PLACES: Final = defaults.FIND_KEYS + defaults.FIND_NEAR

_Kind = Annotated[str, Meta(max_length=defaults.KIND_BYTES)]
_Packed = Annotated[bytes, Meta(max_length=defaults.CONTACT_BYTES)]


class Aged(Row, frozen=True):
    """A sealed record, and its age in seconds since its author last announced it."""

    age: Natural
    sealed: Annotated[bytes, Meta(max_length=defaults.RECORD_BYTES)]


class Find(Message, frozen=True):
    """Request for the records under `keys`, and for the contacts nearest to `keys` and `near`."""

    keys: Annotated[tuple[KeyBytes, ...], Meta(max_length=defaults.FIND_KEYS)]
    near: Annotated[tuple[KeyBytes, ...], Meta(max_length=defaults.FIND_NEAR)] = ()
    most: Natural = defaults.K  # records per key
    kinds: Annotated[tuple[_Kind, ...], Meta(max_length=defaults.FIND_KINDS)] = ()  # empty for all
    serves: _Packed | None = None  # the asker's contact, if it serves the DHT itself

    def check(self) -> None:
        """Check `kinds` and `serves`, and limit `most` to the largest allowed value.

        Raises ValueError or BadMessage if `kinds` or `serves` is invalid.
        """
        _check_printable(self.kinds)
        _check_contact(self.serves)
        force_setattr(self, "most", min(self.most, defaults.FIND_MOST))

    def encode(self) -> bytes:
        """Return the encoded request."""
        return _packed(self)

    @classmethod
    def decode(cls, payload: bytes) -> "Find":
        """Decode a request. Raises BadMessage if it is malformed or exceeds a limit."""
        return _read(cls, payload, defaults.FIND_BYTES)


class StoreRequest(Message, frozen=True):
    """Request to store records."""

    records: Annotated[tuple[Aged, ...], Meta(max_length=defaults.STORE_RECORDS)]
    serves: _Packed | None = None  # as in `Find`

    def check(self) -> None:
        """Check the size and the contact, and limit the ages.

        Raises ValueError or BadMessage if one is invalid.
        """
        _check_size(self.records)
        _check_contact(self.serves)
        force_setattr(self, "records", _clamped(self.records))

    def encode(self) -> bytes:
        """Return the encoded request."""
        return _packed(self)

    @classmethod
    def decode(cls, payload: bytes) -> "StoreRequest":
        """Decode a request. Raises BadMessage if it is malformed or exceeds a limit."""
        return _read(cls, payload, defaults.STORE_MESSAGE)


class _Found(Message, frozen=True):
    """Encoded reply to `Find`. `nearest` refers to `contacts` by index, so each is sent once."""

    records: Annotated[
        tuple[Annotated[tuple[Aged, ...], Meta(max_length=2 * defaults.FIND_MOST)], ...],
        Meta(max_length=defaults.FIND_KEYS),
    ]
    contacts: Annotated[tuple[_Packed, ...], Meta(max_length=_LISTED)]
    nearest: Annotated[
        tuple[Annotated[tuple[Natural, ...], Meta(max_length=defaults.K)], ...],
        Meta(max_length=_PLACES),
    ]

    def check(self) -> None:
        """Raise ValueError if the records have too many bytes."""
        _check_size(aged for each in self.records for aged in each)


class _Codes(Message, frozen=True):
    """Encoded reply to `StoreRequest`."""

    codes: Annotated[
        tuple[Annotated[str, Meta(max_length=_CODE_BYTES)], ...],
        Meta(max_length=defaults.STORE_RECORDS),
    ]

    def check(self) -> None:
        """Raise ValueError if a code is not printable."""
        _check_printable(self.codes)


@dataclass(frozen=True, slots=True)
class FindReply:
    """Reply to `Find`.

    `records` has a list for each key, and `nearest` has the contacts for each key, and then for
    each position in `near`.
    """

    records: tuple[tuple[Aged, ...], ...]
    nearest: tuple[tuple[Contact, ...], ...]

    def encode(self) -> bytes:
        """Return the encoded reply. If there are too many contacts, the farthest ones are left out.

        Records are never left out. The caller must limit them when choosing.
        """
        index: dict[Contact, int] = {}
        left = defaults.MESSAGE_CONTACTS
        lists: list[list[int]] = [[] for _ in self.nearest]
        for rank in zip_longest(*self.nearest):  # the nearest of each position, then the next
            for place, contact in enumerate(rank):
                if contact is None:
                    continue
                if contact not in index:
                    if len(contact.packed) > left or len(index) == _LISTED:
                        continue
                    left -= len(contact.packed)
                    index[contact] = len(index)
                lists[place].append(index[contact])
        contacts = tuple(contact.packed for contact in index)
        return _packed(_Found(self.records, contacts, tuple(map(tuple, lists))))

    @classmethod
    def decode(cls, payload: bytes, find: Find) -> "FindReply":
        """Decode the reply to `find`.

        Raises BadMessage if it is malformed or has more than requested.
        """
        told = _read(_Found, payload, defaults.MESSAGE_LIMIT)
        places = len(find.keys) + len(find.near)
        if len(told.nearest) != places or len(told.records) != len(find.keys):
            raise BadMessage("the reply does not match the requested keys")
        if len(told.contacts) > places * defaults.K:
            raise BadMessage("the reply has more contacts than requested")
        if any(len(each) > 2 * find.most for each in told.records):
            raise BadMessage("the reply has more records than requested")
        contacts = [read_contact(each) for each in told.contacts]
        nearest = tuple(_picked(each, contacts) for each in told.nearest)
        return cls(tuple(map(_clamped, told.records)), nearest)


def encode_codes(codes: Sequence[str]) -> bytes:
    """Encode the reply to `StoreRequest`: one error code for each record, "" for a stored one."""
    return _packed(_Codes(tuple(codes)))


def decode_codes(payload: bytes, count: int) -> tuple[str, ...]:
    """Decode the codes of `count` records. Raises BadMessage if the reply is malformed."""
    codes = _read(_Codes, payload, defaults.MESSAGE_LIMIT).codes
    if len(codes) != count:
        raise BadMessage("the reply must have a code for each record")
    return codes


def batches(records: Sequence[Aged]) -> Iterator[tuple[Aged, ...]]:
    """Split records into batches, each of which fits into one message."""
    batch: list[Aged] = []
    size = 0
    for aged in records:
        if batch and (
            size + len(aged.sealed) > defaults.MESSAGE_RECORDS
            or len(batch) == defaults.STORE_RECORDS
        ):
            yield tuple(batch)
            batch, size = [], 0
        batch.append(aged)
        size += len(aged.sealed)
    if batch:
        yield tuple(batch)


def _packed(message: Message) -> bytes:
    """Encode a message. Raises BadMessage if it is too large."""
    packed = pack(message)
    if len(packed) > defaults.MESSAGE_LIMIT:
        raise BadMessage("a message of this node is too large")
    return packed


def _read(kind: type[M], payload: bytes, limit: int) -> M:
    """Decode a message of the type `kind`, of at most `limit` bytes.

    Raises BadMessage if the message is malformed or too large.
    """
    try:
        return read(kind, payload, limit=limit)
    except Undecodable as error:
        raise BadMessage(f"cannot decode a message: {error}") from None


def _check_contact(packed: bytes | None) -> None:
    """Raise BadMessage if an encoded contact is malformed.

    `read_contact` caches the decoded contact.
    """
    if packed is not None:
        read_contact(packed)


def _check_printable(words: Sequence[str]) -> None:
    """Raise ValueError if a text is not printable."""
    if not all(word.isprintable() for word in words):
        raise ValueError("expected printable text")


def _check_size(records: Iterable[Aged]) -> None:
    """Raise ValueError if the records have too many bytes for one message."""
    if sum(len(aged.sealed) for aged in records) > defaults.MESSAGE_RECORDS:
        raise ValueError(f"more than {defaults.MESSAGE_RECORDS} bytes of records in one message")


def _clamped(records: tuple[Aged, ...]) -> tuple[Aged, ...]:
    """Return the records with ages of at most `AGE_LIMIT`."""
    return tuple(
        each if each.age <= defaults.AGE_LIMIT else Aged(defaults.AGE_LIMIT, each.sealed)
        for each in records
    )


def _picked(indexes: Sequence[int], contacts: Sequence[Contact]) -> tuple[Contact, ...]:
    """Return the contacts with these indexes, without duplicates.

    Raises BadMessage if an index is out of range.
    """
    if not all(index < len(contacts) for index in indexes):
        raise BadMessage("the reply refers to contacts that it does not contain")
    return tuple(contacts[index] for index in dict.fromkeys(indexes))
