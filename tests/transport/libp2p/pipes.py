"""Pipes in memory, and a dialler that writes frames by hand once it is past the handshakes."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar, TypeVarTuple

import trio

from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity
from shoal.transport.lane.frame import Fault
from shoal.transport.libp2p import Libp2pLimits, Libp2pResponder
from shoal.transport.libp2p.connection import Libp2pConnection, Protocols, ReadingCharges
from shoal.transport.libp2p.multistream import ProtocolOffer, line
from shoal.transport.libp2p.noise import Noise
from shoal.transport.libp2p.session import NOISE, YAMUX, Libp2pSession
from shoal.transport.libp2p.yamux import DATA, HEADER, SYN, WINDOW
from shoal.transport.rates import MemoryBudget

OURS = Identity.from_seed(bytes(range(32)))
THEIRS = Identity.from_seed(b"t" * 32)
_ROOM = 64 * 1024
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class InlineHost(RealHost):
    """Runs offloaded work in place: time that jumps would not wait for a thread."""

    async def offload(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        await trio.lowlevel.checkpoint()
        return work(*args)


class _Half:
    """One direction."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = False
        self.changed = trio.lowlevel.ParkingLot()


class MemoryByteStream:
    """A `ByteStream` to another one. Each direction holds 64 KiB."""

    medium = "tcp"

    def __init__(self, incoming: _Half, outgoing: _Half, remote: tuple[str, int]) -> None:
        self.remote = remote
        self.closed = False
        self.taken = 0
        self._in = incoming
        self._out = outgoing

    def read_ready(self, size: int) -> bytes:
        if self.closed:
            raise OSError("closed")
        if self._in.data:
            data = bytes(self._in.data[:size])
            del self._in.data[: len(data)]
            self._in.changed.unpark_all()
            return data
        if self._in.ended:
            return b""
        raise BlockingIOError

    def write_ready(self, data: bytes | memoryview) -> int:
        if self.closed or self._out.ended:
            raise BrokenPipeError
        room = min(len(data), _ROOM - len(self._out.data))
        if room <= 0:
            raise BlockingIOError
        self._out.data += data[:room]
        self.taken += room
        self._out.changed.unpark_all()
        return room

    async def wait_readable(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        while not (self._in.data or self._in.ended or self.closed):
            await self._in.changed.park()
        if self.closed:
            raise trio.ClosedResourceError

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        while len(self._out.data) >= _ROOM and not (self._out.ended or self.closed):
            await self._out.changed.park()
        if self.closed:
            raise trio.ClosedResourceError

    def end(self) -> None:
        self._out.ended = True
        self._out.changed.unpark_all()

    def close(self) -> None:
        self.closed = True
        for half in (self._in, self._out):
            half.ended = True
            half.changed.unpark_all()

    async def send(self, data: bytes) -> None:
        """All of it. Raises OSError, trio.ClosedResourceError."""
        view = memoryview(data)
        while view:
            try:
                view = view[self.write_ready(view) :]
            except BlockingIOError:
                await self.wait_writable()

    async def receive(self) -> bytes:
        """Return received bytes, b"" at the end."""
        with suppress(OSError, trio.ClosedResourceError):
            while True:
                await self.wait_readable()
                with suppress(BlockingIOError):
                    return self.read_ready(_ROOM)
        return b""


def byte_stream_pair(ip: str = "192.0.2.1") -> tuple[MemoryByteStream, MemoryByteStream]:
    """A dialler's end, and the listener's, which sees the dialler at `ip`."""
    one, other = _Half(), _Half()
    return MemoryByteStream(one, other, ("192.0.2.7", 4001)), MemoryByteStream(
        other, one, (ip, 40000)
    )


class RawPeer:
    """Noise and yamux's frames by hand."""

    def __init__(
        self, byte_stream: MemoryByteStream, noise: Noise, ended: trio.Event, why: list[str]
    ) -> None:
        self.byte_stream = byte_stream
        self.noise = noise
        self.ended = ended
        self.why = why
        self.buffer = bytearray()

    async def write(self, plaintext: bytes) -> None:
        """Raises OSError, trio.ClosedResourceError where we were cut off."""
        self.noise.send(plaintext)
        await self.byte_stream.send(self.noise.outgoing())

    async def frame(self, kind: int, flags: int, stream: int, size: int, body: bytes = b"") -> None:
        await self.write(HEADER.pack(0, kind, flags, stream, size) + body)

    async def open(self, stream: int, protocol: str, more: bytes = b"") -> None:
        """Open a stream, say its protocol, and send more at once, within the first window."""
        body = line("/multistream/1.0.0") + line(protocol) + more
        await self.frame(WINDOW, SYN, stream, 0)
        await self.frame(DATA, 0, stream, len(body), body)

    async def next(self) -> tuple[int, int, int, int, bytes]:
        """Type, flags, stream, size and body of the next frame."""
        header = await self._exactly(HEADER.size)
        _, kind, flags, stream, size = HEADER.unpack(header)
        return kind, flags, stream, size, await self._exactly(size) if kind == DATA else b""

    async def answer(self, stream: int) -> bytes:
        """All data of a stream up to its end, the negotiation's lines included."""
        data = b""
        while True:
            kind, flags, ident, _, body = await self.next()
            if ident == stream and kind == DATA:
                data += body
            if ident == stream and flags & 12:
                return data

    async def _exactly(self, size: int) -> bytes:
        while len(self.buffer) < size:
            data = await self.byte_stream.receive()
            if not data:
                raise EOFError
            self.buffer += self.noise.receive(data)
        data = bytes(self.buffer[:size])
        del self.buffer[:size]
        return data


async def introduce(byte_stream: MemoryByteStream, identity: Identity = THEIRS) -> Noise:
    """The dialler's part up to yamux."""
    offer = ProtocolOffer(NOISE)
    await byte_stream.send(offer.opening())
    while offer.chosen is None:
        offer.receive(await _some(byte_stream))
    noise = Noise(identity, initiator=True, entropy=RealHost().entropy, expect=OURS.peer)
    noise.receive(offer.rest())
    while not noise.established:
        await byte_stream.send(noise.outgoing())
        noise.receive(await _some(byte_stream))
    muxer = ProtocolOffer(YAMUX)
    noise.send(muxer.opening())
    await byte_stream.send(noise.outgoing())
    while muxer.chosen is None:
        muxer.receive(noise.receive(await _some(byte_stream)))
    return noise


async def _some(byte_stream: MemoryByteStream) -> bytes:
    data = await byte_stream.receive()
    if not data:
        raise Fault("stream-lost")
    return data


@asynccontextmanager
async def raw_peer(
    ours: Libp2pResponder, *, ip: str = "192.0.2.1", identity: Identity = THEIRS, **how: Any
) -> AsyncIterator[RawPeer]:
    """A peer that is past the handshakes with `ours`; `ended` once that has let it go."""
    near, far = byte_stream_pair(ip)
    ended = trio.Event()
    why: list[str] = []

    async def serve() -> None:
        why.append(await ours.serve_byte_stream(far, b"", **how))
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        with trio.fail_after(15):
            noise = await introduce(near, identity)
        yield RawPeer(near, noise, ended, why)
        nursery.cancel_scope.cancel()


def responder(limits: Libp2pLimits | None = None, **options: Any) -> Libp2pResponder:
    return Libp2pResponder(
        options.pop("host", None) or InlineHost(),
        OURS,
        addresses=options.pop("addresses", list),
        limits=limits,
        **options,
    )


async def refused(attempt: Callable[[], Awaitable[object]]) -> bool:
    """Whether the peer was cut off while it did something."""
    try:
        await attempt()
    except (OSError, trio.ClosedResourceError, EOFError):
        return True
    return False


@asynccontextmanager
async def connected(
    ours: Libp2pResponder,
    identity: Identity = THEIRS,
    *,
    ip: str = "192.0.2.1",
    protocols: Protocols = dict,
    **how: Any,
) -> AsyncIterator[Libp2pConnection]:
    """A peer that keeps to the rules, at the other end of a byte stream to `ours`."""
    near, far = byte_stream_pair(ip)
    limits = Libp2pLimits(idle_s=1e9)
    session = Libp2pSession(
        identity, dialled=True, entropy=RealHost().entropy, limits=limits, expect=OURS.peer
    )
    connection = Libp2pConnection(
        near,
        session,
        host=RealHost(),
        protocols=protocols,
        charges=ReadingCharges(MemoryBudget(1 << 40)),
    )
    up = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: ours.serve_byte_stream(far, b"", **how))
        nursery.start_soon(lambda: connection.run(up=up.set))
        with trio.fail_after(15):
            await up.wait()
        yield connection
        nursery.cancel_scope.cancel()
