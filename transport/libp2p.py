"""Answers libp2p programs on our TCP port: Noise and yamux, identify and ping, no more.

The only file that touches py-libp2p, which is treated as hostile code: it is imported in a
thread when the first such peer comes (1.3 s), hears and says nothing but what passes
`_Pipe`, and never gets a security transport besides Noise (its default set accepts
plaintext, which proves nothing about the peer).
"""

import importlib
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import trio

from .. import __version__
from . import defaults
from .address import Address
from .host import Host
from .identity import Identity

IDENTIFY = "/ipfs/id/1.0.0"
PING = "/ipfs/ping/1.0.0"
_PROTOCOL_FAMILY = "ipfs/0.1.0"  # what go, rust and py peers announce to each other
_PING_BYTES = 32


@dataclass(frozen=True, slots=True)
class Libp2pLimits:
    """What libp2p peers, none of them members, may cost us."""

    connections: int = defaults.LIBP2P_CONNECTIONS
    """Connections at once, a count; a further one is closed."""
    connection_bytes: int = defaults.LIBP2P_CONNECTION_BYTES
    """Bytes a peer may send over one connection's whole life."""
    rate: int = defaults.LIBP2P_RATE
    """Bytes per second taken from all connections together."""
    burst_bytes: int = defaults.LIBP2P_BURST_BYTES
    """Bytes taken at once, after a silence, from all connections together."""
    open_streams: int = defaults.LIBP2P_OPEN_STREAMS
    """Streams at once on a connection, a count; a further one is reset."""
    streams: int = defaults.LIBP2P_STREAMS
    """Streams over one connection's whole life, a count."""
    handshake_s: float = defaults.HANDSHAKE_S
    """Seconds from the first byte to a secured, multiplexed connection."""
    idle_s: float = defaults.LIBP2P_IDLE_S
    """Seconds without an answered request after which a connection is closed."""


class Libp2pResponder:
    """The libp2p side of a listener: one `serve` per connection whose first byte is 0x13."""

    def __init__(
        self,
        host: Host,
        identity: Identity,
        *,
        addresses: Callable[[], Sequence[Address]],
        limits: Libp2pLimits | None = None,
    ) -> None:
        self._host = host
        self._identity = identity
        self._addresses = addresses
        self._limits = limits or Libp2pLimits()
        self._library: _Library | None = None
        self._connections = 0
        self._pace = _Pace(self._limits.rate, self._limits.burst_bytes)

    async def serve(self, stream: trio.abc.Stream, first: bytes) -> None:
        """Answer one peer until it is done or over a limit, then close `stream`.

        `first` are the bytes already read from it. Nothing the peer does raises.
        """
        self._connections += 1
        try:
            if self._connections <= self._limits.connections:
                await self._converse(stream, first)
        except* Exception:  # noqa: BLE001  # the edge to py-libp2p: garbage raises anything there
            pass
        finally:
            self._connections -= 1
            await trio.aclose_forcefully(stream)

    async def _converse(self, stream: trio.abc.Stream, first: bytes) -> None:
        if self._library is None:
            seeds = self._identity.seed, self._host.entropy(32)
            self._library = await self._host.offload(_load, *seeds)
        pipe = _Pipe(stream, first, self._limits.connection_bytes, self._pace)
        with trio.fail_after(self._limits.handshake_s):
            muxed = await self._library.upgrade(pipe)
        await _Connection(self._library, self._limits, muxed, self._identify(pipe)).run()

    def _identify(self, pipe: "_Pipe") -> bytes:
        assert self._library is not None
        observed = pipe.get_remote_address()
        return self._library.identify_message(
            [replace(address, peer=None) for address in self._addresses()],
            None if observed is None else Address(*observed),
        )


class _Pace:
    """Slows readers down to `rate` bytes per second after a `burst` (a leaky bucket).

    py-libp2p spends up to 20 µs on a byte (multistream's `ls`), so bytes are what we ration.
    """

    def __init__(self, rate: int, burst: int) -> None:
        self._rate = rate
        self._ahead = burst / rate
        self._paid_until = -math.inf  # when all bytes taken so far would have been due

    async def spend(self, size: int) -> None:
        now = trio.current_time()
        self._paid_until = max(self._paid_until, now - self._ahead) + size / self._rate
        if self._paid_until > now:
            await trio.sleep_until(self._paid_until)


class _Pipe:
    """What py-libp2p sees of the network: a bounded number of bytes, in bounded reads.

    It is py-libp2p's `ReadWriteCloser`; a failure is the ConnectionResetError that its
    `RawConnection` understands.
    """

    def __init__(self, stream: trio.abc.Stream, first: bytes, limit: int, pace: _Pace) -> None:
        self._stream = stream
        self._first = first
        self._left = limit
        self._pace = pace

    async def read(self, n: int | None = None) -> bytes:
        size = defaults.LIBP2P_READ_BYTES if n is None else min(n, defaults.LIBP2P_READ_BYTES)
        if size == 0:
            return b""
        if self._first:
            data, self._first = self._first[:size], self._first[size:]
        else:
            data = await self._receive(size)
        self._left -= len(data)
        if not data or self._left < 0:
            raise ConnectionResetError("the peer closed, or sent more than its share")
        await self._pace.spend(len(data))
        return data

    async def _receive(self, size: int) -> bytes:
        try:
            return bytes(await self._stream.receive_some(size))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""

    async def write(self, data: bytes) -> None:
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionResetError("the peer is gone") from error

    async def close(self) -> None:
        await trio.aclose_forcefully(self._stream)

    def get_remote_address(self) -> tuple[str, int] | None:
        if not isinstance(self._stream, trio.SocketStream):
            return None
        name = self._stream.socket.getpeername()
        return (name[0].split("%")[0], name[1]) if isinstance(name, tuple) else None


