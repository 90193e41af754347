"""Strict parser and writer of CRDT updates. It accepts only what an honest author writes.

An update in the Yjs format (version 1) can make pycrdt allocate gigabytes with five bytes, depend
on items that never arrive, or write as another client. Therefore each update is checked here
against the document before it is passed to pycrdt. An accepted update has items of one client only,
continues the client's clock, and sets or deletes each of its keys once. Spec: docs/spec/state.md.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from .. import defaults
from ..errors import BadUpdate

Changes = dict[str, bytes | None]
"""The new value of each key that an update changes, or None for a key that it deletes."""

ROOT = "facts"  # the one root map of a document
EMPTY = b"\0\0"  # no items, no deletions
HEADER_BYTES = 13  # bytes around a snapshot's items, at most
_ROOT = bytes([1, len(ROOT)]) + ROOT.encode()  # the parent: a root by its name
_FIRST = 0x28  # content Any, has a key
_LATER = 0xA8  # the same, with a left origin
_ONE_BYTES = b"\x01\x74"  # one value, a byte array
_NUMBER_BYTES = 5  # clients and clocks are under 2^32
_SHORT = "is too large or truncated"
_FACT_FRAME = 1 + len(_ROOT) + 2 + len(_ONE_BYTES) + 3  # bytes around a key and its value, most


@dataclass(slots=True)
class DocumentFacts:
    """Ledger of a document: the part of its state that is needed to check or write an update."""

    client: int  # 1 .. 2^32-1
    keys: int  # limit of the keys that it may ever name
    clock: int = 0  # of the next item
    last: dict[str, int] = field(default_factory=dict)  # the clock of the last item of each key
    owner: dict[int, str] = field(default_factory=dict)  # inverse of `last`
    live: dict[str, int] = field(default_factory=dict)  # snapshot bytes of each key with a value
    live_bytes: int = HEADER_BYTES  # upper bound of a snapshot's size

    def record(self, changes: Mapping[str, bytes | None]) -> None:
        """Apply the changes of an update to this ledger, in their order."""
        for key, value in changes.items():
            self.live_bytes -= self.live.pop(key, 0)
            if value is not None:
                self._append(key, fact_bytes(key, value))

    def _append(self, key: str, size: int) -> None:
        if key in self.last:
            del self.owner[self.last[key]]
        self.last[key], self.owner[self.clock] = self.clock, key
        self.live[key] = size
        self.live_bytes += size
        self.clock += 1


def fact_bytes(key: str, value: bytes) -> int:
    """Return how many bytes a fact adds to a snapshot, at most."""
    return _FACT_FRAME + len(key.encode()) + len(value)


def read_update(ledger: DocumentFacts, update: bytes) -> Changes:
    """Parse and check an update. Return its changes in order, without recording them in the ledger.

    The time is proportional to the size of the update. Raises BadUpdate with code `bad-update` if
    no honest author would write the update.
    """
    reader = _UpdateCursor(update)
    changes: Changes = {}
    for _ in range(_begin_items(reader, ledger)):
        key = _read_item(reader, ledger)
        if key in changes:
            raise _bad("sets a key twice")
        changes[key] = reader.take(reader.number(), defaults.FACT_BYTES)
    replaced = {ledger.last[key] for key in changes if key in ledger.live}
    for clock in _read_deletions(reader, ledger):
        if clock in replaced:
            replaced.remove(clock)
        else:
            changes[ledger.owner[clock]] = None
    if replaced:
        raise _bad("does not delete a value that it replaces")
    if reader.left:
        raise _bad("has bytes after its end")
    return changes


def write_update(ledger: DocumentFacts, changes: Mapping[str, bytes | None]) -> bytes:
    """Return the update that makes these changes, without recording them in the ledger.

    The bytes are the same that a pycrdt document of this client writes for one transaction. Raises
    BadUpdate with code `bad-update` if a change deletes a key that has no value, and with code
    `too-large` if a key or a value is too large.
    """
    items = [_item(ledger, key, value) for key, value in changes.items() if value is not None]
    gone = []
    for key, value in changes.items():
        if key in ledger.live:
            gone.append(ledger.last[key])
        elif value is None:
            raise _bad("deletes a key that has no value")
    begin = b"\1" + _number(len(items)) + _number(ledger.client) + _number(ledger.clock)
    return (begin if items else b"\0") + b"".join(items) + _deletions(ledger.client, gone)


def _item(ledger: DocumentFacts, key: str, value: bytes) -> bytes:
    raw = key.encode()
    if not 0 < len(raw) <= defaults.FACT_KEY_BYTES or len(value) > defaults.FACT_BYTES:
        raise BadUpdate("too-large", "a fact's key or value is too large")
    if key in ledger.last:
        origin = bytes([_LATER]) + _number(ledger.client) + _number(ledger.last[key])
    else:
        origin = bytes([_FIRST]) + _ROOT + _number(len(raw)) + raw
    return origin + _ONE_BYTES + _number(len(value)) + value


def _deletions(client: int, clocks: Iterable[int]) -> bytes:
    runs: list[list[int]] = []
    for clock in sorted(clocks):
        if runs and clock == sum(runs[-1]):
            runs[-1][1] += 1
        else:
            runs.append([clock, 1])
    if not runs:
        return b"\0"
    told = b"".join(_number(start) + _number(length) for start, length in runs)
    return b"\1" + _number(client) + _number(len(runs)) + told


def _begin_items(reader: "_UpdateCursor", ledger: DocumentFacts) -> int:
    """Parse the start of the list of items, and return the number of items.

    Raises BadUpdate if the items do not continue the document's clock.
    """
    clients = reader.number()
    if clients == 0:
        return 0
    if clients > 1:
        raise _bad("has items of several clients")
    count = reader.number()
    if not 0 < count <= ledger.keys:
        raise _bad("has no items for its client, or more than the limit of keys")
    reader.expect(ledger.client, "has items of another client")
    reader.expect(ledger.clock, "does not continue the clock")
    return count


def _read_item(reader: "_UpdateCursor", ledger: DocumentFacts) -> str:
    """Parse the next item up to the length of its value, and return the item's key."""
    kind = reader.byte()
    if kind == _LATER:
        reader.expect(ledger.client, "follows another client's item")
        known = ledger.owner.get(reader.number())
        if known is None:
            raise _bad("does not follow the last item of a key")
        key = known
    elif kind == _FIRST:
        reader.skip(_ROOT, "does not change the root map of facts")
        key = reader.text(defaults.FACT_KEY_BYTES)
        if key in ledger.last:
            raise _bad("adds a key that exists already")
    else:
        raise _bad("has an unknown kind of content")
    reader.skip(_ONE_BYTES, "has a value that is not bytes")
    return key


