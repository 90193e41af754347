"""Messages of circuit relay v2 (libp2p specification, `relay/circuit-v2.md`).

A peer sends HOP messages to a relay, and a relay sends STOP messages to a peer. All are protobuf
messages with a length prefix. With a voucher, the relay signs that a peer has a reservation (libp2p
specification, `RFC/0002-signed-envelopes.md`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from google.protobuf.message import Message

from ..identity import Identity
from ..lane.frame import Fault
from .package import decode, decode_peer, encode_key, encode_peer, package
from .varint import prefixed

if TYPE_CHECKING:
    from libp2p.relay.circuit_v2.pb import circuit_pb2

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
"""This project's error code for each status with which a relay refuses a request."""
_VOUCHER_DOMAIN: Final = b"libp2p-relay-rsvp"
_VOUCHER_TYPE: Final = b"\x03\x02"
_VARINT_LIMIT: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class CircuitLimit:
    """Limits of a circuit: seconds, and bytes of both directions together. 0 means no limit."""

    seconds: int
    size: int


def hop_request(kind: int, peer: str | None = None) -> bytes:
    """Encode the request for a reservation (RESERVE), or for a circuit to `peer` (CONNECT)."""
    return _encode(package().HopMessage, type=kind, peer=None if peer is None else _peer(peer))


def stop_connect(peer: str, allowance: CircuitLimit) -> bytes:
    """Encode a relay's request to the target of a circuit. `peer` is the source of the circuit."""
    limit = _limit(allowance)
    return _encode(package().StopMessage, type=STOP_CONNECT, peer=_peer(peer), limit=limit)


def hop_status(
    status: int,
    *,
    allowance: CircuitLimit | None = None,
    reservation: "circuit_pb2.Reservation | None" = None,
) -> bytes:
    """Encode a relay's reply to a HOP request."""
    limit = None if allowance is None else _limit(allowance)
    kind = package().HopMessage
    return _encode(kind, type=HOP_STATUS, reservation=reservation, limit=limit, status=status)


def stop_status(status: int) -> bytes:
    """Encode the target's reply to a STOP request."""
    return _encode(package().StopMessage, type=STOP_STATUS, status=status)


def reservation(expires: int, addresses: list[bytes], voucher: bytes) -> "circuit_pb2.Reservation":
    """Create a reservation, as it is part of a relay's reply.

    `expires` is its end in Unix seconds, and `addresses` are binary multiaddrs of the relay.
    """
    return package().Reservation(expire=expires, addrs=addresses, voucher=voucher)


def voucher(identity: Identity, peer: str, expires: int) -> bytes:
    """Encode a signed envelope with Voucher{relay, peer, expiration}. `expires` is in Unix
    seconds."""
    message = package().Voucher(
        relay=encode_peer(identity.peer), peer=encode_peer(peer), expiration=expires
    )
    payload = message.SerializeToString()
    signed = prefixed(_VOUCHER_DOMAIN) + prefixed(_VOUCHER_TYPE) + prefixed(payload)
    envelope = package().Envelope(
        payload_type=_VOUCHER_TYPE,
        payload=payload,
        signature=identity.sign_for_libp2p(signed),
    )
    envelope.public_key.ParseFromString(encode_key(identity.public_key))
    return envelope.SerializeToString()


@dataclass(frozen=True, slots=True)
class HopMessage:
    """Decoded HOP message. Fields that are absent from it are None. `expires` is in Unix
    seconds."""

    kind: int
    peer: str | None
    status: int | None
    expires: int | None

    @classmethod
    def decode(cls, data: bytes) -> "HopMessage":
        """Decode a HOP message. Raises Fault (`bad-message`) if it is malformed."""
        message = decode(package().HopMessage, data)
        expires = None
        if message.HasField("reservation"):
            expires = min(message.reservation.expire, _VARINT_LIMIT)
        return cls(_kind(message, HOP_STATUS), _peer_in(message), _status(message), expires)


@dataclass(frozen=True, slots=True)
class StopMessage:
    """Decoded STOP message. Fields that are absent from it are None."""

    kind: int
    peer: str | None
    status: int | None

    @classmethod
    def decode(cls, data: bytes) -> "StopMessage":
        """Decode a STOP message. Raises Fault (`bad-message`) if it is malformed."""
        message = decode(package().StopMessage, data)
        return cls(_kind(message, STOP_STATUS), _peer_in(message), _status(message))


def _encode(kind: Callable[..., Message], **fields: object) -> bytes:
    """Encode a message of class `kind` with a length prefix."""
    return prefixed(kind(**fields).SerializeToString())


def _kind(message: "circuit_pb2.HopMessage | circuit_pb2.StopMessage", highest: int) -> int:
    """Return the type of a message, 0 to `highest`. Raises Fault if it is absent or unknown."""
    if not message.HasField("type") or not 0 <= message.type <= highest:
        raise Fault("bad-message")
    return message.type


def _status(message: "circuit_pb2.HopMessage | circuit_pb2.StopMessage") -> int | None:
    """Return the status in a message, or None."""
    return message.status if message.HasField("status") else None


def _peer_in(message: "circuit_pb2.HopMessage | circuit_pb2.StopMessage") -> str | None:
    """Return the peer id in a message, or None. Raises Fault if it is malformed."""
    return decode_peer(message.peer.id) if message.HasField("peer") else None


def _peer(peer: str) -> "circuit_pb2.PeerId":
    """Create the protobuf form of a peer id."""
    return package().Peer(id=encode_peer(peer))


def _limit(allowance: CircuitLimit) -> "circuit_pb2.Limit":
    """Create the protobuf form of a circuit's limits."""
    return package().Limit(duration=allowance.seconds, data=allowance.size)
