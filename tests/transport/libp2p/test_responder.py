"""A py-libp2p host of default configuration, and hostile peers, against the responder."""

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
import trio

from shoal.transport.address import Address
from shoal.transport.host.real import RealHost
from shoal.transport.libp2p import Libp2pLimits, Libp2pResponder, defaults
from shoal.transport.libp2p.multistream import line
from shoal.transport.libp2p.yamux import DATA, FIN, RST, SYN, WINDOW
from shoal.transport.libp2p.yamux import PING as YAMUX_PING
from tests.transport.libp2p.pipes import (
    OURS,
    MemoryByteStream,
    RawPeer,
    byte_stream_pair,
    raw_peer,
    refused,
    responder,
)

pytestmark = pytest.mark.trio

LISTENING = Address("192.0.2.7", 4001, OURS.peer)
MULTISTREAM = line("/multistream/1.0.0")
NOISE = MULTISTREAM + line("/noise")
MIB = 1 << 20


@asynccontextmanager
async def listening(ours: Libp2pResponder) -> AsyncIterator[int]:
    """The responder behind a listener that reads one byte first, as the endpoint does."""

    async def accept(stream: trio.SocketStream) -> None:
        await ours.serve(stream, bytes(await stream.receive_some(1)))

    listener = await RealHost().listen("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, accept, [listener])
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def libp2p_host(**options: Any) -> AsyncIterator[Any]:
    from libp2p import new_host

    host = new_host(**options)
    async with host.run(listen_addrs=[]):
        yield host


def peer_info(port: int) -> Any:
    from libp2p.peer.peerinfo import info_from_p2p_addr
    from multiaddr import Multiaddr

    return info_from_p2p_addr(Multiaddr(f"/ip4/127.0.0.1/tcp/{port}/p2p/{OURS.peer}"))


@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.usefixtures("own_garbage")
async def test_plaintext_is_refused() -> None:
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.security.insecure.transport import PLAINTEXT_PROTOCOL_ID, InsecureTransport

    keys = create_new_key_pair()
    plain = {PLAINTEXT_PROTOCOL_ID: InsecureTransport(keys)}
    async with (
        listening(responder()) as port,
        libp2p_host(key_pair=keys, sec_opt=plain) as host,
    ):
        with trio.fail_after(15), pytest.raises(Exception, match="unable to connect"):
            await host.connect(peer_info(port))
    gc.collect()  # the refused dialler never closes its socket; let that be said here


# Replies.


async def test_identify_says_who_we_are_and_what_we_answer(autojump_clock: Any) -> None:
    from libp2p.identity.identify.identify import parse_identify_response
    from multiaddr import Multiaddr

    async with raw_peer(responder(addresses=lambda: [LISTENING])) as peer:
        await peer.open(1, "/ipfs/id/1.0.0")
        lines = MULTISTREAM + line("/ipfs/id/1.0.0")
        answer = parse_identify_response((await peer.answer(1)).removeprefix(lines))
        assert answer.agent_version == "shoal/0.1.0"
        assert answer.public_key == b"\x08\x01\x12\x20" + OURS.public_key
        protocols = ["/ipfs/id/1.0.0", "/ipfs/id/push/1.0.0", "/ipfs/ping/1.0.0"]
        assert list(answer.protocols) == protocols
        listen = [str(Multiaddr(address)) for address in answer.listen_addrs]
        assert listen == ["/ip4/192.0.2.7/tcp/4001"]
        assert str(Multiaddr(answer.observed_addr)) == "/ip4/192.0.2.1/tcp/40000"


async def test_pings_come_back_and_the_end_too(autojump_clock: Any) -> None:
    async with raw_peer(responder()) as peer:
        payload = bytes(range(32))
        await peer.open(1, "/ipfs/ping/1.0.0", payload + payload)
        await peer.frame(DATA, FIN, 1, 0)
        assert (await peer.answer(1)).endswith(payload + payload)


async def test_a_push_is_heard_and_closed_in_order(autojump_clock: Any) -> None:
    async with raw_peer(responder()) as peer:
        await peer.open(1, "/ipfs/id/push/1.0.0", b"\x05hello")
        await peer.frame(DATA, FIN, 1, 0)
        assert (await peer.answer(1)).endswith(line("/ipfs/id/push/1.0.0"))
        assert not peer.why


async def test_what_is_not_offered_is_not_answered(autojump_clock: Any) -> None:
    """No relay unless the owner volunteers, no calls where nothing is published."""
    async with raw_peer(responder()) as peer:
        for stream, name in enumerate(("/libp2p/circuit/relay/0.2.0/hop", "/shoal/call/1.0.0")):
            await peer.open(2 * stream + 1, name)
            while (await peer.next())[4] != MULTISTREAM + line("na"):
                pass


# Before the handshakes are done.


async def talk(ours: Libp2pResponder, *sent: bytes, eof: bool = False) -> float:
    """Send bytes to the responder, then fall silent; how many seconds it bore that."""
    near, far = byte_stream_pair()
    began = trio.current_time()
    with trio.fail_after(100):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ours.serve_byte_stream, far, b"")
            await _say(near, sent, eof)
    return trio.current_time() - began


