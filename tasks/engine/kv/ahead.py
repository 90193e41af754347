"""KV of a prompt that arrives from elsewhere while the session computes what is before it. No I/O.

Parts belong to runs of positions, which arrive in any order. When the session reaches a run that is
there in all layers, it goes on behind it. A run that it has reached before is computed. So a fetch
delays nothing, however slow it is.

All stages of a chain must leave out the same positions. So their sessions compute what they are
sent, and leave out only what a span leaves out that begins later.
"""

from collections.abc import Callable
from typing import Annotated

from msgspec import Meta

from ....transport.decoding import typed
from ....transport.errors import Undecodable
from ....transport.message import Row
from ..defaults import AHEAD_PART, AHEAD_STEPS
from ..errors import EngineError
from ..interface import KvRange
from ..session import Session
from ..wire import Header, Result
from .arrival import Doubt
from .blocks import BLOCK
from .parts import KvPart

_Position = Annotated[int, Meta(ge=0, le=1 << 24)]


class _Bring(Row, frozen=True):
    """Fields of the frame `bring`, whose payload is a part of the run from `start` to `stop`."""

    session: Annotated[bytes, Meta(max_length=16)]
    doubted: bool
    start: _Position
    stop: _Position


class RunsAhead:
    """Runs of positions whose parts arrive for a session, which has `layers` layers.

    While `expected`, more may arrive, and the session's steps are short: a long one would delay the
    moment at which a run is used.
    """

    chained = False
    """Whether the session is one of a chain, so that its spans say what it leaves out."""
    begun = False
    """Whether a session of a chain has begun with its first span."""

    def __init__(self, layers: int, now: float) -> None:
        self._layers = layers
        self._began = now
        self._got: dict[tuple[int, int], set[tuple[int, int]]] = {}
        self._lack: dict[tuple[int, int], int] = {}  # by run: positions times layers
        self._stops: dict[int, int] = {}  # of complete runs, by their first positions
        self.expected = True
        self.doubted = False
        self.inexact = False

    def take(self, run: tuple[int, int], part: KvRange) -> None:
        """Record a part of a run. One that was there already counts once."""
        got = self._got.setdefault(run, set())
        if (part.start, part.first) in got:
            return
        got.add((part.start, part.first))
        lack = self._lack.setdefault(run, (run[1] - run[0]) * self._layers)
        self._lack[run] = lack - (part.stop - part.start) * (part.last - part.first)
        if not self._lack[run]:
            self._stops[run[0]] = run[1]
            self._drop(run)

    def _drop(self, run: tuple[int, int]) -> None:
        del self._got[run], self._lack[run]

    def chain(self, length: int, *, begun: bool) -> None:
        """Note that the session is one of a chain, and has the first `length` positions."""
        self.chained, self.begun = True, begun
        if length:
            self._stops[0] = length

    def settle(self, *, expected: bool) -> None:
        """Forget the runs that are not complete, because a fetch begins or has ended."""
        self.expected = expected
        self._got.clear()
        self._lack.clear()

    def reached(self, position: int) -> int:
        """Return the position up to which all is there from `position` on."""
        while True:
            stops = [stop for start, stop in self._stops.items() if start <= position < stop]
            if not stops:
                return position
            position = max(stops)

    def prune(self, position: int) -> bool:
        """Forget the runs that end at `position` or before. Return whether any use is left."""
        for run in [run for run in self._got if run[0] < position]:
            self._drop(run)
        self._stops = {start: stop for start, stop in self._stops.items() if stop > position}
        return self.expected or bool(self._stops)

    def rows(self, position: int, row_s: float, fixed_s: float, now: float) -> int:
        """Return how many rows from `position` on a step may have: it ends where a run begins, and
        takes a small part of the time since the fetch began. A step takes `fixed_s` seconds, and
        `row_s` for each row."""
        ends = [run[0] for run in self._got] + list(self._stops)
        most = min([end - position for end in ends if end > position], default=1 << 24)
        if self.chained:
            return 1 << 24
        if not self.expected or row_s <= 0:
            return most
        seconds = max(AHEAD_PART * (now - self._began), AHEAD_STEPS * fixed_s)
        blocks = max(1, int(seconds / row_s) // BLOCK)
        return min(most, blocks * BLOCK - position % BLOCK)


def go_on(session: Session) -> None:
    """Let a session continue behind what has arrived where it is now.

    If that is doubted, it continues at the last block, whose values are stored to be compared.
    """
    ahead, table = session.ahead, session.table
    if ahead is None:
        return
    if table.dropped:  # what arrives may be of another text
        session.ahead, table.held = None, 0
        return
    if ahead.chained and not ahead.begun:
        return
    if not ahead.chained:
        began, stop = table.length, _usable(session, ahead)
        if stop > began and session.doubt is None:
            _doubt(session, ahead, stop)
            table.take(stop)
    if not ahead.prune(table.length):
        session.ahead, table.held = None, 0


def _usable(session: Session, ahead: RunsAhead) -> int:
    """Return the position at which a session may continue. Behind it there is a block to compare,
    if what has arrived is doubted."""
    end = ahead.reached(session.table.length)
    return end - BLOCK if ahead.doubted else end


def _doubt(session: Session, ahead: RunsAhead, stop: int) -> None:
    """Note from where on a session's values stem from what has arrived, and what its next block
    must be."""
    table, compute = session.table, session.shard.compute
    if ahead.inexact:
        table.mark_inexact(table.length // BLOCK)
    if ahead.doubted:
        table.withhold()
        values = compute.kept_kv(table.spans(stop, stop + BLOCK))
        session.doubt = Doubt(stop, values, table.length)


def go_to(session: Session, start: int) -> None:
    """Let a session begin a span at the position `start`.

    A session of a chain keeps what it has found from there on, because a later span may leave it
    out. A span that leaves out positions does so only if all of them are here. Raises EngineError
    `gap` if they are not.
    """
    ahead, table = session.ahead, session.table
    if ahead is not None and ahead.chained and not table.dropped:
        whole = start % BLOCK == 0
        if start < table.length and whole and not ahead.begun:
            table.step_back(start)
        elif start > table.length and whole and table.length % BLOCK == 0:
            # A step may write to all of its last block, so a part of one may have no KV.
            compared = session.doubt is None or not ahead.doubted
            if compared and start <= _usable(session, ahead):
                _doubt(session, ahead, start)
                table.fill(start)
        ahead.begun = True
    if start > table.length:
        raise EngineError("gap", f"the span starts at {start}, {table.length} positions are cached")


class KvAhead:
    """What answers the frames about parts ahead of a session. `arrived` is called when parts have
    been written."""

    def __init__(
        self,
        find: Callable[[object], Session],
        arrived: Callable[[Session], None],
        clock: Callable[[], float],
    ) -> None:
        self._find = find
        self._arrived = arrived
        self._clock = clock

    def expect(self, session: Session, expected: bool) -> None:
        """Prepare a session for parts, or release what is left of them."""
        table, shard = session.table, session.shard
        parts = shard.compute.parts
        if expected and session.ahead is None and shard.reuses and not table.dropped:
            session.ahead = RunsAhead(len(shard.layer_range), self._clock())
            if not (parts.embedding and parts.head):
                session.ahead.chain(table.length, begun=table.written)
        if session.ahead is not None:
            session.ahead.settle(expected=expected)
            self._arrived(session)

    def bring(self, header: Header, payload: memoryview) -> Result:
        """Answer `bring`: check a part, write it if the session has not reached its run, and return
        the session's length.

        Raises EngineError `gap` if it takes none, `bad-state` if the part does not fit, and
        `no-memory`.
        """
        try:
            order = typed(_Bring, header)
        except Undecodable as error:
            raise EngineError("bad-state", f"the run of KV is malformed: {error}") from None
        session = self._find(order.session)
        ahead = session.ahead
        if ahead is None or not ahead.expected or session.table.dropped:
            raise EngineError("gap", "the session takes no parts ahead of it")
        part = session.shard.kv_parts.parse(payload, session.adapter_root)
        if not order.start <= part.range.start < part.range.stop <= order.stop:
            raise EngineError("bad-state", "the part of KV is not within its run")
        if order.stop > session.table.tokens:
            raise EngineError("bad-state", "the run of KV ends beyond the session")
        if order.start >= session.table.length:
            self._write(session, ahead, order, part)
            self._arrived(session)
        return session.table.length, b""

    @staticmethod
    def _write(session: Session, ahead: RunsAhead, run: _Bring, part: KvPart) -> None:
        table, shard, place = session.table, session.shard, part.range
        layers = shard.layers(place)
        values = shard.compute.parsed_kv(place.stop - place.start, layers, part.form, part.data)
        table.secure(run.stop)
        if copies := table.hold(run.stop):
            shard.compute.copy(copies)
        shard.compute.write_kv(table.spans(place.start, place.stop), layers, values)
        ahead.doubted |= run.doubted
        ahead.inexact |= part.form == "int8"
        ahead.take((run.start, run.stop), place)
