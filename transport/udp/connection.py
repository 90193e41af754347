"""A QUIC connection as two nodes use it: one stream, bounded memory, either end may move.

aioquic's `QuicConnection` is the state machine. Its own flow control doubles the window for as long
as bytes arrive, whether or not anybody reads them; its client follows a server to any address that
the server names, and to no other. Here the window opens as the reader reads, an address is
followed only where authentic packets came from (both ends may sit behind a NAT that forgets), and
what a peer can make us keep beside the stream is counted.

aioquic asks for its parts by private names. The version is pinned, and `test_connection.py` fails
where one of them is not called any more.
"""

import logging
import ssl
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
from aioquic.quic.recovery import QuicPacketSpace
from aioquic.quic.stream import QuicStream
from aioquic.tls import CipherSuite, Epoch, Group, SignatureAlgorithm

from ..certificate import UNREADABLE as BAD_CERTIFICATE
from ..datagrams import Datagrams, Place
from . import defaults
from .certificate import Certificate
from .congestion import DelayControl
from .defaults import UdpLimits
from .mtu import PacketSize
from .pacing import Pacer
from .ranges import Ranges
from .window import Extra, Window

# What aioquic or its parsers raise on bytes they do not like, beside their own coded errors.
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
_STREAM_FRAMES: Final = range(QuicFrameType.STREAM_BASE, QuicFrameType.STREAM_BASE + 8)


class Via(NamedTuple):
    """A way to a peer: where it is seen, and on which of our sockets. To aioquic, an address."""

    place: Place
    socket: Datagrams


class _Silent(logging.LoggerAdapter[logging.Logger]):
    """aioquic warns of every mistake of a peer's; it reaches us as a code."""


_SILENT: Final = logging.Logger("shoal.udp", logging.CRITICAL + 1)


def configuration(certificate: Certificate | None, limits: UdpLimits) -> QuicConfiguration:
    """What a connection offers: a server's with its certificate, a client's without."""
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
        verify_mode=ssl.CERT_NONE,  # the peer proves itself inside of the stream
    )


class Connection(QuicConnection):
    """One connection: datagrams and `now` in, datagrams and events out."""

    def __init__(
        self,
        configuration: QuicConfiguration,
        limits: UdpLimits,
        extra: Extra,
        **accepted: bytes | None,
    ) -> None:
        """`accepted`: what a server takes from a client's first packet (see aioquic)."""
        super().__init__(configuration=configuration, **accepted)  # type: ignore[arg-type]
        self.limits = limits
        self.window = Window(limits, extra)
        self.fault: BaseException | None = None
        """What was raised where aioquic, or we, did not understand the peer."""
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

    # What the shell asks.

    @property
    def ended(self) -> bool:
        """Closing, or closed."""
        return self._close_pending or self._state not in (
            QuicConnectionState.FIRSTFLIGHT,
            QuicConnectionState.CONNECTED,
        )

    @property
    def began(self) -> bool:
        """A packet of the peer's was authentic."""
        return self._state is not QuicConnectionState.FIRSTFLIGHT

    @property
    def cids(self) -> list[bytes]:
        """Connection ids by which the peer may name this connection."""
        return [each.cid for each in self._host_cids]

    @property
    def via(self) -> Via:
        """The way on which packets leave now."""
        found: Via = self._network_paths[0].addr
        return found

    @property
    def rtt(self) -> float:
        """The smoothed round trip in seconds, 0 until one is known."""
        return float(self._loss._rtt_smoothed)

    @property
    def unsent(self) -> int:
        """Bytes of the stream that have not left yet."""
        stream = self._streams.get(defaults.STREAM_ID)
        return stream.sender._buffer_stop - stream.sender.highest_offset if stream else 0

    def begin(self, place: Place, socket: Datagrams, now: float) -> None:
        """Dial a place."""
        self.connect(Via(place, socket), now)

    def expire(self, now: float) -> None:
        """The time that `get_timer` said has come."""
        try:
            self.handle_timer(now)
        except UNREADABLE as error:
            self.fault = error
            self.close(QuicErrorCode.INTERNAL_ERROR, QuicFrameType.PADDING)

    def receive(self, data: bytes, place: Place, socket: Datagrams, now: float) -> None:
        """Take a datagram. Ends the connection by a code where the peer is at fault."""
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
        """Datagrams to send now, and on which way."""
        self._now = now
        before = self.control.bytes_in_flight
        self._pacer.begin(now)
        datagrams = self.datagrams_to_send(now)
        in_flight = self.control.bytes_in_flight
        self._pacer.settle(in_flight - before)
        if self._handshake_confirmed and not self.ended:
            self._follow_path(now, datagrams)
            if in_flight + self._max_datagram_size < self.control.congestion_window:
                stream = self._streams.get(defaults.STREAM_ID)
                if stream is None or stream.sender.next_offset == stream.sender._buffer_stop:
                    self.control.nothing_more()
        return datagrams

    # What a peer may make us keep.

    def _check(self) -> None:
        """Bounds that aioquic does not have. Raises QuicConnectionError."""
        for stream in self._crypto_streams.values():
            if stream.receiver.highest_offset > self.limits.crypto_bytes:
                raise _fault(QuicErrorCode.CRYPTO_BUFFER_EXCEEDED, QuicFrameType.CRYPTO)

    def _get_or_create_stream(self, frame_type: int, stream_id: int) -> QuicStream:
        """One stream in a connection's life. Raises QuicConnectionError for another."""
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
        """They never grow: the stream's own window bounds what arrives."""

    def _write_stream_limits(
        self, builder: QuicPacketBuilder, space: QuicPacketSpace, stream: QuicStream
    ) -> None:
        """The window goes on from what has been read, a quarter of it at a time."""
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
        """Bytes of the stream that wait for those before them, with the room of these."""
        stream = self._streams.get(defaults.STREAM_ID)
        return len(stream.receiver._buffer) if stream is not None else 0

    def drop(self) -> None:
        """Nobody reads the stream any more."""
        stream = self._streams.get(defaults.STREAM_ID)
        if stream is not None:
            stream.receiver._buffer = bytearray()

    @property
    def owes_window(self) -> bool:
        """The reader has taken so much that the peer should hear of it."""
        stream = self._streams.get(defaults.STREAM_ID)
        return stream is not None and self.window.owes(stream.max_stream_data_local)

    # TLS.

    def _initialize(self, peer_cid: bytes) -> None:
        """One group and one signature: a key for each group offered would cost a millisecond."""
        super()._initialize(peer_cid)
        self._spaces[Epoch.ONE_RTT].ack_queue = Ranges()
        self.tls._supported_groups = [Group.X25519]
        self.tls._signature_algorithms = [SignatureAlgorithm.ED25519]

    def _confirm_handshake(self) -> None:
        """Nothing more is said in TLS: 48 KiB of room for it are given back."""
        super()._confirm_handshake()
        for epoch in self._crypto_buffers:
            self._crypto_buffers[epoch] = Buffer(capacity=64)

    # The path.

    def _parse_transport_parameters(self, data: bytes, from_session_ticket: bool = False) -> None:
        super()._parse_transport_parameters(data, from_session_ticket)
        self._remote_preferred_address = None  # nobody sends us to third parties

    def _receive_from_elsewhere(self, data: bytes, via: Via, now: float) -> None:
        """The server has moved, if this is its newest packet: then its new address is validated
        as a client's is (RFC 9000 section 9.3)."""
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
        """Sizes, keys and the pace of acknowledgements, as the path and the traffic are."""
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
        """A padded PING of the size to be tried (RFC 8899 section 4.1)."""
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
