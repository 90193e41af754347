"""Encoding of STUN Binding messages (RFC 8489), with attributes of RFC 5780 and ICE (RFC 8445).

`decode` accepts any bytes from the network and returns a `StunMessage` or None. A decoded message
is not yet trusted. The caller must match a reply by its transaction id and its source. If both ends
share a key, the caller must also check it with `authentic`.
"""

import hmac
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final

from ...host.datagrams import Place
from . import defaults

COOKIE: Final = 0x2112A442
TRANSACTION_BYTES: Final = 12
_FINGERPRINT_XOR: Final = 0x5354554E

UNKNOWN_ATTRIBUTE: Final = 420

_HEADER: Final = struct.Struct("!HHI12s")
_ATTRIBUTE: Final = struct.Struct("!HH")
_BINDING: Final = 0x0001
_CLASS_BITS: Final = 0x0110
_OPTIONAL: Final = 0x8000
"""First attribute type that a receiver may ignore if it does not know it (RFC 8489, section 14)."""

# Attribute types (RFC 8489, section 18.3; RFC 5780, section 7; RFC 8445, section 16.1).
_MAPPED_ADDRESS: Final = 0x0001
_USERNAME: Final = 0x0006
_INTEGRITY: Final = 0x0008
_ERROR_CODE: Final = 0x0009
_UNKNOWN_ATTRIBUTES: Final = 0x000A
_NONCE: Final = 0x0015
_INTEGRITY_SHA256: Final = 0x001C
_XOR_MAPPED_ADDRESS: Final = 0x0020
_PRIORITY: Final = 0x0024
_USE_CANDIDATE: Final = 0x0025
_PADDING: Final = 0x0026
_FINGERPRINT: Final = 0x8028
_ICE_CONTROLLED: Final = 0x8029
_ICE_CONTROLLING: Final = 0x802A
_RESPONSE_ORIGIN: Final = 0x802B
_OTHER_ADDRESS: Final = 0x802C

_UNDERSTOOD: Final = frozenset(
    {
        _MAPPED_ADDRESS, _USERNAME, _INTEGRITY, _ERROR_CODE, _UNKNOWN_ATTRIBUTES, _NONCE,
        _INTEGRITY_SHA256, _XOR_MAPPED_ADDRESS, _PRIORITY, _USE_CANDIDATE, _PADDING,
    }
)  # fmt: skip
"""Mandatory attribute types (below `_OPTIONAL`) that this receiver accepts. CHANGE-REQUEST is not
one of them, because an unauthenticated datagram must not make an observer reply from another
address."""


_SEALS: Final = {True: (_INTEGRITY_SHA256, "sha256", 32), False: (_INTEGRITY, "sha1", 20)}
"""The integrity attributes: (type, hash, size in bytes). The key says whether the hash is SHA-256
(RFC 8489, sections 14.5 and 14.6)."""


class MessageClass(IntEnum):
    """Class of a message: two bits of its type field (RFC 8489, section 5)."""

    REQUEST = 0x0000
    INDICATION = 0x0010
    SUCCESS = 0x0100
    ERROR = 0x0110


@dataclass(frozen=True, slots=True)
class Integrity:
    """Integrity attribute of a received message."""

    offset: int  # position in the message, in bytes
    sha256: bool  # whether it is MESSAGE-INTEGRITY-SHA256


@dataclass(frozen=True, slots=True)
class StunMessage:
    """One Binding message. Absent attributes are None.

    `unknown` are the types of mandatory attributes that this receiver does not know. A request with
    such attributes gets the reply of `refuse_unknown`; other messages with them are dropped.
    Attributes that follow the integrity attribute are ignored, because it does not protect them.
    """

    kind: MessageClass
    transaction: bytes  # id of 12 bytes
    mapped: Place | None = None  # address from which the responder received the request
    username: bytes | None = None
    nonce: bytes | None = None
    priority: int | None = None  # 32 bits
    use_candidate: bool = False
    controlled: int | None = None  # tie-breaker of ICE, 64 bits
    controlling: int | None = None  # tie-breaker of ICE, 64 bits
    origin: Place | None = None  # RESPONSE-ORIGIN (RFC 5780, section 7.3)
    other: Place | None = None  # OTHER-ADDRESS (RFC 5780, section 7.4)
    error: tuple[int, str] | None = None  # (code from 300 to 699, reason)
    unknown: tuple[int, ...] = ()
    padding: int | None = None  # size of a PADDING attribute in bytes
    integrity: Integrity | None = None
    fingerprint: bool = False  # whether the message had a valid FINGERPRINT


