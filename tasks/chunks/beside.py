"""Fetches chunks while the session computes its prompt, from the last chunk towards the first.

The session computes from its beginning, and goes on behind what has arrived when it reaches that
(`Engine.bring_kv`). So each part that is complete in time saves computing, whatever the rate, and a
provider that is slow or silent delays nothing: there is nothing to choose. The fetch ends when both
meet, or when not even the positions that are on the way would arrive in time.
"""

from collections.abc import Callable, Sequence
from typing import Final

import trio

from ...transport.errors import CallRefused
from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.link.link import Link
from ..defaults import (
    BESIDE_BYTES,
    BESIDE_SPARE,
    CHUNK_HEAD,
    CHUNK_NEAR,
    CHUNK_PAID,
    CHUNK_SPARE,
    CHUNK_TRIPS,
)
from ..engine.errors import EngineError
from ..engine.interface import Engine
from ..engine.kv.blocks import BLOCK
from .choice import compute_seconds, rows_computed
from .fetching import (
    AskedPart,
    ChunkFetch,
    FetchPlan,
    WrongPart,
    ending_of,
    note_carried,
    rate_of,
)
from .naming import CHUNK

Run = tuple[int, int]
_GROWTH: Final = 1.25  # by which the rate of a connection that becomes faster differs


