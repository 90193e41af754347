"""Tests of the memory that one flooding peer can cost: at most 32 MiB, with all rate limits off."""

import gc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import psutil
import pytest
import trio

from shoal.transport.libp2p import Libp2pLimits
from shoal.transport.libp2p.calls import CALL
from shoal.transport.libp2p.yamux import DATA, PING, SYN, WINDOW
from shoal.transport.link.calls import Reply
from tests.transport.libp2p.pipes import RawPeer, raw_peer, responder

pytestmark = [pytest.mark.trio, pytest.mark.long]

MIB = 1 << 20
STREAMS = range(1, 128, 2)


async def over_the_window(peer: RawPeer) -> None:
    """1 GiB on one stream."""
    await peer.open(1, "/ipfs/ping/1.0.0")
    for _ in range(1 << 14):
        await peer.frame(DATA, 0, 1, 1 << 16, bytes(1 << 16))


async def every_window_full(peer: RawPeer) -> None:
    """64 streams, on each as much as is allowed; the answers get no credit."""
    for stream in STREAMS:
        await peer.open(stream, "/ipfs/ping/1.0.0")
    for _ in range(31):
        for stream in STREAMS:
            await peer.frame(DATA, 0, stream, 1 << 14, bytes(1 << 14))


async def calls_that_do_not_end(peer: RawPeer) -> None:
    """64 requests of 1 MiB, less the last bytes."""
    for stream in STREAMS:
        await peer.open(stream, CALL, b"\xff\xff\x3f")
    for _ in range(63):
        for stream in STREAMS:
            await peer.frame(DATA, 0, stream, 1 << 14, bytes(1 << 14))


async def many_streams(peer: RawPeer) -> None:
    for number in range(10_000):
        await peer.frame(WINDOW, SYN, 2 * number + 1, 0)


async def many_pings(peer: RawPeer) -> None:
    for number in range(200_000):
        await peer.frame(PING, SYN, 0, number)


@pytest.mark.parametrize("drained", [True, False])
@pytest.mark.parametrize(
    "attack",
    [over_the_window, every_window_full, calls_that_do_not_end, many_streams, many_pings],
)
@pytest.mark.usefixtures("own_garbage")
async def test_memory_stays(
    autojump_clock: Any, attack: Callable[[RawPeer], Awaitable[None]], drained: bool
) -> None:
    limits = Libp2pLimits(peer_rate=1 << 40, rate=1 << 40)
    ours = responder(limits, published=lambda: {"echo": lambda call: Reply()})
    process = psutil.Process()
    async with raw_peer(ours) as peer, trio.open_nursery() as nursery:
        gc.collect()
        before = most = process.memory_info().rss

        async def drain() -> None:
            while await peer.byte_stream.receive():
                pass

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, process.memory_info().rss)
                await trio.sleep(0.05)

        nursery.start_soon(watch)
        if drained:
            nursery.start_soon(drain)
        with trio.move_on_after(60), suppress(OSError, trio.ClosedResourceError):
            await attack(peer)
            await trio.sleep(1)
        most = max(most, process.memory_info().rss)
        nursery.cancel_scope.cancel()
    print(
        f"{attack.__name__}: {peer.byte_stream.taken / MIB:.1f} MiB in, "
        f"{(most - before) / MIB:.1f} up"
    )
    assert most - before <= 32 * MIB