def _read_deletions(reader: "_UpdateCursor", ledger: DocumentFacts) -> Iterator[int]:
    """Yield the clocks of the deleted items, in order.

    Raises BadUpdate if one of them is not the current value of a key.
    """
    clients = reader.number()
    if clients == 0:
        return
    if clients > 1:
        raise _bad("deletes items of several clients")
    reader.expect(ledger.client, "deletes another client's items")
    least = 0  # adjacent runs must be written as one
    runs = reader.number()
    if runs == 0:
        raise _bad("has a client without deletions")
    for _ in range(runs):
        start, length = reader.number(), reader.number()
        if start < least or length == 0:
            raise _bad("has deletions out of order")
        for clock in range(start, start + length):
            if ledger.owner.get(clock) not in ledger.live:
                raise _bad("deletes an item that is not a current value")
            yield clock
        least = start + length + 1


class _UpdateCursor:
    """Cursor over the bytes of an update that accepts only canonical numbers."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def byte(self) -> int:
        at = self._at
        if at >= len(self._data):
            raise _bad(_SHORT)
        self._at = at + 1
        return self._data[at]

    def number(self) -> int:
        """Parse and return a varint of at most 5 bytes, lowest bits first.

        Raises BadUpdate if the varint has more bytes than it needs, and so is not canonical.
        """
        data, value = self._data, 0
        for shift, at in enumerate(range(self._at, self._at + _NUMBER_BYTES)):
            if at >= len(data):
                raise _bad(_SHORT)
            byte = data[at]
            if byte < 0x80:
                if byte == 0 and shift:
                    break
                self._at = at + 1
                return value | byte << 7 * shift
            value |= (byte & 0x7F) << 7 * shift
        raise _bad("has a number that is not canonical")

    def take(self, count: int, most: int) -> bytes:
        begin = self._at
        if count > most or count > len(self._data) - begin:
            raise _bad(_SHORT)
        self._at = begin + count
        return self._data[begin : begin + count]

    def text(self, most: int) -> str:
        raw = self.take(self.number(), most)
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            raise _bad("has a key that is not valid UTF-8") from None
        if not text:
            raise _bad("has an empty key")
        return text

    def expect(self, value: int, otherwise: str) -> None:
        if self.number() != value:
            raise _bad(otherwise)

    def skip(self, exact: bytes, otherwise: str) -> None:
        if not self._data.startswith(exact, self._at):
            raise _bad(otherwise)
        self._at += len(exact)


def _number(value: int) -> bytes:
    told = bytearray()
    while value > 0x7F:
        told.append(value & 0x7F | 0x80)
        value >>= 7
    told.append(value)
    return bytes(told)


def _bad(what: str) -> BadUpdate:
    return BadUpdate("bad-update", f"an update {what}")
