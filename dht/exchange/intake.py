"""Queue of received chunks, which are verified and stored in threads beside the event loop.

The request for a chunk in this queue counts as answered. While the chunk is being stored, the next
request to its peer can therefore already be sent.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import trio

from ...transport.host.seam import Host
from ...transport.identity import PeerId
from ...transport.lane.frame import Bytes
from ..content.chunkstore import ChunkStore
from ..defaults import STORED_AT_ONCE, STORED_TOGETHER
from ..errors import ModelError


class UnverifiedChunk(NamedTuple):
    """Bytes that a peer sent in reply to a request for the chunk `digest`, not verified yet."""

    peer: PeerId
    digest: str
    payload: Bytes


class Intake:
    """Queue of arrivals, which are staged in `store`.

    `stored` is called with each arrival and its error, or None if it was staged. The caller must
    limit how many arrivals wait in the queue.
    """

    def __init__(
        self,
        host: Host,
        store: ChunkStore,
        stored: Callable[[UnverifiedChunk, ModelError | None], None],
    ) -> None:
        self._host = host
        self._store = store
        self._stored = stored
        self._waiting: deque[UnverifiedChunk] = deque()
        self._idle = trio.lowlevel.ParkingLot()

    def put(self, arrival: UnverifiedChunk) -> None:
        """Append an arrival to the queue."""
        self._waiting.append(arrival)
        self._idle.unpark()

    async def run(self) -> None:
        """Store the queued arrivals until cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(STORED_AT_ONCE):
                nursery.start_soon(self._store_on)

    async def _store_on(self) -> None:
        """Store batches of arrivals, one after the other, until cancelled."""
        # Handing work to a thread costs as much as storing a chunk. One handover therefore takes
        # up to `STORED_TOGETHER` of the waiting chunks.
        while True:
            while not self._waiting:
                await self._idle.park()
            together = min(len(self._waiting), STORED_TOGETHER)
            batch = [self._waiting.popleft() for _ in range(together)]
            errors = await self._host.offload(self._stage, batch, self._host.now())
            for arrival, error in zip(batch, errors, strict=True):
                self._stored(arrival, error)

    def _stage(self, batch: Sequence[UnverifiedChunk], now: float) -> list[ModelError | None]:
        """Verify and stage a batch; return the error of each arrival, None if stored. Blocking."""
        errors: list[ModelError | None] = []
        for _, digest, payload in batch:
            try:
                self._store.stage(digest, payload, now)
            except ModelError as error:
                errors.append(error)
            else:
                errors.append(None)
        return errors
