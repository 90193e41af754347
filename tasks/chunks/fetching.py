"""Fetches chunks from one provider into a session, part by part.

The parts are asked for chunk by chunk, and layer by layer in each, so that what has arrived is of
use whenever the fetch ends. Several are on the way at once. They are checked and written in order.
The fetch ends early where computing the rest is faster than waiting for it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import trio

from ...transport.decoding import typed
from ...transport.errors import CallRefused, LinkClosed, Undecodable
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.lane.frame import Priority
from ...transport.link.calls import Reply
from ...transport.link.link import Link
from ..costs.shardcosts import ShardCosts
from ..defaults import (
    CHUNK_SPARE,
    CHUNK_SPARE_MOST,
    CHUNK_TIMEOUT,
    CHUNK_TRIPS,
    PARTS_ASKED,
    PARTS_BYTES,
)
from ..engine.errors import EngineError
from ..engine.interface import Engine, KvForm, KvRange, SessionId
from ..engine.kv.blocks import BLOCK
from ..engine.kv.parts import KvShape, range_of
from .choice import compute_seconds
from .messages import AskPart, PartSent
from .naming import CHUNK, is_signed, proof_of
from .store import Layers

Ending = Literal["done", "slow", "gone", "liar", "other-class", "session"]
"""Why a fetch has ended.

