"""Messages of `dht.find` and `dht.store`, encoded as msgpack. Spec: docs/spec/dht.md.

Decoding checks types and limits. Records inside a message stay sealed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final, NamedTuple

import msgpack

from ...transport.decoding import Reader
from ...transport.errors import Undecodable
from .. import defaults
from ..errors import BadMessage, BadRecord
from ..records.contact import Contact, read_contact
from ..records.key import Key, as_key

_LISTED: Final = 1_024  # items of any list
_FIELDS: Final = 32
_ITEMS: Final = 8_192  # items of all lists together
_CODE_BYTES: Final = 32
_ASKED: Final = ("keys", "near", "most", "kinds", "serves")


class Aged(NamedTuple):
    """A sealed record and its age: seconds since its author last announced it."""

    age: int
    sealed: bytes


@dataclass(frozen=True, slots=True)
class Find:
    """Request for the records under `keys`, and for the contacts nearest to them and to `near`."""

    keys: tuple[Key, ...]
    near: tuple[Key, ...] = ()
    most: int = defaults.K  # records per key
    kinds: tuple[str, ...] = ()  # empty for all
    serves: Contact | None = None  # the asker, if it serves the DHT itself

    def encode(self) -> bytes:
        fields: dict[str, Any] = {"keys": self.keys, "most": self.most}
        if self.near:
            fields["near"] = self.near
        if self.kinds:
            fields["kinds"] = self.kinds
        return _packed(fields, self.serves)

    @classmethod
    def decode(cls, payload: bytes) -> "Find":
        """Decode a request. Raises BadMessage."""
        fields = _map(payload, *_ASKED, limit=defaults.FIND_BYTES)
        most = fields.get("most", defaults.K)
        if type(most) is not int or most < 0:
            raise BadMessage("`most` must be a count")
        return cls(
            _keys(fields.get("keys"), defaults.FIND_KEYS),
            _keys(fields.get("near", []), defaults.FIND_NEAR),
            min(most, defaults.FIND_MOST),
            _words(fields.get("kinds", []), defaults.FIND_KINDS, defaults.KIND_BYTES),
            _serves(fields),
        )


@dataclass(frozen=True, slots=True)
class Found:
    """Reply: records for each key, and contacts for each key and each position in `near`."""

    records: tuple[tuple[Aged, ...], ...]
    nearest: tuple[tuple[Contact, ...], ...]

    def encode(self) -> bytes:
        """Encode the reply, dropping the farthest contacts beyond the limit.

        Records are never dropped: the caller limits them when choosing.
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
        contacts = [contact.packed for contact in index]
        return _packed({"records": self.records, "contacts": contacts, "nearest": lists})

    @classmethod
    def decode(cls, payload: bytes, find: Find) -> "Found":
        """Decode the reply to `find`. Raises BadMessage."""
        fields = _map(payload, "records", "contacts", "nearest", depth=3)
        places = len(find.keys) + len(find.near)
        most = min(places * defaults.K, _LISTED)
        contacts = [_contact(each) for each in _list(fields.get("contacts"), most)]
        lists = _list(fields.get("nearest"), places)
        records = _list(fields.get("records"), len(find.keys))
        if len(lists) != places or len(records) != len(find.keys):
            raise BadMessage("the reply does not match the requested keys")
        found = cls(
            tuple(_aged_list(each, find.most * 2) for each in records),
            tuple(_picked(each, contacts) for each in lists),
        )
        _check_size(aged for each in found.records for aged in each)
        return found


@dataclass(frozen=True, slots=True)
class Store:
    """Request to store records."""

    records: tuple[Aged, ...]
    serves: Contact | None = None

    def encode(self) -> bytes:
        return _packed({"records": self.records}, self.serves)

    @classmethod
    def decode(cls, payload: bytes) -> "Store":
        """Decode a request. Raises BadMessage."""
        fields = _map(payload, "records", "serves", limit=defaults.STORE_MESSAGE, depth=2)
        records = _aged_list(fields.get("records"), defaults.STORE_RECORDS)
        _check_size(records)
        return cls(records, _serves(fields))


def encode_codes(codes: Sequence[str]) -> bytes:
    """Encode the reply to `Store`: an error code for each record, "" if stored."""
    return _packed({"codes": codes})