class _Connection:
    """Serves the streams of one upgraded connection."""

    def __init__(
        self, library: "_Library", limits: Libp2pLimits, muxed: Any, identify: bytes
    ) -> None:
        self._library = library
        self._limits = limits
        self._muxed = muxed
        self._identify = identify
        self._open = 0
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        with self._scope:
            self._progress()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._run_muxer)
                await self._accept(nursery)
                self._scope.cancel()

    async def _run_muxer(self) -> None:
        await self._muxed.start()  # returns when the peer is gone
        self._scope.cancel()

    def _progress(self) -> None:
        self._scope.deadline = trio.current_time() + self._limits.idle_s

    async def _accept(self, nursery: trio.Nursery) -> None:
        for _ in range(self._limits.streams):
            stream = await self._muxed.accept_stream()
            if self._open >= self._limits.open_streams:
                await stream.reset()
                continue
            self._open += 1
            nursery.start_soon(self._serve_stream, stream)

    async def _serve_stream(self, stream: Any) -> None:
        try:
            protocol = await self._library.choose(stream)
            self._progress()
            if protocol == IDENTIFY:
                await stream.write(self._identify)
            else:
                await self._answer_pings(stream)
            await stream.close()
        except self._library.errors:
            await self._library.reset(stream)
        finally:
            self._open -= 1

    async def _answer_pings(self, stream: Any) -> None:
        while True:
            payload = await self._library.read_exactly(stream, _PING_BYTES)
            await stream.write(payload)
            self._progress()


@dataclass(frozen=True, slots=True)
class _Library:
    """The parts of py-libp2p that are used, with our key in them."""

    public_key: bytes  # protobuf, as identify carries it
    upgrader: Any
    raw_connection: Any
    multiselect: Any
    communicator: Any
    read_exactly: Any
    identify: Any
    multiaddr: Any
    uvarint: Any
    errors: tuple[type[Exception], ...]

    async def upgrade(self, pipe: _Pipe) -> Any:
        """Noise, then yamux, as the side that was dialled."""
        raw = self.raw_connection(pipe, False)
        secure = await self.upgrader.upgrade_security(raw, False)
        return await self.upgrader.upgrade_connection(secure, secure.get_remote_peer())

    async def choose(self, stream: Any) -> str:
        """Negotiate a stream's protocol, one of ours."""
        protocol, _ = await self.multiselect.negotiate(self.communicator(stream))
        return str(protocol)

    async def reset(self, stream: Any) -> None:
        """Give a stream up; the connection may already be gone."""
        try:
            await stream.reset()
        except self.errors:
            return

    def identify_message(self, listening: Sequence[Address], observed: Address | None) -> bytes:
        """The identify answer, length first (libp2p specification, `identify/README.md`)."""
        message = self.identify(
            protocol_version=_PROTOCOL_FAMILY,
            agent_version=f"shoal/{__version__}",
            public_key=self.public_key,
            listen_addrs=[self.multiaddr(str(address)).to_bytes() for address in listening],
            observed_addr=b"" if observed is None else self.multiaddr(str(observed)).to_bytes(),
            protocols=[IDENTIFY, PING],
        ).SerializeToString()
        length: bytes = self.uvarint(len(message))
        return length + bytes(message)


def _load(seed: bytes, noise_seed: bytes) -> _Library:
    """Import py-libp2p and build what serves with our key; blocking, for a thread."""
    logging.getLogger("libp2p").setLevel(logging.CRITICAL + 1)  # it logs every peer's mistake

    def module(name: str) -> Any:
        return importlib.import_module(f"libp2p.{name}")

    noise, yamux = module("security.noise.transport"), module("stream_muxer.yamux.yamux")
    communicator = module("protocol_muxer.multiselect_communicator")
    keys = module("crypto.ed25519").create_new_key_pair(seed)
    noise_key = module("crypto.x25519").X25519PrivateKey.from_bytes(noise_seed)
    security = {noise.PROTOCOL_ID: noise.Transport(keys, noise_key)}
    return _Library(
        public_key=keys.public_key.serialize(),
        upgrader=module("transport.upgrader").TransportUpgrader(
            security, {yamux.PROTOCOL_ID: yamux.Yamux}
        ),
        raw_connection=module("network.connection.raw_connection").RawConnection,
        multiselect=module("protocol_muxer.multiselect").Multiselect({IDENTIFY: None, PING: None}),
        communicator=communicator.MultiselectCommunicator,
        read_exactly=module("io.utils").read_exactly,
        identify=module("identity.identify.pb.identify_pb2").Identify,
        multiaddr=importlib.import_module("multiaddr").Multiaddr,
        uvarint=module("utils.varint").encode_uvarint,
        errors=(module("exceptions").BaseLibp2pError, ValueError, OSError, trio.TooSlowError),
    )