`slow`: computing the rest is faster. `gone`: the provider does not have the chunks, or does not
reply. `liar`: it sent something else than it was asked for. `other-class`: it computes other bits.
`session`: the session ended, or has no memory for more.
"""

_PART_HEADER = 1024  # bytes of a part besides its values, at most


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """What to fetch for a session: the positions from `start` on, up to the end of chunk `last` - 1
    of a prompt, in some layers.

    `tags` and `names` are those of all chunks of the prompt. `costs` are those of computing here.
    `doubted` says that the provider is no trusted member. `patience` is how many seconds the fetch
    may be slower than computing before it is given up.
    """

    session: SessionId
    names: tuple[bytes, ...] = field(repr=False)
    tags: tuple[bytes, ...] = field(repr=False)
    start: int
    last: int
    layers: Layers
    form: KvForm
    shape: KvShape
    costs: ShardCosts
    doubted: bool
    patience: float = 0.0

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one chunk in all layers."""
        return self.bytes_of(0, CHUNK)

    @property
    def stop(self) -> int:
        """The first position that is not fetched."""
        return self.last * CHUNK

    def bytes_of(self, start: int, stop: int) -> int:
        """Return the bytes of the positions `start` to `stop` - 1 in all layers."""
        layers = self.layers[1] - self.layers[0]
        return layers * self.shape.layer_bytes(stop - start, self.form)

    @property
    def part_bytes(self) -> int:
        """Bytes of the largest part."""
        return self.shape.layer_bytes(self._step, self.form)

    @property
    def _step(self) -> int:
        return self.shape.positions(self.form, CHUNK, BLOCK)

    def parts(self) -> Iterator[KvRange]:
        """Yield the parts in the order of positions."""
        start = self.start
        while start < self.stop:
            end = (start // CHUNK + 1) * CHUNK
            yield from self.parts_of(start, end)
            start = end

    def parts_of(self, start: int, end: int) -> Iterator[KvRange]:
        """Yield the parts with the positions `start` to `end` - 1 of a chunk."""
        for layer in range(*self.layers):
            for at in range(start, end, self._step):
                yield KvRange(at, min(at + self._step, end), layer, layer + 1)


class WrongPart(Exception):
    """The provider sent something else than the part that it was asked for."""


@dataclass(slots=True)
class AskedPart:
    """A part that was asked for, of the run of positions `run`, and what arrived."""

    part: KvRange
    run: tuple[int, int] = 0, 0
    arrived: trio.Event = field(default_factory=trio.Event)
    data: bytes = b""
    error: Exception | None = None


class ChunkFetch:
    """One fetch of chunks from one provider. `length` is the session's length, which it returns."""

    def __init__(
        self, host: Host, own: PeerId, link: Link, engine: Engine, plan: FetchPlan
    ) -> None:
        self._host = host
        self._own = own
        self._link = link
        self._engine = engine
        self._plan = plan
        self._size = plan.bytes_of(plan.start, plan.stop)
        self._began = host.now()
        self.length = plan.start
        self.bytes = 0  # that have arrived and were right
        self.ending: Ending = "done"

    async def run(self) -> None:
        """Fetch until all is there, or the fetch ends early (`ending`)."""
        at_once = min(PARTS_ASKED, max(1, PARTS_BYTES // self._plan.part_bytes))
        send, receive = trio.open_memory_channel[AskedPart](at_once)
        room = trio.Semaphore(at_once)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ask_all, nursery, room, send)
                nursery.start_soon(self._watch, nursery.cancel_scope)
                await self._write_all(receive, room)
                nursery.cancel_scope.cancel()
        except* WrongPart:
            self.ending = "liar"

    @property
    def rate(self) -> float:
        """Bytes per second so far, 0 if none has arrived."""
        return self.bytes / max(self._host.now() - self._began, 1e-6)

    async def _ask_all(
        self,
        nursery: trio.Nursery,
        room: trio.Semaphore,
        send: trio.MemorySendChannel[AskedPart],
    ) -> None:
        """Ask for all parts in order, and hand each to the writer."""
        async with send:
            for part in self._plan.parts():
                await room.acquire()
                pending = AskedPart(part)
                nursery.start_soon(self._ask, pending)
                await send.send(pending)

    async def _ask(self, pending: AskedPart) -> None:
        """Ask for one part, and check what arrives."""
        plan, part = self._plan, pending.part
        chunk = part.start // CHUNK
        proof = proof_of(plan.names[chunk], self._own, self._link.peer)
        message = AskPart(plan.tags[chunk], proof, part, plan.form)
        try:
            reply = await self._link.call(
                "kv.part", message.header(), priority=Priority.BULK, timeout=CHUNK_TIMEOUT
            )
            pending.data = self._checked(reply, part)
        except (CallRefused, LinkClosed, WrongPart) as error:
            pending.error = error
        pending.arrived.set()

    def _checked(self, reply: Reply, part: KvRange) -> bytes:
        """Return the part in a reply. Raises WrongPart if it is not what was asked for, or not
        signed by the provider."""
        plan = self._plan
        size = plan.shape.part_bytes(part, plan.form)
        if not size < len(reply.payload) <= size + _PART_HEADER:
            raise WrongPart(f"{len(reply.payload)} bytes are no part of {size} bytes")
        data = bytes(reply.payload)
        try:
            signature = typed(PartSent, reply.header).signature
            told = range_of(memoryview(data))
        except (Undecodable, EngineError) as error:
            raise WrongPart("the reply is malformed") from error
        if told != (part, plan.form):
            raise WrongPart("the part is of other positions or layers")
        if not is_signed(self._link.peer, plan.tags[part.start // CHUNK], data, signature):
            raise WrongPart("the signature is not the provider's")
        return data

    async def _write_all(
        self, receive: trio.MemoryReceiveChannel[AskedPart], room: trio.Semaphore
    ) -> None:
        """Write the parts into the session in order, until one is missing or wrong."""
        async for pending in receive:
            await pending.arrived.wait()
            if isinstance(pending.error, WrongPart):
                raise pending.error
            if pending.error is not None:
                self.ending = "gone"
                return
            plan = self._plan
            try:
                length = await self._engine.write_kv(
                    plan.session, pending.data, doubted=plan.doubted
                )
            except EngineError as error:
                self.ending = ending_of(error)
                return
            self.length = max(self.length, length)
            self.bytes += plan.shape.part_bytes(pending.part, plan.form)
            room.release()

    async def _watch(self, scope: trio.CancelScope) -> None:
        """End the fetch when the rest is computed faster than it will arrive."""
        plan, link = self._plan, self._link
        whole = compute_seconds(plan.costs, plan.start, plan.stop)
        trips = CHUNK_TRIPS * (link.status.rtt or 0.0)
        spare = max(CHUNK_SPARE * whole, min(trips, CHUNK_SPARE_MOST * whole), plan.patience)
        carried = [(self._began, link.carried)]
        while True:
            await trio.sleep(max(spare / 8, 0.005))
            now = self._host.now()
            note_carried(carried, self._began, now, link.carried)
            if now - self._began < spare:
                continue
            left = (self._size - self.bytes) / rate_of(self._began, carried)
            if left > compute_seconds(plan.costs, self.length, plan.stop):
                self.ending = "slow"
                scope.cancel()


def ending_of(error: EngineError) -> Ending:
    """Return how a fetch ends with an error of the engine. Raises WrongPart if the part was not
    what it should be."""
    if error.code == "bad-state":
        raise WrongPart(error.message) from error
    return "other-class" if error.code == "other-class" else "session"


def note_carried(carried: list[tuple[float, int]], began: float, now: float, size: int) -> None:
    """Add the bytes until now to `carried`, and forget what `rate_of` does not need."""
    carried.append((now, size))
    while len(carried) > 2 and carried[1][0] <= (began + now) / 2:
        carried.pop(0)


def rate_of(began: float, carried: Sequence[tuple[float, int]]) -> float:
    """Return the bytes per second of the last half of the time since `began`, or of the last
    quarter if that is more. `carried` are times, and the bytes until then.

    A connection starts slowly, and stalls when its first losses show how fast it may be.
    """
    now, after = carried[-1]
    quarter = now - (now - began) / 4
    late = next(each for each in carried if each[0] >= quarter or each is carried[-2])
    return max(max(after - before, 1) / (now - since) for since, before in (carried[0], late))
