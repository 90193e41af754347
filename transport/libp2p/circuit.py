"""Messages of circuit relay v2 (libp2p specification, `relay/circuit-v2.md`).

A peer speaks HOP to a relay, and a relay speaks STOP to a peer; both are protobuf with a length
prefix. In a voucher the relay signs that a peer has a reservation
(`RFC/0002-signed-envelopes.md`).
"""

from dataclasses import dataclass
from typing import Final

from ..identity import Identity
from ..lane.frame import Fault
from .multiaddr import decode_peer, encode_peer
from .wire import Message, bytes_field, number_field, prefixed

HOP: Final = "/libp2p/circuit/relay/0.2.0/hop"
STOP: Final = "/libp2p/circuit/relay/0.2.0/stop"
RESERVE, CONNECT, HOP_STATUS = range(3)
STOP_CONNECT, STOP_STATUS = range(2)
OK: Final = 100
RESERVATION_REFUSED: Final = 200
RESOURCE_LIMIT_EXCEEDED: Final = 201
PERMISSION_DENIED: Final = 202
CONNECTION_FAILED: Final = 203
NO_RESERVATION: Final = 204
MALFORMED_MESSAGE: Final = 400
UNEXPECTED_MESSAGE: Final = 401
STATUS_CODES: Final = {
    RESERVATION_REFUSED: "reservation-refused",
    RESOURCE_LIMIT_EXCEEDED: "relay-full",
    PERMISSION_DENIED: "relay-denied",
    CONNECTION_FAILED: "peer-unreachable",
    NO_RESERVATION: "no-reservation",
}
"""Our error codes for the statuses with which a relay refuses."""
_VOUCHER_DOMAIN: Final = b"libp2p-relay-rsvp"
_VOUCHER_TYPE: Final = b"\x03\x02"
_KEY_PREFIX: Final = b"\x08\x01\x12\x20"
_VARINT_LIMIT: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Allowance:
    """Limits of a circuit: seconds, and bytes of both directions together; 0 for no limit."""

    seconds: int
    size: int


def hop_request(kind: int, peer: str | None = None) -> bytes:
    """Encode RESERVE, or CONNECT to a peer."""
    return prefixed(number_field(1, kind) + (b"" if peer is None else _peer(2, peer)))


def stop_connect(peer: str, allowance: Allowance) -> bytes:
    """Encode the request to the target of a circuit, with its source and its limits."""
    return prefixed(number_field(1, STOP_CONNECT) + _peer(2, peer) + _allowance(3, allowance))


def hop_status(
    status: int, *, allowance: Allowance | None = None, reservation: bytes | None = None
) -> bytes:
    """Encode a relay's reply."""
    body = number_field(1, HOP_STATUS)
    if reservation is not None:
        body += bytes_field(3, reservation)
    if allowance is not None:
        body += _allowance(4, allowance)
    return prefixed(body + number_field(5, status))


def stop_status(status: int) -> bytes:
    """Encode the target's reply."""
    return prefixed(number_field(1, STOP_STATUS) + number_field(4, status))


def reservation(expires: int, addresses: list[bytes], voucher: bytes) -> bytes:
    """Encode a reservation: its end in seconds since 1970, the relay's addresses, the voucher."""
    body = number_field(1, expires)
    body += b"".join(bytes_field(2, address) for address in addresses)
    return body + bytes_field(3, voucher)


def voucher(identity: Identity, peer: str, expires: int) -> bytes:
    """Return a signed envelope with Voucher{relay, peer, expiration}."""
    payload = bytes_field(1, encode_peer(identity.peer)) + bytes_field(2, encode_peer(peer))
    payload += number_field(3, expires)
    signed = prefixed(_VOUCHER_DOMAIN) + prefixed(_VOUCHER_TYPE) + prefixed(payload)
    body = bytes_field(1, _KEY_PREFIX + identity.public_key) + bytes_field(2, _VOUCHER_TYPE)
    return body + bytes_field(3, payload) + bytes_field(5, identity.sign_for_libp2p(signed))


@dataclass(frozen=True, slots=True)
class HopMessage:
    """Decoded HOP message; peer and status are None where absent."""

    kind: int
    peer: str | None
    status: int | None
    expires: int | None

    @classmethod
    def decode(cls, data: bytes) -> "HopMessage":
        """Decode a message. Raises Fault (`bad-message`)."""
        message = Message(data)
        granted = message.message(3)
        return cls(
            _kind(message, HOP_STATUS),
            _peer_in(message),
            message.number(5),
            None if granted is None else min(granted.number(1) or 0, _VARINT_LIMIT),
        )


@dataclass(frozen=True, slots=True)
class StopMessage:
    """Decoded STOP message."""

    kind: int
    peer: str | None
    status: int | None

    @classmethod
    def decode(cls, data: bytes) -> "StopMessage":
        """Decode a message. Raises Fault (`bad-message`)."""
        message = Message(data)
        return cls(_kind(message, STOP_STATUS), _peer_in(message), message.number(4))


def _kind(message: Message, highest: int) -> int:
    kind = message.number(1)
    if kind is None or kind > highest:
        raise Fault("bad-message")
    return kind


def _peer_in(message: Message) -> str | None:
    peer = message.message(2)
    return None if peer is None else decode_peer(peer.octets(1, 1 << 16))


def _peer(field: int, peer: str) -> bytes:
    return bytes_field(field, bytes_field(1, encode_peer(peer)))


def _allowance(field: int, allowance: Allowance) -> bytes:
    body = number_field(1, allowance.seconds) + number_field(2, allowance.size)
    return bytes_field(field, body)