def is_stun(data: bytes) -> bool:
    """Return whether a datagram's first bytes fit STUN (RFC 8489, section 6.3; RFC 9443)."""
    return len(data) >= _HEADER.size and data[0] < 4 and data[4:8] == COOKIE.to_bytes(4)


def encode(message: StunMessage, key: bytes | None = None, *, sha256: bool = True) -> bytes:
    """Encode a message, and append a FINGERPRINT.

    If a `key` is given, the message also gets an integrity attribute. `key` is a short-term key,
    that is, the password (RFC 8489, section 9.1.1). The attribute is MESSAGE-INTEGRITY-SHA256, or
    if `sha256` is False the older MESSAGE-INTEGRITY, which is the only one that browsers know. The
    fields `integrity` and `fingerprint` of `message` are ignored.
    """
    body = b"".join(_attribute(kind, value) for kind, value in _values(message))
    if key is not None:
        kind, name, size = _SEALS[sha256]
        begin = _head(message, len(body) + 4 + size) + body
        body += _attribute(kind, hmac.digest(key, begin, name))
    begin = _head(message, len(body) + 8) + body
    return begin + _attribute(_FINGERPRINT, _fingerprint(begin))


def request(transaction: bytes) -> bytes:
    """Encode a Binding request, padded so that it is larger than any reply to it."""
    return encode(StunMessage(MessageClass.REQUEST, transaction, padding=defaults.PADDING_BYTES))


def decode(data: bytes) -> StunMessage | None:
    """Decode a Binding message.

    Returns None if `data` is something else, is malformed, or has a wrong FINGERPRINT.
    """
    if not is_stun(data) or len(data) > defaults.STUN_BYTES:
        return None
    kind, length, _, transaction = _HEADER.unpack_from(data)
    if length != len(data) - _HEADER.size or kind & ~_CLASS_BITS != _BINDING:
        return None
    try:
        found = _AttributeParser(data, transaction)
        found.read()
        return StunMessage(
            kind=MessageClass(kind & _CLASS_BITS), transaction=transaction, **found.fields
        )
    except ValueError:
        return None


def authentic(data: bytes, message: StunMessage, key: bytes) -> bool:
    """Return whether the sender of `message` knows `key`. `message` was decoded from `data`.

    Accepts MESSAGE-INTEGRITY-SHA256 and the older MESSAGE-INTEGRITY, which uses SHA-1. Returns
    False if the message has neither, or if its value is wrong.
    """
    where = message.integrity
    if where is None:
        return False
    _, name, size = _SEALS[where.sha256]
    value = data[where.offset + 4 : where.offset + 4 + size]
    length = where.offset + 4 + size - _HEADER.size  # as if the message ended after this attribute
    begin = data[:2] + length.to_bytes(2) + data[4 : where.offset]
    return hmac.compare_digest(hmac.digest(key, begin, name), value)


def refuse_unknown(request: StunMessage) -> StunMessage:
    """Return the reply to a request with unknown mandatory attributes (RFC 8489, section 6.3.1)."""
    return StunMessage(
        MessageClass.ERROR,
        request.transaction,
        error=(UNKNOWN_ATTRIBUTE, "Unknown Attribute"),
        unknown=request.unknown,
    )


# Writing.


