"""What has come, on its way to the disk: verified and stored beside the event loop.

A peer no longer owes what waits here, so the next request to it is under way meanwhile.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import trio

from ..transport.frame import Bytes
from ..transport.host import Host
from ..transport.identity import PeerId
from .chunkstore import ChunkStore
from .defaults import STORED_AT_ONCE, STORED_TOGETHER
from .errors import ModelError


class Arrival(NamedTuple):
    """What a peer sent as this chunk."""

    peer: PeerId
    digest: str
    payload: Bytes


class Intake:
    """Stages what it is given in `store`; `stored` is told of each, and of what was wrong with it.
    Whoever gives bounds how much waits."""

    def __init__(
        self, host: Host, store: ChunkStore, stored: Callable[[Arrival, ModelError | None], None]
    ) -> None:
        self._host = host
        self._store = store
        self._stored = stored
        self._waiting: deque[Arrival] = deque()
        self._idle = trio.lowlevel.ParkingLot()

    def put(self, arrival: Arrival) -> None:
        """Store it as soon as may be."""
        self._waiting.append(arrival)
        self._idle.unpark()

    async def run(self) -> None:
        """Until it is cancelled."""
        async with trio.open_nursery() as nursery:
            for _ in range(STORED_AT_ONCE):
                nursery.start_soon(self._store_on)

    async def _store_on(self) -> None:
        """All that waits goes to the thread in one hop, which costs as much as storing one."""
        while True:
            while not self._waiting:
                await self._idle.park()
            together = min(len(self._waiting), STORED_TOGETHER)
            batch = [self._waiting.popleft() for _ in range(together)]
            errors = await self._host.offload(self._stage, batch, self._host.now())
            for arrival, error in zip(batch, errors, strict=True):
                self._stored(arrival, error)

    def _stage(self, batch: Sequence[Arrival], now: float) -> list[ModelError | None]:
        errors: list[ModelError | None] = []
        for _, digest, payload in batch:
            try:
                self._store.stage(digest, payload, now)
            except ModelError as error:
                errors.append(error)
            else:
                errors.append(None)
        return errors
