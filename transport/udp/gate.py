"""Admission of new connections. The rate is limited, and once there are several half-open
connections, a new client must prove its address (RFC 9000, section 8.1)."""

from dataclasses import dataclass

from aioquic._buffer import Buffer
from aioquic.quic.packet import (
    QuicHeader,
    QuicPacketType,
    QuicProtocolVersion,
    encode_quic_retry,
    pull_quic_header,
)
from aioquic.quic.retry import QuicRetryTokenHandler
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from ..host.datagrams import Place
from ..host.seam import Host
from ..limits import Arrivals, CrowdEntry, HalfOpen, Limits
from ..rates import Rate, RateLimiter
from . import defaults
from .defaults import UdpLimits


@dataclass(frozen=True, slots=True)
class Welcome:
    """A client's first packet that was admitted and may begin a connection.

    `original` and `retried` are the connection ids that the server must repeat to the client (RFC
    9000, section 7.3); `retried` is None if there was no Retry. `entry` is the connection's entry
    in the counter of half-open connections.
    """

    original: bytes
    retried: bytes | None
    entry: CrowdEntry


class _Tokens(QuicRetryTokenHandler):
    """Retry tokens, encrypted with a key from the host's entropy."""

    def __init__(self, host: Host) -> None:
        self._aead = AESGCM(host.entropy(16))


class FirstPacketGate:
    """Examines clients' first packets and admits connections. `half_open` counts the admitted
    connections that are not authenticated yet."""

    def __init__(self, host: Host, half_open: HalfOpen, limits: UdpLimits) -> None:
        self.half_open = half_open
        self.retries = 0
        """Number of Retry packets sent, each of which asks a client to prove its address."""
        self._host = host
        self._limits = limits
        self._tokens = _Tokens(host)
        self._unproven = RateLimiter(Rate(defaults.BURST, limits.unproven_per_s), 0.0)
        looks = Rate(defaults.LOOKS_BURST, limits.looks_per_s)
        self._looks = RateLimiter(looks, 0.0), RateLimiter(looks, 0.0)  # without a token, with one
        self._arrivals = Arrivals(
            Limits(
                all_arrivals_burst=limits.beginnings_burst,
                all_arrivals_per_s=limits.beginnings_per_s,
            )
        )

    def admit(self, data: bytes, place: Place, now: float) -> Welcome | bytes | None:
        """Decide on a datagram that belongs to no connection. Return a Welcome to begin a
        connection, bytes to send as a reply (fewer than were received), or None to drop the
        datagram.

        In a flood only some datagrams are examined. First packets with a token have a limit of
        their own, so that a flood without tokens does not affect them.
        """
        if not self._looks[has_token(data)].take(now):
            return None
        header = initial_header(data)
        if header is None:
            return None
        original, retried = header.destination_cid, None
        if header.token:
            try:
                original = self._tokens.validate_token(
                    address=place,
                    destination_cid=header.destination_cid,
                    token=header.token,
                    now=now,
                )
            except ValueError:
                return None
            retried = header.destination_cid
        elif self.half_open.count >= self._limits.retry_above or not self._unproven.take(now):
            return self._retry(header, place, now)
        entry = self.half_open.enter(place[0], now)
        if entry is None:
            return None
        if not self._arrivals.allow(entry, now):
            self.half_open.leave(entry)
            return None
        return Welcome(original, retried, entry)

    def _retry(self, header: QuicHeader, place: Place, now: float) -> bytes:
        self.retries += 1
        chosen = self._host.entropy(defaults.CONNECTION_ID_BYTES)
        token = self._tokens.create_token(
            address=place,
            original_destination_connection_id=header.destination_cid,
            retry_source_connection_id=chosen,
            now=now,
        )
        return encode_quic_retry(
            version=QuicProtocolVersion.VERSION_1,
            source_cid=chosen,
            destination_cid=header.source_cid,
            original_destination_cid=header.destination_cid,
            retry_token=token,
        )


def has_token(data: bytes) -> bool:
    """Return whether a packet claims to have a token. The length of the token follows the two
    connection ids."""
    at = 6 + (data[5] if len(data) > 5 else 0)
    at += 1 + (data[at] if len(data) > at else 0)
    return len(data) > at and data[at] > 0


def initial_header(data: bytes) -> QuicHeader | None:
    """Return the header of a client's first packet, or None for any other datagram."""
    if len(data) < defaults.INITIAL_BYTES or data[0] & 0xC0 != 0xC0:
        return None
    try:
        header = pull_quic_header(Buffer(data=data), host_cid_length=defaults.CONNECTION_ID_BYTES)
    except ValueError:
        return None
    if (
        header.packet_type != QuicPacketType.INITIAL
        or header.version != QuicProtocolVersion.VERSION_1
        or len(header.destination_cid) < defaults.CONNECTION_ID_BYTES
    ):
        return None
    return header


def destination(data: bytes) -> bytes:
    """Return the destination connection id of a packet, or b"" if it has none."""
    if data[0] & 0x80:
        return data[6 : 6 + data[5]] if len(data) > 6 else b""
    return data[1 : 1 + defaults.CONNECTION_ID_BYTES]