def _head(message: StunMessage, length: int) -> bytes:
    """Encode the header. `length` is the size of all attributes, in bytes."""
    return _HEADER.pack(_BINDING | message.kind, length, COOKIE, message.transaction)


def _attribute(kind: int, value: bytes) -> bytes:
    """Encode one attribute, padded to a multiple of 4 bytes."""
    return _ATTRIBUTE.pack(kind, len(value)) + value + bytes(-len(value) % 4)


def _fingerprint(begin: bytes) -> bytes:
    """Return the value of the FINGERPRINT that follows `begin` (RFC 8489, section 14.7)."""
    return (zlib.crc32(begin) ^ _FINGERPRINT_XOR).to_bytes(4)


def _values(message: StunMessage) -> Iterator[tuple[int, bytes]]:
    """Yield (type, value) of each attribute except integrity and FINGERPRINT."""
    if message.error is not None:
        code, reason = message.error
        yield _ERROR_CODE, bytes((0, 0, *divmod(code, 100))) + reason.encode()
        if message.unknown:
            yield _UNKNOWN_ATTRIBUTES, struct.pack(f"!{len(message.unknown)}H", *message.unknown)
    if message.username is not None:
        yield _USERNAME, message.username
    if message.nonce is not None:
        yield _NONCE, message.nonce
    if message.mapped is not None:
        yield _XOR_MAPPED_ADDRESS, _xored(message.mapped, message.transaction)
    if message.priority is not None:
        yield _PRIORITY, message.priority.to_bytes(4)
    if message.use_candidate:
        yield _USE_CANDIDATE, b""
    if message.controlled is not None:
        yield _ICE_CONTROLLED, message.controlled.to_bytes(8)
    if message.controlling is not None:
        yield _ICE_CONTROLLING, message.controlling.to_bytes(8)
    if message.origin is not None:
        yield _RESPONSE_ORIGIN, _plain(message.origin)
    if message.other is not None:
        yield _OTHER_ADDRESS, _plain(message.other)
    if message.padding is not None:
        yield _PADDING, bytes(message.padding)


def _plain(place: Place) -> bytes:
    """Encode an address: a zero byte, the family (1 or 2), the port, and the IP address."""
    ip = ip_address(place[0])
    return bytes((0, 1 if ip.version == 4 else 2)) + place[1].to_bytes(2) + ip.packed


def _xored(place: Place, transaction: bytes) -> bytes:
    """Encode an address masked by XOR, so that NATs do not rewrite it (RFC 8489, section 14.2)."""
    plain = _plain(place)
    mask = COOKIE.to_bytes(4) + transaction
    port = int.from_bytes(plain[2:4]) ^ COOKIE >> 16
    ip = bytes(a ^ b for a, b in zip(plain[4:], mask, strict=False))
    return plain[:2] + port.to_bytes(2) + ip


# Reading.