class BesideFetch(ChunkFetch):
    """Fetch of chunks for a session that computes. `length` is what the session has reached, as it
    last told. `near` says that the provider is on this machine or in its network. In a chain,
    `held` is told each time that more positions have arrived: the first one, and the one after the
    last."""

    def __init__(
        self,
        host: Host,
        own: PeerId,
        link: Link,
        engine: Engine,
        plan: FetchPlan,
        *,
        near: bool,
        held: Callable[[int, int], None] | None = None,
    ) -> None:
        super().__init__(host, own, link, engine, plan)
        self._near = near
        self._tell_held = held
        self._held: Run | None = None  # that have arrived one after the other
        self._missing: dict[Run, int] = {}  # bytes of each run that the engine has not written
        self._told_at = self._began
        self._rests = True  # whether the session computes nothing yet
        self._carried = [(self._began, link.carried)]
        self._first_carried = link.carried
        self._asked = 0  # bytes
        self._came = 0  # bytes of the parts that were answered, in order …
        self._right = 0  # … and not refused
        self._coming: Run = plan.stop, plan.stop  # the run that is on the way
        self._lack = 0  # bytes of this run that are still missing
        self.handed = False  # whether the engine may have taken a part
        self._gone_from = plan.last  # the first chunk that the provider does not have

    def begin(self) -> None:
        """Note that the session computes from now on."""
        self._rests, self._told_at = False, self._host.now()

    def patience_s(self, whole: float) -> float:
        """Return for how many seconds the session may wait for this fetch before it computes,
        beyond those that it waits for any: a part of what has been saved so far. Of a chunk that is
        not complete, it is small beside the `whole` time to compute.

        A near provider is probably the faster one, and may share its cores with this node, so it
        gets a moment, and then all that it has saved.
        """
        plan = self._plan
        chunks = self._right // plan.chunk_bytes
        place = max(plan.start, plan.stop - chunks * CHUNK)
        paid, moment = (1.0, CHUNK_NEAR) if self._near else (CHUNK_PAID, 0.0)
        complete = moment + paid * compute_seconds(plan.costs, place, plan.stop)
        part = (self._right / plan.chunk_bytes - chunks) * CHUNK
        begun = compute_seconds(plan.costs, max(plan.start, place - int(part)), place)
        return complete + min(paid * begun, CHUNK_HEAD * whole)

    @property
    def rate(self) -> float:
        """Bytes per second of late, 0 if nothing is known."""
        return rate_of(self._began, self._carried) if len(self._carried) > 1 else 0.0

    async def _ask_all(
        self,
        nursery: trio.Nursery,
        room: trio.Semaphore,
        send: trio.MemorySendChannel[AskedPart],
    ) -> None:
        """Ask for all parts, the last chunk first, until the session would be there earlier."""
        plan = self._plan
        async with send:
            for chunk in range(plan.last - 1, plan.start // CHUNK - 1, -1):
                run = self._run_of(chunk)
                if run is None:
                    return
                for part in plan.parts_of(*run):
                    await room.acquire()
                    if self._gone_from <= chunk:
                        room.release()
                        break
                    pending = AskedPart(part, run)
                    self._asked += plan.shape.part_bytes(part, plan.form)
                    nursery.start_soon(self._ask, pending)
                    await send.send(pending)

    def _run_of(self, chunk: int) -> Run | None:
        """Return the positions of a chunk that are worth asking for: those that the session will
        not have computed when they arrive. None if there are none."""
        plan = self._plan
        start, stop = max(plan.start, chunk * CHUNK), (chunk + 1) * CHUNK
        if self._rests:
            return start, stop
        if rate := self.rate:
            rate *= 2 if _grows(self._carried) else 1  # until then
            size = self._asked - self._came + plan.bytes_of(start, stop)
            until = size / rate + (self._link.status.rtt or 0.0)
            until += self._host.now() - self._told_at
            reached = self.length + rows_computed(plan.costs, self.length, until)
        else:
            reached = self.length + (stop - self.length) // 2 if start <= self.length else start
        start = max(start, -(-reached // BLOCK) * BLOCK)
        return (start, stop) if start < stop else None

    async def _write_all(
        self, receive: trio.MemoryReceiveChannel[AskedPart], room: trio.Semaphore
    ) -> None:
        """Hand parts to the worker as they arrive, until one is missing or wrong. It writes them
        between two steps, so several wait there."""
        plan = self._plan
        writing = trio.Semaphore(max(1, BESIDE_BYTES // plan.part_bytes))
        async with trio.open_nursery() as nursery:
            async for pending in receive:
                if pending.run != self._coming:
                    self._coming, self._lack = pending.run, plan.bytes_of(*pending.run)
                await pending.arrived.wait()
                size = plan.shape.part_bytes(pending.part, plan.form)
                self._came += size
                self._lack -= size
                room.release()
                if pending.error is None:
                    self._right += size
                    await writing.acquire()
                    nursery.start_soon(self._bring, pending, writing, nursery.cancel_scope)
                elif isinstance(pending.error, WrongPart):
                    raise pending.error
                elif not self._lacks(pending):
                    self.ending = "gone"
                    break

    def _lacks(self, pending: AskedPart) -> bool:
        """Return whether the provider does not have a chunk, but may have earlier ones. It drops
        the last ones first."""
        error, chunk = pending.error, pending.part.start // CHUNK
        unknown = isinstance(error, CallRefused) and error.code == "unknown-chunk"
        if not unknown or self.bytes or not chunk:
            return False
        self._gone_from = min(self._gone_from, chunk)
        return True

    async def _bring(
        self, pending: AskedPart, writing: trio.Semaphore, scope: trio.CancelScope
    ) -> None:
        """Write a part ahead of the session. Cancel the scope if it takes no more."""
        plan, (start, stop) = self._plan, pending.run
        before, self.handed = self.handed, True
        try:
            with trio.CancelScope(shield=True):  # what was handed over may be used
                length = await self._engine.bring_kv(
                    plan.session, pending.data, start, stop, doubted=plan.doubted
                )
        except EngineError as error:
            self.handed = before
            self.ending = ending_of(error)
            scope.cancel()
            return
        writing.release()
        # The stages of a chain wait for each other, so no more than this is known.
        if length > self.length or (self._tell_held and length == self.length):
            self.length, self._told_at = length, self._host.now()
        size = plan.shape.part_bytes(pending.part, plan.form)
        self.bytes += size
        if self._tell_held and length <= start:  # else the engine has ignored it
            self._note_written(self._tell_held, (start, stop), size)

    def _note_written(self, tell: Callable[[int, int], None], run: Run, size: int) -> None:
        """Tell that a run is complete, if it ends where those that were complete before begin."""
        missing = self._missing.pop(run, self._plan.bytes_of(*run)) - size
        if missing:
            self._missing[run] = missing
        elif self._held is None or run[1] == self._held[0]:
            self._held = run[0], self._held[1] if self._held else run[1]
            first, last = self._held
            tell(first, last - BLOCK if self._plan.doubted else last)

    async def _watch(self, scope: trio.CancelScope) -> None:
        """End the fetch when the session computes what is on the way before it arrives."""
        plan, link = self._plan, self._link
        whole = compute_seconds(plan.costs, plan.start, plan.stop)
        trips = CHUNK_TRIPS * (link.status.rtt or 0.0)
        spare = min(max(CHUNK_SPARE * whole, trips), BESIDE_SPARE * whole)
        while True:
            await trio.sleep(max(spare / 8, 0.005))
            now = self._host.now()
            note_carried(self._carried, self._began, now, link.carried)
            if self._rests or now - self._began < spare or not self._lack:
                continue
            if _grows(self._carried):
                continue
            # Bytes of parts that are not complete yet count too.
            partly = max(0, link.carried - self._first_carried - self._came)
            left = max(0, self._lack - min(partly, self._asked - self._came)) / self.rate
            until = compute_seconds(plan.costs, self.length, self._coming[0])
            if left > max(0.0, until - (now - self._told_at)):
                self.ending = "slow"
                scope.cancel()


def _grows(carried: Sequence[tuple[float, int]]) -> bool:
    """Return whether the second half of the times in `carried` had a higher rate than the first, as
    when a connection is new: it doubles its rate in each round trip."""
    (began, before), (now, after) = carried[0], carried[-1]
    middle, until = next(each for each in carried if each[0] >= (began + now) / 2)
    return (after - until) * (middle - began) > _GROWTH * (until - before) * (now - middle)