async def _say(near: MemoryByteStream, sent: tuple[bytes, ...], eof: bool) -> None:
    """All of it, then wait for the end."""
    with suppress(OSError, trio.ClosedResourceError):
        for data in sent:
            await near.send(data)
    if eof:
        near.end()
    while await near.receive():
        pass


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff" * 100,
        bytes(100),
        MULTISTREAM + b"\xff" * 100,
        MULTISTREAM + b"\xff\xff\xff\xff\x7f" + b"x" * 3_000_000,
        MULTISTREAM + b"\x04\xff\xfe\xfd\n",
        MULTISTREAM + line("na") * 1000,
        MULTISTREAM + line("ls") * 1000,
        MULTISTREAM + line("/plaintext/2.0.0"),
        MULTISTREAM + line("/secio/1.0.0") + line("/tls/1.0.0"),
        NOISE + b"\x00\x00" * 100,
        NOISE + b"\xff\xff" + b"x" * 70000,
        NOISE + b"\x00\x20" + bytes(32),
        NOISE + b"\x00\x20" + bytes(range(32)) + b"\x00\x60" + bytes(96),
    ],
)
async def test_garbage_ends_bounded(autojump_clock: Any, sent: bytes) -> None:
    ours = responder()
    assert await talk(ours, sent) <= 10.001
    assert await talk(ours, sent, eof=True) <= 10.001


async def test_silence_ends_after_the_handshake_limit(autojump_clock: Any) -> None:
    ours = responder(Libp2pLimits(handshake_s=7))
    assert await talk(ours) == pytest.approx(7)
    assert await talk(ours, NOISE) == pytest.approx(7)


async def test_half_open_connections_of_one_network_are_few(autojump_clock: Any) -> None:
    """A hundred silent connections of one /24 leave eight open, and other subnets still get in."""
    ours = responder()
    ended: list[str] = []

    async def half_open(ip: str) -> None:
        ended.append(await ours.serve_byte_stream(byte_stream_pair(ip)[1], b""))

    async with trio.open_nursery() as nursery:
        for number in range(100):
            nursery.start_soon(half_open, f"192.0.2.{number}")
        await trio.sleep(1)
        assert ended == ["full"] * 92
        async with raw_peer(ours, ip="198.51.100.1") as peer:
            await peer.open(1, "/ipfs/ping/1.0.0", bytes(32))
            await peer.frame(DATA, FIN, 1, 0)
            assert await peer.answer(1)
    assert ended[92:] == ["handshake-timeout"] * 8


async def test_connections_are_counted(autojump_clock: Any) -> None:
    ours = responder(Libp2pLimits(connections=2))
    async with raw_peer(ours), raw_peer(ours):
        assert await talk(ours, MULTISTREAM) == 0
    assert await talk(ours, MULTISTREAM) == pytest.approx(10)


# After them.


async def test_idle_connections_end_though_they_ping_the_muxer(autojump_clock: Any) -> None:
    async with raw_peer(responder(Libp2pLimits(idle_s=30))) as peer:
        began = trio.current_time()

        async def drain() -> None:
            while await peer.byte_stream.receive():
                pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain)
            with suppress(OSError, trio.ClosedResourceError):
                for number in range(100):
                    await peer.frame(YAMUX_PING, SYN, 0, number)
                    await trio.sleep(1)
            await peer.ended.wait()
        assert trio.current_time() - began == pytest.approx(30, abs=1.5)
        assert peer.why == ["idle"]


async def test_a_stream_over_the_open_limit_is_reset(autojump_clock: Any) -> None:
    async with raw_peer(responder(Libp2pLimits(streams=3))) as peer:
        for number in range(4):
            await peer.frame(WINDOW, SYN, 2 * number + 1, 0)
        while not (frame := await peer.next())[1] & RST:
            pass
        assert frame[2] == 7


async def flood(peer: Any, size: int) -> None:
    """A stream, and `size` bytes on it, whatever the window says; the answers are not taken."""
    await peer.open(1, "/ipfs/ping/1.0.0")
    for _ in range(size >> 16):
        await peer.frame(DATA, 0, 1, 1 << 16, bytes(1 << 16))


async def test_bytes_over_the_window_end_the_connection(autojump_clock: Any) -> None:
    async with raw_peer(responder()) as peer:
        assert await refused(lambda: flood(peer, 1 << 30))
        await peer.ended.wait()
        assert peer.why == ["window-exceeded"]
        assert peer.byte_stream.taken < MIB


async def test_bytes_for_a_stream_that_is_over_are_dropped_slowly(autojump_clock: Any) -> None:
    """Nothing is held of them; the rate bounds what reading them costs."""
    async with raw_peer(responder()) as peer:
        await peer.open(1, "/nothing" * 40)
        for _ in range(400):
            with suppress(OSError, trio.ClosedResourceError):
                await peer.frame(DATA, 0, 1, 1 << 16, bytes(1 << 16))
        await peer.ended.wait()
        assert peer.why == ["idle"]
        most = defaults.IDLE_S * defaults.PEER_RATE + defaults.PEER_BURST_BYTES + MIB
        assert peer.byte_stream.taken < most < 400 << 16


