"""intake: all arrivals are verified and stored in few thread hops, and each result is reported."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from shoal.dht.content.chunkstore import ChunkStore
from shoal.dht.defaults import STORED_AT_ONCE, STORED_TOGETHER
from shoal.dht.errors import ChunkCorrupt, ModelError
from shoal.dht.exchange.intake import Intake, UnverifiedChunk
from shoal.transport.identity import PeerId

from ..models import FakeHost

pytestmark = pytest.mark.trio

PEER = PeerId("peer")


def arrival(number: int, *, wrong: bool = False) -> UnverifiedChunk:
    data = number.to_bytes(4) * 1000
    return UnverifiedChunk(PEER, hashlib.sha256(data).hexdigest(), data[1:] if wrong else data)


class Slow:
    """Host whose offloaded work waits for `go`; `hops` are the chunks in each call."""

    def __init__(self, host: FakeHost) -> None:
        self.host = host
        self.hops: list[int] = []
        self.go = trio.Event()

    def now(self) -> float:
        return self.host.now()

    async def offload(self, work: Callable[..., Any], *args: Any) -> Any:
        self.hops.append(len(args[0]))
        await self.go.wait()
        return await self.host.offload(work, *args)


async def stored(
    folder: Path, arrivals: Sequence[UnverifiedChunk]
) -> tuple[dict[str, ModelError | None], Slow, ChunkStore]:
    host = Slow(FakeHost(inline=True))
    store = ChunkStore(host.host, folder, reserve=0)
    store.open()
    found: dict[str, ModelError | None] = {}
    done = trio.Event()

    def tell(arrival: UnverifiedChunk, error: ModelError | None) -> None:
        assert arrival.digest not in found
        found[arrival.digest] = error
        if len(found) == len(arrivals):
            done.set()

    intake = Intake(host, store, tell)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(intake.run)
        for each in arrivals:
            intake.put(each)
            await trio.testing.wait_all_tasks_blocked()
        host.go.set()
        await done.wait()
        nursery.cancel_scope.cancel()
    return found, host, store


async def test_waiting_chunks_go_together(tmp_path: Path) -> None:
    arrivals = [arrival(number) for number in range(STORED_AT_ONCE + 2 * STORED_TOGETHER)]
    found, host, store = await stored(tmp_path, arrivals)
    assert not any(found.values())
    assert not store.missing(found)
    assert host.hops == [1] * STORED_AT_ONCE + [STORED_TOGETHER] * 2


async def test_each_chunk_has_its_own_result(tmp_path: Path) -> None:
    good, bad = [arrival(number) for number in range(6)], arrival(7, wrong=True)
    found, _, store = await stored(tmp_path, [*good[:4], bad, *good[4:]])
    assert isinstance(found[bad.digest], ChunkCorrupt)
    assert [found[each.digest] for each in good] == [None] * 6
    assert store.missing([each.digest for each in [*good, bad]]) == [bad.digest]