class _AttributeParser:
    """Parser of one message's attributes, which stores them in `fields` by their field names."""

    def __init__(self, data: bytes, transaction: bytes) -> None:
        self.fields: dict[str, Any] = {}
        self._data = data
        self._transaction = transaction
        self._unknown: list[int] = []
        self._sealed = False  # an integrity attribute was read, which does not cover what follows

    def read(self) -> None:
        """Parse all attributes. Raises ValueError if one is malformed or there are too many."""
        position, end = _HEADER.size, len(self._data)
        for _ in range(defaults.STUN_ATTRIBUTES):
            if position == end:
                break
            if end - position < _ATTRIBUTE.size:
                raise ValueError("half an attribute")
            kind, size = _ATTRIBUTE.unpack_from(self._data, position)
            value = self._data[position + 4 : position + 4 + size]
            after = position + 4 + size + -size % 4
            if after > end:
                raise ValueError("an attribute beyond the end")
            self._take(kind, value, position, last=after == end)
            position = after
        else:
            if position != end:
                raise ValueError("too many attributes")
        if self._unknown:
            self.fields.setdefault("unknown", tuple(self._unknown))

    def _take(self, kind: int, value: bytes, position: int, *, last: bool) -> None:
        """Store one attribute, whose header begins at `position`.

        `last` says whether it is the last attribute of the message.
        """
        if kind == _FINGERPRINT:
            if not last or value != _fingerprint(self._data[:position]):
                raise ValueError("the fingerprint is wrong")
            self.fields["fingerprint"] = True
        elif kind in (_INTEGRITY, _INTEGRITY_SHA256):
            self._integrity(kind, value, position)
        elif self._sealed:
            return
        elif kind in _READERS:
            name, read = _READERS[kind]
            if name not in self.fields:  # of several, the first counts (RFC 8489, 14)
                self.fields[name] = read(value, self._transaction)
        elif kind < _OPTIONAL and kind not in _UNDERSTOOD:
            self._unknown.append(kind)

    def _integrity(self, kind: int, value: bytes, position: int) -> None:
        """Store the position of an integrity attribute.

        If a message has both kinds, the SHA-256 one counts. It comes last, and protects everything
        before it.
        """
        sha256 = kind == _INTEGRITY_SHA256
        if len(value) != _SEALS[sha256][2]:
            raise ValueError("an integrity attribute of a wrong size")
        known = self.fields.get("integrity")
        if known is None or (sha256 and not known.sha256):
            self.fields["integrity"] = Integrity(position, sha256)
        self._sealed = True


def _read_plain(value: bytes, _: bytes) -> Place:
    """Decode an address. Raises ValueError if its family or its size is wrong."""
    family = value[1] if len(value) >= 4 else 0
    if (family, len(value)) not in ((1, 8), (2, 20)):
        raise ValueError("an address of no known family")
    ip = IPv4Address(value[4:]) if family == 1 else IPv6Address(value[4:])
    return str(ip), int.from_bytes(value[2:4])


def _read_xored(value: bytes, transaction: bytes) -> Place:
    ip, port = _read_plain(value, transaction)
    return _read_plain(_xored((ip, port), transaction), transaction)  # it is its own inverse


def _read_number(size: int, value: bytes) -> int:
    if len(value) != size:
        raise ValueError("a number of a wrong size")
    return int.from_bytes(value)


def _read_text(value: bytes) -> bytes:
    if len(value) > defaults.USERNAME_BYTES:
        raise ValueError("too long")
    return value


def _read_error(value: bytes, _: bytes) -> tuple[int, str]:
    if not 4 <= len(value) <= 4 + defaults.REASON_BYTES:
        raise ValueError("an error code of a wrong size")
    code = (value[2] & 7) * 100 + value[3]
    if not 300 <= code <= 699 or value[3] > 99:
        raise ValueError("an error code out of range")
    return code, value[4:].decode(errors="replace")


def _read_types(value: bytes, _: bytes) -> tuple[int, ...]:
    if len(value) % 2:
        raise ValueError("half a type")
    return struct.unpack(f"!{len(value) // 2}H", value)


def _read_flag(value: bytes, _: bytes) -> bool:
    if value:
        raise ValueError("a flag with a value")
    return True


_READERS: Final = {
    _XOR_MAPPED_ADDRESS: ("mapped", _read_xored),
    _USERNAME: ("username", lambda value, _: _read_text(value)),
    _NONCE: ("nonce", lambda value, _: _read_text(value)),
    _PRIORITY: ("priority", lambda value, _: _read_number(4, value)),
    _USE_CANDIDATE: ("use_candidate", _read_flag),
    _ICE_CONTROLLED: ("controlled", lambda value, _: _read_number(8, value)),
    _ICE_CONTROLLING: ("controlling", lambda value, _: _read_number(8, value)),
    _RESPONSE_ORIGIN: ("origin", _read_plain),
    _OTHER_ADDRESS: ("other", _read_plain),
    _ERROR_CODE: ("error", _read_error),
    _UNKNOWN_ATTRIBUTES: ("unknown", _read_types),
    _PADDING: ("padding", lambda value, _: len(value)),
}