async def leave_unread(peer: RawPeer, streams: int) -> None:
    """Pings on streams whose answers get no credit: half of each 480 KiB stays unread with us."""

    async def drain() -> None:
        while await peer.byte_stream.receive():
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drain)
        with suppress(OSError, trio.ClosedResourceError):
            for stream in range(1, 2 * streams, 2):
                await peer.open(stream, "/ipfs/ping/1.0.0")
                for _ in range(30):
                    await peer.frame(DATA, 0, stream, 1 << 14, bytes(1 << 14))
                    await trio.sleep(0.1)
        nursery.cancel_scope.cancel()


async def test_unread_bytes_of_a_connection_are_bounded(autojump_clock: Any) -> None:
    for held, expected in ((600_000, ["held-exceeded"]), (1_000_000, [])):
        async with raw_peer(
            responder(Libp2pLimits(held_bytes=held, peer_rate=1 << 40, rate=1 << 40))
        ) as peer:
            await leave_unread(peer, 3)
            assert peer.why == expected


async def test_unread_bytes_of_all_connections_are_bounded(autojump_clock: Any) -> None:
    for total, expected in ((600_000, ["overloaded"]), (1_000_000, [])):
        ours = responder(Libp2pLimits(total_bytes=total, peer_rate=1 << 40, rate=1 << 40))
        async with raw_peer(ours) as one, raw_peer(ours) as other:
            await leave_unread(one, 2)
            await leave_unread(other, 1)
            assert one.why + other.why == expected


@dataclass
class Rate:
    """The bytes that a peer got through within a time."""

    seconds: float
    sent: int


async def rate_of(limits: Libp2pLimits, seconds: float) -> Rate:
    """A peer that sends pings of yamux as fast as it is read."""
    async with raw_peer(responder(limits)) as peer:
        began, sent = trio.current_time(), 0

        async def drain() -> None:
            while await peer.byte_stream.receive():
                pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drain)
            with trio.move_on_after(seconds), suppress(OSError, trio.ClosedResourceError):
                while True:
                    await peer.frame(YAMUX_PING, SYN, 0, 0)
                    sent += 1
            nursery.cancel_scope.cancel()
        return Rate(trio.current_time() - began, sent)


async def test_what_costs_us_is_rationed(autojump_clock: Any) -> None:
    """A ping of 12 bytes counts as a frame: 76 and more of `peer_rate`."""
    slow = Libp2pLimits(peer_rate=10_000, peer_burst_bytes=50_000, idle_s=1000)
    found = await rate_of(slow, 20)
    assert found.sent * (defaults.FRAME_COST + 12) < 20 * 10_000 + 50_000 + 300_000
    fast = Libp2pLimits(peer_rate=100_000, peer_burst_bytes=50_000, idle_s=1000)
    assert (await rate_of(fast, 20)).sent > 2 * found.sent


async def test_pings_are_rationed(autojump_clock: Any) -> None:
    """Each counts as PING_COST: at 20 KiB per second that is ten a second."""
    times = []
    for rate in (20 << 10, 1 << 30):
        limits = Libp2pLimits(peer_rate=rate, peer_burst_bytes=10_000, rate=1 << 40)
        async with raw_peer(responder(limits)) as peer:
            began = trio.current_time()
            await peer.open(1, "/ipfs/ping/1.0.0", bytes(32 * 200))
            await peer.frame(DATA, FIN, 1, 0)
            assert len(await peer.answer(1)) > 32 * 200
            times.append(trio.current_time() - began)
    assert times[0] == pytest.approx(20, abs=2) and times[1] < 0.1


async def test_a_peer_that_takes_nothing_is_dropped(autojump_clock: Any) -> None:
    """Its own pings fill what we have for it; then we read no more, and end it after 30 s."""
    async with raw_peer(responder(Libp2pLimits(peer_rate=1 << 40, idle_s=1000))) as peer:
        began = trio.current_time()

        async def pings() -> None:
            while True:
                await peer.frame(YAMUX_PING, SYN, 0, 0)

        assert await refused(pings)
        await peer.ended.wait()
        assert peer.why == ["stuck"]
        assert peer.byte_stream.taken < 2 * MIB  # more was not read
        assert trio.current_time() - began == pytest.approx(defaults.UNSENT_S, abs=5)


async def test_ten_thousand_streams_leave_sixty_four(autojump_clock: Any) -> None:
    limits = Libp2pLimits(peer_rate=1 << 40, rate=1 << 40)
    async with raw_peer(responder(limits)) as peer:
        resets = 0

        async def count() -> None:
            nonlocal resets
            while resets < 9936:
                resets += bool((await peer.next())[1] & RST)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            for number in range(10_000):
                await peer.frame(WINDOW, SYN, 2 * number + 1, 0)
        assert not peer.why


async def test_cancelling_closes_the_pipe(autojump_clock: Any) -> None:
    near, far = byte_stream_pair()
    with trio.move_on_after(1) as scope:
        await responder().serve_byte_stream(far, b"\x13")
    assert scope.cancelled_caught and far.closed
    assert await near.receive() == b""
