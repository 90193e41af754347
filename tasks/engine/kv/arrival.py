"""KV that arrives in a session from elsewhere, and requests to read and write parts of it. No I/O.

A part is some positions of some layers. A position counts when it has arrived in all layers.
Doubted content is used only if its last block equals what the session computes itself for it: a
copy of that block is taken before the first span, and compared after the span has passed it.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from ....transport.decoding import typed
from ....transport.errors import Undecodable
from ....transport.message import Row
from ..defaults import KV_WRONG
from ..errors import EngineError
from ..interface import NAME_BYTES, KvForm, KvRange
from ..session import Session
from ..shard import LoadedShard, Slots
from ..wire import Header, Request, Result
from .blocks import BLOCK, inexact

_Text = Annotated[str, Meta(max_length=256)]


class _Read(Row, frozen=True):
    """Fields of the frame `read`. With a session of no bytes, the payload names the blocks."""

    session: Annotated[bytes, Meta(max_length=16)]
    shard: int
    owner: _Text
    adapter: _Text
    range: KvRange
    form: KvForm

    def check(self) -> None:
        """Raise ValueError if the range is empty."""
        self.range.check()


class Arrival:
    """Parts of KV that have arrived in a session: how far each layer of the shard is.

    `doubted_from` is the session's length when the first doubted part arrived, or None.
    """

    def __init__(self, layers: range, length: int) -> None:
        self._first = layers.start
        self._ends = [length] * len(layers)
        self.doubted_from: int | None = None

    def take(self, part: KvRange) -> None:
        """Record a part. Raises EngineError `gap` if it does not follow what has arrived."""
        layers = range(part.first - self._first, part.last - self._first)
        if any(self._ends[layer] != part.start for layer in layers):
            raise EngineError("gap", f"a part of KV from {part.start} on does not follow")
        for layer in layers:
            self._ends[layer] = part.stop

    @property
    def complete(self) -> int:
        """Number of positions that have arrived in all layers."""
        return min(self._ends)


class Doubt(NamedTuple):
    """A block that is computed again: its first position, the KV that arrived, and the first
    position that is wrong if they differ."""

    at: int
    values: Any
    began: int

    def check(self, session: Session) -> None:
        """Compare, if the session has computed the block. Raises EngineError `bad-chunk` if it
        differs."""
        table, compute = session.table, session.shard.compute
        if table.length < self.at + BLOCK:
            return
        session.doubt = None
        distance = compute.kv_distance(table.spans(self.at, self.at + BLOCK), self.values)
        if not distance <= KV_WRONG:  # NaN if the norm of what arrived is infinite
            table.discard(self.began)
            raise EngineError("bad-chunk", "KV from another node is not what was computed here")
        table.trust()


class KvParts:
    """Reads and writes parts of KV for the core. `copied` returns a session that may be copied."""

    def __init__(
        self,
        find: Callable[[object], Session],
        idle: Callable[[object], Session],
        loaded: Callable[[object], LoadedShard],
    ) -> None:
        self._find = find
        self._idle = idle
        self._loaded = loaded

    def requests(self) -> Mapping[str, Request]:
        """Return what answers each frame about parts of KV."""
        return {"read": self.read, "write": self.write}

    def read(self, header: Header, payload: memoryview) -> Result:
        """Answer `read`: a part of named blocks, or of a session.

        Raises EngineError `bad-state` if the range is malformed or not cached.
        """
        try:
            asked = typed(_Read, header)
        except Undecodable as error:
            raise EngineError("bad-state", f"the range of KV is malformed: {error}") from None
        if asked.session:
            session = self._find(asked.session)
            shard, adapter = session.shard, session.adapter_root
            spans = _of_session(session, asked.range)
        else:
            shard, adapter = self._loaded(asked.shard), asked.adapter
            spans = _of_names(shard, asked, payload)
        codec = shard.kv_parts
        codec.check(asked.range, asked.form)
        data = shard.compute.read_kv(spans, shard.layers(asked.range), asked.form)
        return None, codec.encode(asked.range, asked.form, data, adapter)

    def write(self, header: Header, payload: memoryview) -> Result:
        """Answer `write`: check a part, write it into a session, and return the session's
        length.

        Raises EngineError if the part is malformed, does not follow, or has no room.
        """
        name, doubted = header
        session = self._idle(name)
        table, shard = session.table, session.shard
        part = shard.kv_parts.parse(payload, session.adapter_root)
        place, layers = part.range, shard.layers(part.range)
        if place.stop > table.tokens:
            raise EngineError("bad-state", "the part of KV ends beyond the session")
        values = shard.compute.parsed_kv(place.stop - place.start, layers, part.form, part.data)
        table.secure(place.stop)
        arrival = session.arrival or Arrival(shard.layer_range, table.length)
        arrival.take(place)
        session.arrival = arrival
        if part.form == "int8":
            table.mark_inexact(place.start // BLOCK)
        if doubted and arrival.doubted_from is None:
            arrival.doubted_from = table.length
            table.withhold()
        if copies := table.grow(place.stop):
            shard.compute.copy(copies)
        shard.compute.write_kv(table.spans(place.start, place.stop), layers, values)
        self._advance(session, arrival)
        return table.length, b""

    @staticmethod
    def _advance(session: Session, arrival: Arrival) -> None:
        """Set the session's length to what is complete, and believed."""
        table, length = session.table, arrival.complete
        if (began := arrival.doubted_from) is not None:
            length = max(began, (length // BLOCK - 1) * BLOCK)
        table.fill(length)
        session.forget()


def begin(session: Session) -> None:
    """Prepare a session for its first span after parts have arrived.

    If they are doubted, the values of the last block are stored, to be compared.
    """
    arrival, session.arrival = session.arrival, None
    if arrival is None or arrival.doubted_from is None:
        return
    at = session.table.length
    if arrival.complete < at + BLOCK:  # no whole block has arrived
        session.table.trust()
        return
    spans = session.table.spans(at, at + BLOCK)
    session.doubt = Doubt(at, session.shard.compute.kept_kv(spans), arrival.doubted_from)


def _of_session(session: Session, part: KvRange) -> Slots:
    if not session.shard.reuses:
        raise EngineError("bad-state", "sessions of models with recurrent layers have no copies")
    if part.stop > session.table.length:
        raise EngineError("bad-state", f"the session has {session.table.length} positions")
    return session.table.spans(part.start, part.stop)


def _of_names(shard: LoadedShard, asked: _Read, payload: memoryview) -> Slots:
    """Return the slots of named blocks.

    For a part in int8, they may stem from copies in int8. Raises EngineError `bad-state` if a
    block is not cached.
    """
    part = asked.range
    count = len(payload) // NAME_BYTES
    if part.start % BLOCK or part.stop - part.start != count * BLOCK:
        raise EngineError("bad-state", f"{count} names are not those of the blocks in the range")
    scope = f"{asked.owner} {asked.adapter}" if asked.adapter else asked.owner
    slots = []
    for at in range(0, count * NAME_BYTES, NAME_BYTES):
        name = scope, bytes(payload[at : at + NAME_BYTES])
        block = shard.pool.look(name)
        if block is None and asked.form == "int8":
            block = shard.pool.look(inexact([name])[0])
        if block is None:
            raise EngineError("bad-state", "a block of the range is not cached any more")
        slots.append((block * BLOCK, (block + 1) * BLOCK))
    return slots