def decode_codes(payload: bytes, count: int) -> tuple[str, ...]:
    """Decode the codes of `count` records. Raises BadMessage."""
    codes = _words(_map(payload, "codes").get("codes"), count, _CODE_BYTES)
    if len(codes) != count:
        raise BadMessage("the reply must have a code for each record")
    return codes


def batches(records: Sequence[Aged]) -> Iterator[tuple[Aged, ...]]:
    """Split records into as few messages as the limits allow."""
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


def _packed(fields: dict[str, Any], serves: Contact | None = None) -> bytes:
    if serves is not None:
        fields["serves"] = serves.packed
    packed: bytes = msgpack.packb(fields)
    if len(packed) > defaults.MESSAGE_LIMIT:
        raise BadMessage("a message of this node is too large")
    return packed


def _map(
    payload: bytes, *names: str, limit: int = defaults.MESSAGE_LIMIT, depth: int = 1
) -> dict[str, Any]:
    """Read the fields in `names`, with lists nested up to `depth`; skip all other fields."""
    try:
        return _Fields(Reader(payload, limit=limit)).read(names, depth)
    except Undecodable as error:
        raise BadMessage(f"cannot decode a message: {error}") from None


class _Fields:
    """Reader of a message's fields, limited to the items that a valid message can have.

    Without the limit, a message full of nested empty lists would take a hundred times as long, and
    as much memory, as one full of records.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._left = _ITEMS

    def read(self, names: tuple[str, ...], depth: int) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        count = self._reader.map()
        if count > _FIELDS:
            raise BadMessage("a message has too many fields")
        for _ in range(count):
            name = self._value(0)
            if type(name) is not str:
                raise BadMessage("a message's field names must be text")
            if name in names:
                fields[name] = self._value(depth)
            else:
                self._reader.skip()
        self._reader.end()
        return fields

    def _value(self, depth: int) -> Any:
        """Read a value with lists nested up to `depth`; replace deeper lists and maps by None."""
        self._left -= 1
        if self._left < 0:
            raise BadMessage("a message has too many items")
        reader = self._reader
        if depth and reader.at_array():
            return [self._value(depth - 1) for _ in range(reader.array())]
        if reader.at_array() or reader.at_map():
            reader.skip()
            return None
        return reader.flat()


def _list(value: object, most: int) -> list[Any]:
    if type(value) is not list or len(value) > most:
        raise BadMessage(f"expected a list of at most {most} items")
    return value


def _keys(value: object, most: int) -> tuple[Key, ...]:
    try:
        return tuple(as_key(each) for each in _list(value, most))
    except BadRecord as error:
        raise BadMessage(error.message) from None


def _words(value: object, most: int, size: int) -> tuple[str, ...]:
    words = _list(value, most)
    if not all(type(word) is str and len(word) <= size and word.isprintable() for word in words):
        raise BadMessage(f"expected printable text of at most {size} characters")
    return tuple(words)


def _contact(value: object) -> Contact:
    if type(value) is not bytes:
        raise BadMessage("a contact must be bytes")
    return read_contact(value)


def _serves(fields: dict[str, Any]) -> Contact | None:
    value = fields.get("serves")
    return None if value is None else _contact(value)


def _aged_list(value: object, most: int) -> tuple[Aged, ...]:
    return tuple(_aged(each) for each in _list(value, most))


def _aged(value: object) -> Aged:
    if type(value) is not list or [type(item) for item in value[:2]] != [int, bytes]:
        raise BadMessage("a record must be [age, bytes]")
    age, sealed = value[:2]
    if age < 0 or len(sealed) > defaults.RECORD_BYTES:
        raise BadMessage("a record or its age is out of bounds")
    return Aged(min(age, defaults.AGE_LIMIT), sealed)


def _check_size(records: Any) -> None:
    if sum(len(aged.sealed) for aged in records) > defaults.MESSAGE_RECORDS:
        raise BadMessage(f"more than {defaults.MESSAGE_RECORDS} bytes of records in one message")


def _picked(value: object, contacts: Sequence[Contact]) -> tuple[Contact, ...]:
    indexes = _list(value, defaults.K)
    if not all(type(index) is int and 0 <= index < len(contacts) for index in indexes):
        raise BadMessage("the reply refers to contacts that it does not contain")
    return tuple(contacts[index] for index in dict.fromkeys(indexes))
