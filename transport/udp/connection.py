"""QUIC connection between two nodes: it has a single stream and limited memory, and either end may
change its address.

aioquic's `QuicConnection` is the state machine. It is unsuitable in three points. Its flow control
doubles the window as long as bytes arrive, whether or not they are read. Its client follows a
server to any address that the server names, but to no other. It does not limit what a peer makes it
store besides the stream. In this subclass, the window grows as the reader reads. The client follows
a server to an address only if authentic packets came from it, because both ends may be behind NATs
that lose their mappings. All stored bytes are counted.

The overrides use private names of aioquic. Its version is therefore pinned, and
`test_connection.py` fails if one of the overrides is no longer called.
"""

import logging
import ssl
from bisect import bisect_left
from typing import Any, Final, NamedTuple

from aioquic._buffer import Buffer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import (
    MAX_STREAM_DATA_FRAME_CAPACITY,
    QuicConnection,
    QuicConnectionError,
    QuicConnectionState,
    QuicNetworkPath,
)
from aioquic.quic.packet import QuicErrorCode, QuicFrameType, QuicPacketType, QuicProtocolVersion
from aioquic.quic.packet_builder import QuicPacketBuilder
from aioquic.quic.rangeset import RangeSet
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.stream import QuicStream
from aioquic.tls import CipherSuite, Epoch, Group, SignatureAlgorithm

from ..handshake.certificate import UNREADABLE as BAD_CERTIFICATE
from ..host.datagrams import Datagrams, Place
from ..rates import ByteBudget
from . import defaults
from .certificate import QuicCertificate
from .congestion import DelayControl, Pacer
from .defaults import UdpLimits
from .mtu import PacketSize
from .window import FlowWindow


class Ranges(RangeSet):
    """Set of disjoint ranges: the received parts of a stream, or received packet numbers."""

    def add(self, start: int, stop: int | None = None) -> None:
        """Add the range from `start` up to, but not including, `stop` (None: `start + 1`). Ranges
        that touch are merged, as in aioquic's method."""
        if stop is None:
            stop = start + 1
        assert stop > start
        ranges: list[range] = self._RangeSet__ranges  # type: ignore[attr-defined]
        first = last = bisect_left(ranges, start, key=lambda each: each.stop)
        while last < len(ranges) and ranges[last].start <= stop:
            last += 1
        if first < last:
            start = min(start, ranges[first].start)
            stop = max(stop, ranges[last - 1].stop)
        ranges[first:last] = [range(start, stop)]


# Errors that aioquic or its parsers raise on invalid input: QuicConnectionError, which has a code,
# and others without a code.
UNREADABLE: Final = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    AssertionError,
    RuntimeError,
    QuicConnectionError,
    *BAD_CERTIFICATE,
)


class Via(NamedTuple):
    """Path of a connection: the peer's address and our socket. aioquic treats this tuple as an
    address."""

    place: Place
    socket: Datagrams


class _Silent(logging.LoggerAdapter[logging.Logger]):
    """Logger that discards aioquic's warnings about mistakes of peers. Their error codes reach us
    in another way."""


_SILENT: Final = logging.Logger("shoal.udp", logging.CRITICAL + 1)


def configuration(certificate: QuicCertificate | None, limits: UdpLimits) -> QuicConfiguration:
    """Return the aioquic configuration of a server if a certificate is given, and of a client if it
    is None."""
    return QuicConfiguration(
        alpn_protocols=[defaults.ALPN],
        connection_id_length=defaults.CONNECTION_ID_BYTES,
        idle_timeout=limits.idle_s,
        is_client=certificate is None,
        max_data=defaults.DATA_LIMIT,
        max_stream_data=min(limits.stranger_window_bytes, limits.window_bytes),
        max_datagram_size=defaults.INITIAL_BYTES,
        certificate=certificate.x509 if certificate else None,
        private_key=certificate.key if certificate else None,
        cipher_suites=[CipherSuite.AES_128_GCM_SHA256, CipherSuite.CHACHA20_POLY1305_SHA256],
        supported_versions=[QuicProtocolVersion.VERSION_1],
        verify_mode=ssl.CERT_NONE,  # the TLS inside the stream authenticates the peer
    )


