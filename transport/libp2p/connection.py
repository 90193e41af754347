"""One libp2p connection with its tasks, which read, write, and serve each stream."""

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from ..bytestream import ByteStream
from ..host.seam import Host
from ..lane.frame import Fault
from ..rates import MemoryBudget, RateLimiter
from . import defaults
from .multistream import ProtocolChoice, ProtocolOffer
from .muxstream import MuxStream
from .session import Libp2pSession
from .yamux import ChannelOpened, YamuxChannel

Serve = Callable[["Libp2pConnection", MuxStream], Awaitable[None]]
"""Serves a stream whose protocol is negotiated. If this raises Fault, the stream is reset."""
Protocols = Callable[[], Mapping[str, Serve]]
"""Returns the protocols that are served, by protocol id. It is called again for each stream."""


@dataclass(frozen=True, slots=True)
class ReadingCharges:
    """Limits for the bytes that a connection receives: a budget while they are in memory, and rate
    limiters when they are processed."""

    budget: MemoryBudget
    paces: Sequence[RateLimiter] = ()


class Libp2pConnection:
    """Runner of `session` over `byte_stream`.

    It runs until the peer ends the connection, a limit is exceeded, or the connection is idle.
    `charges` has what received bytes are charged to. `relayed` says that `byte_stream` is
    itself a circuit. `code` is the reason of the end (docs/spec/libp2p.md); None while the
    connection runs. `calls` and `circuits` are the numbers of open calls and circuits.
    """

    def __init__(
        self,
        byte_stream: ByteStream,
        session: Libp2pSession,
        *,
        host: Host,
        protocols: Protocols,
        charges: ReadingCharges,
        relayed: bool = False,
    ) -> None:
        self.code: str | None = None
        self.relayed = relayed
        self.calls = 0
        self.circuits = 0
        self._byte_stream = byte_stream
        self.session = session
        self._host = host
        self._limits = session.limits
        self._protocols = protocols
        self._charges = charges
        self._scope = trio.CancelScope()
        self._holds = 0  # open contexts of `held`
        self._kept_until = -math.inf  # time until which the connection is not idle (see `keep`)
        self._heard = 0.0  # time of the last received bytes
        self._paid = (0, 0)  # frames, and streams of the peer, that were charged to the paces
        self._wake = trio.lowlevel.ParkingLot()  # woken when there are bytes to write
        self._room = trio.lowlevel.ParkingLot()  # woken when few enough bytes are unsent
        self._nursery: trio.Nursery | None = None

    @property
    def peer(self) -> str:
        """The libp2p peer id of the other end. Raises Fault until that is authenticated."""
        return self.session.peer

    @property
    def ip(self) -> str:
        """The IP address of the other end; "" on a circuit."""
        return self._byte_stream.remote[0]

    @property
    def remote(self) -> tuple[str, int]:
        """The IP address and port of the other end, as seen from here."""
        return self._byte_stream.remote

    @property
    def alive(self) -> bool:
        """Whether streams may be opened."""
        return self.code is None and self._nursery is not None and not self.session.yamux.leaving

    async def run(self, first: bytes = b"", *, up: Callable[[], None] = lambda: None) -> None:
        """Run the connection to its end.

        `first` are bytes that were already read. `up` is called once both ends are authenticated.
        """
        self._heard = self._host.now()
        self._scope.deadline = trio.current_time() + self._limits.handshake_s
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    nursery.start_soon(self._write)
                    nursery.start_soon(self._watch)
                    await self._read(first, up)
                    nursery.cancel_scope.cancel()
            if self._scope.cancelled_caught:
                self.close("idle" if self.session.established else "handshake-timeout")
        finally:
            self.close("closed")
            self._nursery = None
            self._byte_stream.close()
            self._charges.budget.drop(self)

    def close(self, code: str) -> None:
        """Close the connection and every stream on it, for the reason `code`."""
        if self.code is not None:
            return
        self.code = code
        self._scope.cancel()
        for channel in list(self.session.yamux.channels.values()):
            channel.fail()
            if channel.context is not None:
                channel.context.wake()
        self._room.unpark_all()

    async def open(self, protocol: str) -> MuxStream:
        """Open a stream for a protocol.

        Raises Fault with code `no-protocol` if the peer does not support the protocol, and with
        another code if the stream is lost.
        """
        if not self.alive:
            raise Fault("stream-lost")
        stream = self._shell(self.session.yamux.open())
        try:
            offer = ProtocolOffer(protocol)
            await stream.send(offer.opening())
            await self._negotiate(stream, offer)
        except BaseException:
            stream.close()
            raise
        return stream

    @contextmanager
    def held(self) -> Iterator[None]:
        """Prevent the idle timeout while the context is open."""
        self._holds += 1
        self.progress()
        try:
            yield
        finally:
            self._holds -= 1
            self.progress()

    def keep(self, until: float) -> None:
        """Prevent the idle timeout until `until`, in seconds on the host's clock."""
        self._kept_until = max(self._kept_until, until)
        self.progress()

    def progress(self) -> None:
        """Restart the idle timeout, because a request was served."""
        if self.session.established:
            idle = math.inf if self._holds else trio.current_time() + self._limits.idle_s
            self._scope.deadline = max(idle, self._kept_until)

    async def pay(self, cost: int) -> None:
        """Wait until the rate limiters allow work that costs as much as `cost` bytes."""
        for pace in self._charges.paces:
            await pace.pay(cost)

    # Reading.

    async def _read(self, data: bytes, up: Callable[[], None]) -> None:
        """Read and process bytes until the end. Call `up` when the handshake has ended."""
        established = False
        while True:
            try:
                await self._take_in(data)
            except Fault as fault:
                self.close(fault.code)
                return
            if self.session.established and not established:
                established = True
                self.progress()
                up()
            data = await self._receive()
            if not data:
                return

    async def _take_in(self, data: bytes) -> None:
        """Process received bytes, charge their cost, and wait until few enough bytes are unsent."""
        self._heard = self._host.now()
        yamux = self.session.yamux
        for event in self.session.receive(data):
            if isinstance(event, ChannelOpened):
                if self._nursery is not None:
                    self._nursery.start_soon(self._serve, self._shell(event.stream))
            elif event.stream.context is not None:
                event.stream.context.wake()
        self._flush()
        self._charges.budget.set(self, yamux.held)
        frames, asked = yamux.frames - self._paid[0], yamux.asked - self._paid[1]
        self._paid = yamux.frames, yamux.asked
        cost = len(data) + defaults.READ_COST
        await self.pay(cost + frames * defaults.FRAME_COST + asked * defaults.STREAM_COST)
        while yamux.unsent > 2 * defaults.UNSENT_BYTES:
            await self._room.park()

    async def _receive(self) -> bytes:
        """Wait for bytes and return them; b"" at the end."""
        try:
            while True:
                await self._byte_stream.wait_readable()
                try:
                    return self._byte_stream.read_ready(defaults.READ_BYTES)
                except BlockingIOError:
                    continue
        except (OSError, trio.ClosedResourceError):
            return b""

    # Writing.

    def _flush(self) -> None:
        """Wake the task that writes."""
        self._wake.unpark_all()

    async def _write(self) -> None:
        """Write the session's bytes until the connection breaks or the peer accepts none for too
        long."""
        try:
            while True:
                while not (data := self.session.outgoing()):
                    await self._wake.park()
                with trio.fail_after(defaults.UNSENT_S):
                    await self._send(data)
                if self.session.yamux.unsent < defaults.UNSENT_BYTES // 4:
                    self._room.unpark_all()
        except (OSError, trio.ClosedResourceError):
            self.close("lost")
        except trio.TooSlowError:
            self.close("stuck")

    async def _send(self, data: bytes) -> None:
        """Write all bytes to the byte stream."""
        view = memoryview(data)
        while view:
            try:
                view = view[self._byte_stream.write_ready(view) :]
            except BlockingIOError:
                await self._byte_stream.wait_writable()

    async def _watch(self) -> None:
        """Send pings on a silent connection that must stay open, and close it if there is no
        reply."""
        # This concerns connections that stay open without requests. Others have the idle timeout.
        while True:
            await trio.sleep(defaults.PING_S)
            now = self._host.now()
            silent = now - self._heard
            if not self._holds and now >= self._kept_until:
                continue
            if silent >= defaults.SILENT_S:
                self.close("silent")
            elif silent >= defaults.PING_S:
                self.session.yamux.ping()
                self._flush()

    # Streams.

    def _shell(self, channel: YamuxChannel) -> MuxStream:
        """Create the `MuxStream` of a yamux stream."""
        return MuxStream(channel, self.session.yamux, flush=self._flush, room=self._room)

    async def _serve(self, stream: MuxStream) -> None:
        """Negotiate the protocol of a stream that the peer has opened, and serve the stream."""
        try:
            protocols = self._protocols()
            choice = ProtocolChoice(protocols)
            with trio.fail_after(self._limits.request_s):
                chosen = await self._negotiate(stream, choice)
            await protocols[chosen](self, stream)
            with trio.fail_after(self._limits.request_s):
                await stream.finish()
        except (Fault, trio.TooSlowError):
            pass
        finally:
            stream.close()

    async def _negotiate(self, stream: MuxStream, agreeing: ProtocolChoice | ProtocolOffer) -> str:
        """Negotiate a stream's protocol, and return it. Raises Fault if there is no agreement."""
        while agreeing.chosen is None:
            data = await stream.receive(defaults.LINE_BYTES)
            if not data:
                raise Fault("stream-lost")
            await stream.send(agreeing.receive(data))
        stream.put_back(agreeing.rest())
        return agreeing.chosen
