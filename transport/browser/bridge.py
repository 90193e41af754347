"""Adapter from aiortc's DTLS and SCTP, which need asyncio, to a `ByteStream`. This is the only
module that uses asyncio; it runs under trio-asyncio.

aiortc gets neither SDP nor sockets. This module connects the parts of aiortc directly, in the
manner of ORTC, over a session of the node's own ICE agent (ice.py), with a packet filter between
DTLS and SCTP (screen.py). aiortc runs in the same thread and in the same trio run as the rest of
the node. This module is imported only when a gate starts, because importing trio-asyncio replaces
functions of asyncio.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import trio
import trio_asyncio
from aiortc import (
    RTCCertificate,
    RTCDataChannel,
    RTCDataChannelParameters,
    RTCDtlsFingerprint,
    RTCDtlsParameters,
    RTCDtlsTransport,
    RTCSctpCapabilities,
    RTCSctpTransport,
)

from ..host.datagrams import Place
from . import defaults
from .channel import ChannelByteStream
from .screen import Breach, Screen, is_application_data, is_one_record
from .sdp import fingerprint_text

_ALERT: Final = 21  # DTLS content type


class Bridge:
    """The asyncio event loop that runs inside trio, and this node's DTLS certificate."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.certificate = RTCCertificate.generateCertificate()
        self.fingerprint = _sha256_of(self.certificate)
        self.faults = 0  # tasks of aiortc that raised an exception, which closed their channels
        loop.set_exception_handler(self._on_fault)

    def _on_fault(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Count an exception of one channel. Without this handler, trio-asyncio would end the whole
        program."""
        self.faults += 1


@asynccontextmanager
async def open_bridge() -> AsyncIterator[Bridge]:
    """Yield a bridge whose asyncio event loop runs inside trio until the end of the block."""
    async with trio_asyncio.open_loop() as loop:
        yield Bridge(loop)


def _sha256_of(certificate: RTCCertificate) -> bytes:
    found = {item.algorithm: item.value for item in certificate.getFingerprints()}
    return bytes.fromhex(found["sha-256"].replace(":", ""))


@dataclass(frozen=True, slots=True)
class FarEnd:
    """Parameters of the other end: the SHA-256 of its DTLS certificate, and its SCTP port."""

    fingerprint: bytes
    sctp_port: int


class Carrier:
    """One data channel with a browser. Received datagrams must be passed to `take`. Datagrams to be
    sent are passed to the callback `send`.

    `server` is True if this side is the DTLS server. `byte_stream` may be used once `opened` is
    set. `settled` is called when the DTLS handshake has proven that the browser has the certificate
    of the `far` end. `breach` describes the browser's violation of the protocol if one has closed
    the channel, otherwise it is None.
    """

    def __init__(
        self,
        bridge: Bridge,
        far: FarEnd,
        *,
        server: bool,
        send: Callable[[bytes], None],
        settled: Callable[[], None],
        screen: Screen | None = None,
    ) -> None:
        self.opened = trio.Event()
        self.over = trio.Event()
        self.breach: str | None = None
        """The peer's breach of the protocol, which ended the channel; None if there was none."""
        self.byte_stream = ChannelByteStream(
            ("", 0),
            on_output=self._output,
            on_read=self._read,
            on_end=self._end,
            on_close=self.over.set,
        )
        self._bridge = bridge
        self._far = far
        self._settled = settled
        self._wire = _Wire(send, server=server)
        self._screen = screen or Screen()
        self._dtls: Any = None
        self._sctp: Any = None
        self._channel: Any = None
        self._handshake_left = defaults.HANDSHAKE_DATAGRAMS
        # Whether application data has arrived, so that both ends have completed the handshake.
        self._spoken = False
        self._pinched = False  # whether the receive window last sent to the browser may be small
        self._pumping = False  # whether a call of `_pump` is scheduled
        # Referenced here, because asyncio's own reference is weak.
        self._telling: asyncio.Future[None] | None = None

    def locate(self, place: Place) -> None:
        """Set the present address of the browser."""
        self.byte_stream.remote = place

    def take(self, datagram: bytes) -> None:
        """Process a received DTLS datagram. Drop it if it is not allowed in the present state."""
        if self._spoken or is_application_data(datagram):
            if not is_one_record(datagram):
                return
            if not is_application_data(datagram) and datagram[0] != _ALERT:
                return  # a second handshake is not allowed
        else:
            self._handshake_left -= 1
            if self._handshake_left < 0:
                return
        self._wire.arrived(datagram)

    async def run(self) -> None:
        """Connect, and carry data until the channel is closed."""
        connecting = self._bridge.loop.create_task(self._connect())
        connecting.add_done_callback(self._on_connected)
        try:
            await self.over.wait()
        finally:
            self._lost()
            with trio.CancelScope(shield=True):
                await trio_asyncio.aio_as_trio(self._end_all)(connecting)

    # Methods that run in asyncio's context.

    def _on_connected(self, connecting: "asyncio.Task[None]") -> None:
        """Close the channel if aiortc has raised an exception while connecting."""
        if not connecting.cancelled() and connecting.exception() is not None:
            self._bridge.faults += 1
            self._lost()

    async def _end_all(self, connecting: "asyncio.Task[None]") -> None:
        if not connecting.done():
            self._wire.close()  # aiortc's handshake may ignore a cancellation (asyncio.wait_for)
            connecting.cancel()
            await asyncio.wait([connecting])
        await asyncio.wait([asyncio.ensure_future(self._stop())])  # `wait` ignores exceptions
        self._wire.close()

    async def _connect(self) -> None:
        self._dtls = RTCDtlsTransport(self._wire, [self._bridge.certificate])
        self._dtls.on("statechange", self._on_dtls)
        text = fingerprint_text(self._far.fingerprint)
        await self._dtls.start(RTCDtlsParameters([RTCDtlsFingerprint("sha-256", text)]))
        if self._dtls.state != "connected":
            self._lost()
            return
        self._settled()
        self._sctp = RTCSctpTransport(_Screened(self._dtls, self._admits), 5000)
        self._sctp._advertised_rwnd = defaults.WINDOW_BYTES
        parameters = RTCDataChannelParameters("shoal", negotiated=True, id=defaults.CHANNEL)
        self._channel = RTCDataChannel(self._sctp, parameters)
        self._channel.bufferedAmountLowThreshold = defaults.SEND_AHEAD_BYTES // 4
        self._channel.on("open", self._on_open)
        self._channel.on("message", self._on_message)
        self._channel.on("bufferedamountlow", self._pump)
        self._channel.on("close", self._on_close)
        await self._sctp.start(RTCSctpCapabilities(defaults.MESSAGE_BYTES), self._far.sctp_port)

    async def _stop(self) -> None:
        if self._sctp is not None:
            await self._sctp.stop()
        if self._dtls is not None:
            await self._dtls.stop()

    def _admits(self, packet: bytes) -> bool:
        """Return whether an SCTP packet may be passed to aiortc. Close the channel if the packet
        violates the protocol."""
        if self._sctp.state == "closed" or self.breach is not None:
            return False
        self._spoken = True
        try:
            admitted = self._screen.admits(
                packet,
                established=self._sctp.state == "connected",
                received=self._sctp._last_received_tsn,
                room=self._sctp._advertised_rwnd,
                unread=self.byte_stream.unread,
            )
        except Breach as breach:
            self.breach = str(breach)
            self._lost()
            return False
        if not admitted:
            self._tell_window()  # without a reply the browser would consider this node dead
        return admitted

    def _on_dtls(self) -> None:
        if self._dtls.state in ("closed", "failed"):
            self._lost()

    def _on_open(self) -> None:
        self.opened.set()

    def _on_message(self, message: bytes | str) -> None:
        if not isinstance(message, bytes):
            return
        self.byte_stream.arrived(message)
        self._sctp._advertised_rwnd -= len(message)
        self._pinched |= self._sctp._advertised_rwnd < defaults.WINDOW_BYTES // 4

    def _on_close(self) -> None:
        if self._sctp.state == "closed":  # aborted
            self._lost()
        else:
            self.byte_stream.ended()

    def _lost(self) -> None:
        self.byte_stream.lost()
        self.over.set()

    def _pump(self) -> None:
        self._pumping = False
        while self._channel is not None and self._channel.readyState == "open":
            message = self.byte_stream.next_message(self._channel.bufferedAmount)
            if message is None:
                return
            self._channel.send(message)

    def _tell_window(self) -> None:
        """Send the present receive window to the browser. aiortc itself sends it only when it
        accepts a packet."""
        if self._sctp is not None and self._sctp.state == "connected":
            self._telling = asyncio.ensure_future(self._sctp._send_sack())

    # Methods that trio's tasks call.

    def _output(self) -> None:
        if not self._pumping and not self.over.is_set():
            self._pumping = True
            self._bridge.loop.call_soon(self._pump)

    def _read(self, size: int) -> None:
        if self._sctp is None:
            return
        self._sctp._advertised_rwnd += size
        if self._pinched and self._sctp._advertised_rwnd >= defaults.WINDOW_BYTES // 2:
            self._pinched = False
            if not self.over.is_set():
                self._bridge.loop.call_soon(self._tell_window)

    def _end(self) -> None:
        if self._channel is not None and not self.over.is_set():
            self._bridge.loop.call_soon(self._channel.close)


class _Wire:
    """Replacement for the ICE transport below aiortc's DTLS. As in ORTC, aiortc derives the DTLS
    role from the ICE role."""

    def __init__(self, send: Callable[[bytes], None], *, server: bool) -> None:
        self.role = "controlling" if server else "controlled"
        self._send_now = send
        self._closed = False
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    def arrived(self, datagram: bytes) -> None:
        if self._queue.qsize() < defaults.QUEUED_DATAGRAMS and not self._closed:
            self._queue.put_nowait(datagram)

    def close(self) -> None:
        """Stop receiving. aiortc's pending or next read raises ConnectionError."""
        if not self._closed:
            self._closed = True
            self._queue.put_nowait(None)

    async def _recv(self) -> bytes:
        datagram = None if self._closed else await self._queue.get()
        if datagram is None:
            raise ConnectionError("the session is closed")
        return datagram

    async def _send(self, data: bytes) -> None:
        self._send_now(data)


class Receives(Protocol):
    """Part of the interface of aiortc's SCTP: the method that processes a received packet."""

    async def _handle_data(self, data: bytes) -> None: ...


class _Screened:
    """Replacement for the DTLS transport below aiortc's SCTP: the real transport, with a filter for
    received packets."""

    def __init__(self, dtls: RTCDtlsTransport, admits: Callable[[bytes], bool]) -> None:
        self._dtls = dtls
        self._admits = admits
        self._receiver: Receives | None = None

    @property
    def state(self) -> str:
        return str(self._dtls.state)

    @property
    def _role(self) -> str:
        return str(self._dtls._role)

    def _register_data_receiver(self, receiver: Receives) -> None:
        self._receiver = receiver
        self._dtls._register_data_receiver(self)

    def _unregister_data_receiver(self, receiver: Receives) -> None:
        self._receiver = None
        self._dtls._unregister_data_receiver(self)

    async def _handle_data(self, data: bytes) -> None:
        if self._receiver is not None and self._admits(data):
            await self._receiver._handle_data(data)

    async def _send_data(self, data: bytes) -> None:
        await self._dtls._send_data(data)