class UdpConnection(QuicConnection):
    """One QUIC connection, without I/O. Its input is datagrams and the time `now`, its output
    datagrams and events."""

    def __init__(
        self,
        configuration: QuicConfiguration,
        limits: UdpLimits,
        extra: ByteBudget,
        **accepted: bytes | None,
    ) -> None:
        """`extra` is the memory by which windows may grow. `accepted` has the arguments of aioquic
        that a server derives from a client's first packet."""
        super().__init__(configuration=configuration, **accepted)  # type: ignore[arg-type]
        self.limits = limits
        self.window = FlowWindow(limits, extra)
        self.fault: BaseException | None = None
        """The error that ended this connection, if bytes of the peer could not be processed."""
        self.control = DelayControl(max_datagram_size=configuration.max_datagram_size)
        self._logger: Any = _Silent(_SILENT, {})
        self._loss._logger = self._logger
        self._loss._cc = self.control
        self._pacer = Pacer(self.control, configuration.max_datagram_size)
        self._loss._pacer = self._pacer  # type: ignore[assignment]
        for limit, streams in (
            (self._local_max_streams_bidi, 0 if self._is_client else 1),
            (self._local_max_streams_uni, 0),
        ):
            limit.value = limit.sent = streams
        self._size = PacketSize()
        self._key_packets = 0
        self._ack_rtt = 0.0
        self._last_via: Via | None = None
        self._now = 0.0

    # Interface for the code that does the I/O.

    @property
    def ended(self) -> bool:
        """Whether this connection is closing or closed."""
        return self._close_pending or self._state not in (
            QuicConnectionState.FIRSTFLIGHT,
            QuicConnectionState.CONNECTED,
        )

    @property
    def began(self) -> bool:
        """Whether an authentic packet has arrived from the peer."""
        return self._state is not QuicConnectionState.FIRSTFLIGHT

    @property
    def cids(self) -> list[bytes]:
        """Connection ids by which the peer may address this connection."""
        return [each.cid for each in self._host_cids]

    @property
    def via(self) -> Via:
        """Path on which packets are sent at present."""
        found: Via = self._network_paths[0].addr
        return found

    @property
    def rtt(self) -> float:
        """Smoothed round-trip time in seconds; 0 until measured."""
        return float(self._loss._rtt_smoothed)

    @property
    def unsent(self) -> int:
        """Number of queued bytes of the stream that have not been sent yet."""
        stream = self._streams.get(defaults.STREAM_ID)
        return stream.sender._buffer_stop - stream.sender.highest_offset if stream else 0

    def begin(self, place: Place, socket: Datagrams, now: float) -> None:
        """Start the handshake with the peer at an address."""
        self.connect(Via(place, socket), now)

    def release(self) -> None:
        """Drop the state of a connection that has ended, except its last measurements.

        aioquic stores bound methods that refer to the connection. Because of these cycles, some 240
        objects would otherwise stay in memory until a full garbage collection.
        """
        vars(self)["_QuicConnection__frame_handlers"] = {}
        self._loss._send_probe = _nothing
        self._cryptos, self._cryptos_initial = {}, {}
        if hasattr(self, "tls"):  # it has begun
            self.tls.alpn_cb = None
            self.tls.update_traffic_key_cb = _nothing

    def expire(self, now: float) -> None:
        """Handle the expiry of the timer that `get_timer` returned."""
        try:
            self.handle_timer(now)
        except UNREADABLE as error:
            self.fault = error
            self.close(QuicErrorCode.INTERNAL_ERROR, QuicFrameType.PADDING)

    def receive(self, data: bytes, place: Place, socket: Datagrams, now: float) -> None:
        """Process a received datagram. If the peer violates the protocol, close the connection with
        an error code."""
        via = self._last_via
        if via is None or via.socket is not socket or via.place != place:
            via = self._last_via = Via(place, socket)
        try:
            if self._is_client and all(path.addr != via for path in self._network_paths):
                self._receive_from_elsewhere(data, via, now)
            else:
                self.receive_datagram(data, via, now)
            self._check()
        except UNREADABLE as error:
            self.fault = error
            self.close(QuicErrorCode.PROTOCOL_VIOLATION, QuicFrameType.PADDING)

    def transmit(self, now: float) -> list[tuple[bytes, Via]]:
        """Return the datagrams to send now, as (data, path)."""
        self._now = now
        before = self.control.bytes_in_flight
        self._pacer.begin(now)
        stream = self._streams.get(defaults.STREAM_ID)
        if stream is not None and self._handshake_complete:
            acknowledges = self._spaces[Epoch.ONE_RTT]
            if acknowledges.ack_at is not None and not stream.sender.buffer_is_empty:
                acknowledges.ack_at = now  # aioquic would send it later, in a packet of its own
        datagrams = self.datagrams_to_send(now)
        in_flight = self.control.bytes_in_flight
        self._pacer.settle(in_flight - before)
        if self._handshake_confirmed and not self.ended:
            self._follow_path(now, datagrams)
            room = in_flight + self._max_datagram_size < self.control.congestion_window
            if room and (stream is None or stream.sender.next_offset == stream.sender._buffer_stop):
                self.control.nothing_more()
        return datagrams

    # Limits on what a peer can make this node store.

    def _check(self) -> None:
        """Enforce limits that aioquic lacks. Raises QuicConnectionError if the peer exceeds one."""
        for stream in self._crypto_streams.values():
            if stream.receiver.highest_offset > self.limits.crypto_bytes:
                raise _fault(QuicErrorCode.CRYPTO_BUFFER_EXCEEDED, QuicFrameType.CRYPTO)

    def _get_or_create_stream(self, frame_type: int, stream_id: int) -> QuicStream:
        """Return the only stream. Raises QuicConnectionError if the id belongs to another stream,
        or if the received data has too many gaps."""
        if stream_id != defaults.STREAM_ID:
            raise _fault(QuicErrorCode.STREAM_LIMIT_ERROR, frame_type)
        stream = super()._get_or_create_stream(frame_type, stream_id)
        gaps = stream.receiver._ranges
        if type(gaps) is not Ranges:
            gaps = stream.receiver._ranges = Ranges(gaps)
        grown = max(0, self.window.bytes - self.limits.window_bytes)
        if len(gaps) > self.limits.gaps + grown // defaults.GAP_BYTES:
            raise _fault(QuicErrorCode.FLOW_CONTROL_ERROR, frame_type)
        return stream

    def _write_connection_limits(self, builder: QuicPacketBuilder, space: QuicPacketSpace) -> None:
        """Send no limit for the whole connection, because the window of its only stream limits what
        arrives."""

    def _write_stream_limits(
        self, builder: QuicPacketBuilder, space: QuicPacketSpace, stream: QuicStream
    ) -> None:
        """Extend the stream's window by the bytes that have been read, once these are a quarter of
        the window."""
        if self.window.owes(stream.max_stream_data_local):
            stream.max_stream_data_local = self.window.grant(self._now, self.rtt)
        if stream.max_stream_data_local_sent == stream.max_stream_data_local:
            return
        frame = builder.start_frame(
            QuicFrameType.MAX_STREAM_DATA,
            capacity=MAX_STREAM_DATA_FRAME_CAPACITY,
            handler=self._on_max_stream_data_delivery,
            handler_args=(stream,),
        )
        frame.push_uint_var(stream.stream_id or 0)
        frame.push_uint_var(stream.max_stream_data_local)
        stream.max_stream_data_local_sent = stream.max_stream_data_local

    @property
    def kept(self) -> int:
        """Number of received bytes in the stream's reassembly buffer, including the gaps between
        them."""
        stream = self._streams.get(defaults.STREAM_ID)
        return len(stream.receiver._buffer) if stream is not None else 0

    def drop(self) -> None:
        """Discard the bytes in the reassembly buffer, because the stream will not be read again."""
        stream = self._streams.get(defaults.STREAM_ID)
        if stream is not None:
            stream.receiver._buffer = bytearray()

    @property
    def owes_window(self) -> bool:
        """Whether enough has been read since the last update to send the peer a new window."""
        stream = self._streams.get(defaults.STREAM_ID)
        return stream is not None and self.window.owes(stream.max_stream_data_local)

    # TLS.

    def _initialize(self, peer_cid: bytes) -> None:
        """Offer a single key exchange group and signature algorithm, because generating a key for
        each group costs a millisecond."""
        super()._initialize(peer_cid)
        self._spaces[Epoch.ONE_RTT].ack_queue = Ranges()
        self.tls._supported_groups = [Group.X25519]
        self.tls._signature_algorithms = [SignatureAlgorithm.ED25519]

    def _confirm_handshake(self) -> None:
        """Release the TLS buffers (48 KiB), which are not needed after the handshake."""
        super()._confirm_handshake()
        for epoch in self._crypto_buffers:
            self._crypto_buffers[epoch] = Buffer(capacity=64)

    # Paths.

    def _parse_transport_parameters(self, data: bytes, from_session_ticket: bool = False) -> None:
        super()._parse_transport_parameters(data, from_session_ticket)
        self._remote_preferred_address = None  # a peer must not direct us to a third party

    def _receive_from_elsewhere(self, data: bytes, via: Via, now: float) -> None:
        """Process a datagram that came from a new address of the server. If the datagram is
        authentic and the newest so far, send to that address from now on.

        The new address is then validated in the same way as that of a client that has moved (RFC
        9000, section 9.3).
        """
        if not self._handshake_complete:
            return
        space = self._spaces[Epoch.ONE_RTT]
        newest = space.largest_received_packet
        self.receive_datagram(data, self._network_paths[0].addr, now)
        if space.largest_received_packet > newest and not self.ended:
            path = QuicNetworkPath(via)
            path.bytes_received = len(data)
            self._add_network_path(path)
            self._network_paths.remove(path)
            self._network_paths.insert(0, path)

    def _follow_path(self, now: float, datagrams: list[tuple[bytes, Via]]) -> None:
        """Adapt the packet size, the keys and the acknowledgement delay to the path and the
        traffic. Append a probe of the packet size to `datagrams` if one is due."""
        size = self._size
        if self._loss._pto_count >= defaults.BLACK_HOLE_TIMEOUTS:
            size.shrink()
        path = self._network_paths[0]
        if size.follow(path.addr, path.bytes_sent) and path.is_validated:
            datagrams += self._probe_size(path, now)
        if size.bytes != self._max_datagram_size:
            self._max_datagram_size = self._pacer.datagram_bytes = size.bytes
        if self._packet_number - self._key_packets > defaults.KEY_PACKETS:
            self._key_packets = self._packet_number
            self.request_key_update()
        if self._loss._rtt_smoothed != self._ack_rtt:
            self._ack_rtt = self._loss._rtt_smoothed
            least, most = defaults.ACK_S
            self._ack_delay = min(max(self._ack_rtt * defaults.ACK_SHARE, least), most)

    def _probe_size(self, path: QuicNetworkPath, now: float) -> list[tuple[bytes, Via]]:
        """Return a padded PING of the packet size that is to be probed (RFC 8899, section 4.1)."""
        builder = QuicPacketBuilder(
            host_cid=self.host_cid,
            is_client=self._is_client,
            max_datagram_size=self._size.probe,
            packet_number=self._packet_number,
            peer_cid=self._peer_cid.cid,
            spin_bit=self._spin_bit,
            version=self._version or 0,
        )
        builder.start_packet(QuicPacketType.ONE_RTT, self._cryptos[Epoch.ONE_RTT])
        builder.start_frame(
            QuicFrameType.PING, handler=self._size.on_delivery, handler_args=(self._size.probe,)
        )
        builder._datagram_needs_padding = True
        self._size.sent()
        return self._flush_builder(
            builder=builder, network_path=path, peer_cid=self._peer_cid.cid, now=now
        )


def _fault(code: QuicErrorCode, frame_type: int) -> QuicConnectionError:
    return QuicConnectionError(error_code=code, frame_type=frame_type, reason_phrase="")


def _nothing(*_: object) -> None:
    pass
