"""Tunings of a worker: their memory, their passes, and when these are computed. No torch.

Passes take the time that inference leaves. A pass is computed in units; between two units the
worker reads its socket and computes steps. While rows of sessions are computed, passes get a part
of the time, so that they never stand still. While sessions may have rows soon, units are short,
because a row that arrives during a unit waits for its end.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...transport.decoding import decode, typed
from ...transport.errors import Undecodable
from .adapters import AdapterTerms
from .defaults import (
    ACCOUNTS,
    ADAPTER_DEPTH,
    HEADER_BYTES,
    PASS_BACKGROUND_PART,
    PASS_PART,
    PASS_TEXTS_S,
    PASS_UNIT_PART,
    PASS_UNIT_S,
    PASSES,
    STEP_S,
    TUNING_BYTES,
    TUNING_SHARE,
    TUNINGS,
)
from .errors import EngineError
from .interface import NAME_BYTES
from .passes import OpenTuning, PassOrder, ShardPass, Tuner, pass_sizes, tensor_sizes
from .shard import LoadedShard
from .wire import Buffer, Header, Request, Result

Emit = Callable[[Header, Buffer], None]
_FLOAT = 4  # bytes


@dataclass(slots=True)
class _Waiting:
    """A pass that waits or is computed. `number` is that of its request. `bytes` are reserved until
    it is done, and `kept_bytes` for what it keeps. `work` is needed while it is computed."""

    number: object
    order: PassOrder
    payload: memoryview
    bytes: int
    kept_bytes: int
    work: int
    results: bool
    seconds: float = 0.0
    running: ShardPass | None = None


@dataclass(slots=True, eq=False)
class _Tuning:
    """An open tuning. `kept` has what forward passes have kept, by part, with its bytes."""

    shard: LoadedShard
    tuner: Tuner
    terms: AdapterTerms
    owner: str
    own: bool
    sizes: list[int]  # values of each tensor
    adapter: Any = None
    kept: OrderedDict[int, tuple[Any, int]] = field(default_factory=OrderedDict)
    waiting: deque[_Waiting] = field(default_factory=deque)

    @property
    def tensor_bytes(self) -> int:
        return _FLOAT * sum(self.sizes)


@dataclass(slots=True, eq=False)
class _Lent:
    """KV blocks of a shard that are out of use, because tunings have memory in their place."""

    shard: LoadedShard
    blocks: list[int] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return len(self.blocks) * self.shard.block_bytes

    def borrow(self, size: int) -> bool:
        """Take blocks of at least `size` bytes out of use. Return False if sessions were promised
        too many of them, or if more than a part of all would be out of use."""
        pool, each = self.shard.pool, self.shard.block_bytes
        blocks = -(-size // each) if each else pool.total + 1
        most = int(pool.total * TUNING_SHARE) - len(self.blocks)
        if blocks > min(most, pool.total - pool.promised):
            return False
        self.blocks += pool.reserve(blocks)
        return True

    def give_back(self, size: int) -> None:
        """Return blocks of at most `size` bytes to the sessions."""
        if not self.blocks:
            return
        keep = len(self.blocks) - min(len(self.blocks), max(0, size) // self.shard.block_bytes)
        self.shard.pool.give_back(self.blocks[keep:])
        del self.blocks[keep:]


class PassTime:
    """Seconds that passes may use beside the steps of sessions."""

    def __init__(self) -> None:
        self._credit = 0.0
        self._short = PASS_UNIT_S
        self._texts = -PASS_TEXTS_S  # when a step with rows of users was last computed

    def stepped(self, seconds: float, least: float, *, background: bool, now: float) -> None:
        """Count a step of `seconds` predicted seconds. `least` are those of a step with one row."""
        part = PASS_BACKGROUND_PART if background else PASS_PART
        self._credit = min(self._credit + part * seconds, STEP_S)
        if not background:
            self._texts, self._short = now, max(PASS_UNIT_S, PASS_UNIT_PART * least)

    def unit_s(self, now: float) -> float:
        """Return about how long a unit may take."""
        return self._short if now < self._texts + PASS_TEXTS_S else STEP_S

    @property
    def has_credit(self) -> bool:
        """Whether a unit may be computed beside steps."""
        return self._credit > 0.0

    def used(self, seconds: float) -> None:
        """Count a unit that was computed beside steps. Units may be longer than any credit, so a
        debt is allowed."""
        self._credit -= seconds


class Training:
    """All tunings of a worker."""

    def __init__(
        self,
        emit: Emit,
        shard: Callable[[object], LoadedShard],
        room: Callable[[], int],
        clock: Callable[[], float],
    ) -> None:
        """`shard` returns a loaded shard by number. `room` returns the bytes that tunings may use
        beside weights and KV."""
        self._emit, self._shard, self._room, self._clock = emit, shard, room, clock
        self._tunings: dict[bytes, _Tuning] = {}
        self._used = 0  # bytes reserved, without the work of the running pass
        self._lent: list[_Lent] = []
        self._served: dict[str, float] = {}  # predicted seconds by owner, as virtual times
        self._time = 0.0
        self._current: _Tuning | None = None
        self.time = PassTime()

    @property
    def busy(self) -> bool:
        """Whether passes wait."""
        return any(each.waiting for each in self._tunings.values())

    @property
    def used_bytes(self) -> int:
        """Bytes of tensors, inputs, answers, and kept activations."""
        return self._used

    @property
    def count(self) -> int:
        """Number of open tunings."""
        return len(self._tunings)

    @property
    def beside_kv(self) -> int:
        """Bytes that tunings have beside weights and KV."""
        return max(0, self._needed - sum(each.bytes for each in self._lent))

    @property
    def _needed(self) -> int:
        """Bytes reserved, with the work of the pass that needs most."""
        works = [each.work for some in self._tunings.values() for each in some.waiting]
        return self._used + max(works, default=0)

    def requests(self) -> Mapping[str, Request]:
        """Return the handlers of the requests about tunings, by name."""
        return {"tune-open": self.open, "tune-set": self.set, "tune-close": self.close}

    def open(self, header: Header, payload: memoryview) -> Result:
        """Open a tuning, and reserve the memory of its tensors.

        Raises EngineError if the adapter does not suit the shard, or there is no room.
        """
        name = _session(header)
        try:
            order = typed(OpenTuning, decode(payload, limit=HEADER_BYTES, depth=ADAPTER_DEPTH))
        except Undecodable as error:
            raise EngineError("bad-adapter", f"the adapter is malformed: {error}") from None
        shard = self._shard(order.shard)
        if name in self._tunings:
            raise EngineError("session-exists", "the tuning is open already")
        if len(self._tunings) >= TUNINGS:
            raise EngineError("too-many", f"{TUNINGS} tunings are open")
        if order.terms.base != shard.root:
            raise EngineError("bad-adapter", "the adapter belongs to another model")
        tuner, arch = shard.tuner(), shard.compute.arch
        tuner.check(order.terms)
        sizes = tensor_sizes(order.terms, arch, shard.compute.parts)
        tuning = _Tuning(shard, tuner, order.terms, order.owner, order.own, sizes)
        self._reserve(tuning.tensor_bytes, 0, tuning)
        self._tunings[name] = tuning
        return None, b""

    def set(self, header: Header, payload: memoryview) -> Result:
        """Replace the tensors of a tuning, and drop the states that were stored with the old ones.

        Raises EngineError `busy` while passes wait, and `bad-adapter` if the tensors are malformed.
        """
        tuning = self._tuning(header)
        if tuning.waiting:
            raise EngineError("busy", "passes with the tensors so far wait")
        tuning.adapter = tuning.tuner.adapter(tuning.terms, payload)
        self._forget(tuning)
        self._give_back()
        return None, b""

    def close(self, header: Header, payload: memoryview) -> Result:
        """Close a tuning. Unknown ones are ignored."""
        found = self._tunings.get(_session(header))
        if found is not None:
            self._end(_session(header), EngineError("cancelled", "the tuning was closed"))
        return None, b""

    def submit(self, header: Header, payload: memoryview) -> None:
        """Queue a pass. Its answer is emitted when it is computed; a refusal at once."""
        number = header[1] if len(header) > 1 else None
        try:
            tuning = self._tuning(header[2:3])
            order = _order(header)
            tuning.waiting.append(self._admitted(tuning, number, order, payload))
        except EngineError as error:
            self._refuse(number, error)
            return
        served = self._served.get(tuning.owner, 0.0)
        self._served[tuning.owner] = max(served, self._time)

    def stop(self, header: Header) -> None:
        """Drop the passes of one part of a tuning, because its trainer no longer waits for them."""
        tuning = self._tunings.get(header[1]) if isinstance(header[1], bytes) else None
        if tuning is not None:
            for each in [each for each in tuning.waiting if each.order.part == header[2]]:
                tuning.waiting.remove(each)
                self._free(each)
                self._refuse(each.number, EngineError("cancelled", "the pass was cancelled"))
            self._give_back()

    def drop(self, shard: LoadedShard | None) -> None:
        """End the tunings of a shard that is no longer here."""
        self._lent = [each for each in self._lent if each.shard is not shard]
        error = EngineError("shard-replaced", "the engine no longer has the shard")
        for name in [name for name, each in self._tunings.items() if each.shard is shard]:
            self._end(name, error)

    def end_all(self) -> None:
        """End all tunings, because a shard needs their memory."""
        for name in list(self._tunings):
            self._end(name, EngineError("shard-replaced", "another shard needs the memory"))

    def make_room(self, shard: LoadedShard, blocks: int) -> None:
        """Drop what passes have kept until `blocks` blocks of a shard's KV can be promised to
        sessions, as far as possible."""
        pool = shard.pool
        if not any(each.shard is shard and each.blocks for each in self._lent):
            return
        while pool.total - pool.promised < blocks and any(map(self._evict, self._tunings.values())):
            self._give_back()

    def _admitted(
        self, tuning: _Tuning, number: object, order: PassOrder, payload: memoryview
    ) -> _Waiting:
        """Reserve the memory of a pass. Raises EngineError if it is refused."""
        compute = tuning.shard.compute
        if tuning.adapter is None:
            raise EngineError("no-adapter", "the tuning has no tensors yet")
        if len(tuning.waiting) >= PASSES:
            raise EngineError("too-many", f"{PASSES} passes of the tuning wait")
        if order.length > compute.arch.context:
            raise EngineError("too-long", f"the context is {compute.arch.context}")
        try:
            sizes = pass_sizes(order, compute.parts, compute.arch.hidden, tuning.sizes)
        except ValueError as error:
            raise EngineError("bad-span", str(error)) from None
        if len(payload) != sizes.payload:
            raise EngineError("bad-hidden", f"{len(payload)} bytes are not that pass")
        if order.back and not order.given and order.part not in tuning.kept:
            raise EngineError("no-input", "the input of that part is not here any more")
        size, work = sizes.payload + sizes.answer, tuning.tuner.work_bytes(order)
        keeps = order.keep or (order.back and order.part not in tuning.kept)
        for results in (True, False):
            kept = tuning.tuner.kept_bytes(order, results=results) if keeps else 0
            try:
                self._reserve(size + kept, work, tuning)
            except EngineError:
                if not results or not keeps:
                    raise
            else:
                return _Waiting(number, order, payload, size, kept, work, results and keeps)
        raise AssertionError  # the second attempt returns or raises

    def _reserve(self, size: int, work: int, tuning: _Tuning) -> None:
        """Reserve `size` bytes beside `work` bytes for the running pass, and drop what was kept for
        other parts if necessary. Raises EngineError `no-memory`."""
        works = [each.work for other in self._tunings.values() for each in other.waiting]
        need = size + max([work, *works])
        while self._used + need > TUNING_BYTES or not self._borrow(tuning.shard, self._used + need):
            if not (self._evict(tuning) or any(map(self._evict, self._tunings.values()))):
                raise EngineError(
                    "no-memory", f"the pass needs {need} bytes beside {self._used} in use"
                )
        self._used += size

    def _borrow(self, shard: LoadedShard, size: int) -> bool:
        """Have `size` bytes in all, with KV memory of a shard if necessary. Return whether that is
        possible."""
        lack = size - self._room() - sum(each.bytes for each in self._lent)
        if lack <= 0:
            return True
        found = next((each for each in self._lent if each.shard is shard), None)
        if found is None:
            found = _Lent(shard)
            self._lent.append(found)
        return found.borrow(lack)

    def _give_back(self) -> None:
        """Return the KV memory that is no longer needed."""
        spare = sum(each.bytes for each in self._lent) - max(0, self._needed - self._room())
        for lent in self._lent:
            before = lent.bytes
            lent.give_back(spare)
            spare -= before - lent.bytes
        self._lent = [each for each in self._lent if each.blocks]

    def _evict(self, tuning: _Tuning) -> bool:
        """Drop what the oldest forward pass of a tuning has kept. Return whether there was one."""
        wanted = {each.order.part for each in tuning.waiting if not each.order.given}
        for part in tuning.kept:
            if part not in wanted:
                self._used -= tuning.kept.pop(part)[1]
                return True
        return False

    def _forget(self, tuning: _Tuning) -> None:
        """Drop everything that forward passes of a tuning have kept."""
        self._used -= sum(size for _, size in tuning.kept.values())
        tuning.kept.clear()

    def _end(self, name: bytes, error: EngineError) -> None:
        """Remove a tuning, and refuse its passes."""
        tuning = self._tunings.pop(name)
        for each in tuning.waiting:
            self._free(each)
            self._refuse(each.number, error)
        tuning.waiting.clear()
        self._forget(tuning)
        self._used -= tuning.tensor_bytes
        self._give_back()
        if self._current is tuning:
            self._current = None

    def _free(self, waiting: _Waiting) -> None:
        self._used -= waiting.bytes + waiting.kept_bytes

    def _refuse(self, number: object, error: EngineError) -> None:
        self._emit(("refused", number, error.code, error.message), b"")

    def _tuning(self, header: Header) -> _Tuning:
        found = self._tunings.get(_session(header))
        if found is None:
            raise EngineError("unknown-session", "the tuning is not open")
        return found

    # Computing.

    @property
    def is_due(self) -> bool:
        """Whether a unit may be computed although sessions have work."""
        return self.time.has_credit and self.busy

    def unit(self, *, beside: bool = False) -> None:
        """Compute one unit of the pass that comes first. `beside`: sessions have work too."""
        predicted = self._unit()
        if beside:
            self.time.used(predicted)

    def _unit(self) -> float:
        """Compute one unit of the pass that comes first. Return its predicted seconds."""
        tuning = self._next()
        waiting = tuning.waiting[0]
        began = self._clock()
        predicted = 0.0
        try:
            running = waiting.running = waiting.running or self._begun(tuning, waiting)
            predicted = running.next_s or 0.0
            running.advance(self.time.unit_s(began))
        except EngineError as error:
            self._failed(tuning, waiting, error)
            return predicted
        except MemoryError:
            self._failed(tuning, waiting, EngineError("no-memory", "the system refused memory"))
            return predicted
        waiting.seconds += self._clock() - began
        served = self._served.get(tuning.owner, self._time)
        self._time, self._served[tuning.owner] = max(self._time, served), served + predicted
        if running.next_s is None:
            self._finish(tuning, waiting, running)
        return predicted

    def _next(self) -> _Tuning:
        """Return the tuning whose pass is computed: one of this machine, else the one whose owner
        was served least. A pass that has begun is computed to its end, unless the owner comes."""
        ready = [each for each in self._tunings.values() if each.waiting]
        found = self._current
        own = any(each.own for each in ready)
        if found is None or not found.waiting or (own and not found.own):
            served = self._served
            found = min(ready, key=lambda each: (not each.own, served.get(each.owner, 0.0)))
            self._current = found
        if len(served := self._served) > ACCOUNTS:
            owners = {each.owner for each in ready}
            self._served = {owner: at for owner, at in served.items() if owner in owners}
        return found

    @staticmethod
    def _begun(tuning: _Tuning, waiting: _Waiting) -> ShardPass:
        """Begin a pass. Raises EngineError if its input is invalid, or no longer here."""
        order, kept = waiting.order, None
        if order.back and order.part in tuning.kept:
            kept, size = tuning.kept.pop(order.part)
            waiting.kept_bytes += size
        elif not order.given:
            raise EngineError("no-input", "the input of that part is not here any more")
        payload, waiting.payload = waiting.payload, memoryview(b"")
        return tuning.tuner.begin(order, tuning.adapter, payload, kept, results=waiting.results)

    def _finish(self, tuning: _Tuning, waiting: _Waiting, running: ShardPass) -> None:
        """Answer a pass, and keep what it leaves."""
        self._done(tuning, waiting)
        order, kept = waiting.order, running.kept()
        if order.keep and not order.back and kept is not None:
            if order.part in tuning.kept:
                self._used -= tuning.kept.pop(order.part)[1]
            tuning.kept[order.part] = kept, waiting.kept_bytes
            self._used += waiting.kept_bytes
        loss, counted, data = running.answer()
        self._give_back()
        value = [loss, counted, waiting.seconds, running.predicted]
        self._emit(("ok", waiting.number, value), data)

    def _failed(self, tuning: _Tuning, waiting: _Waiting, error: EngineError) -> None:
        self._done(tuning, waiting)
        self._give_back()
        self._refuse(waiting.number, error)

    def _done(self, tuning: _Tuning, waiting: _Waiting) -> None:
        tuning.waiting.remove(waiting)
        self._free(waiting)
        self._current = None


def _session(header: Header) -> bytes:
    """Return the name of a tuning from a frame. Raises EngineError `bad-span` if there is none."""
    name = header[0] if header else None
    if not isinstance(name, bytes) or len(name) != NAME_BYTES:
        raise EngineError("bad-span", "a tuning has a name of 16 bytes")
    return name


def _order(header: Header) -> PassOrder:
    """Return the order of a frame. Raises EngineError `bad-span` if it is malformed."""
    try:
        return typed(PassOrder, header[3] if len(header) == 4 else None)
    except Undecodable as error:
        raise EngineError("bad-span", f"the pass is malformed: {error}") from None
