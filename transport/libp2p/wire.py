"""Unsigned varints and protobuf, as far as libp2p's messages need them.

A reader takes a limited number of bytes and returns plain values. It raises `Fault` if a field does
not have the requested type.
"""

from typing import Final

from ..lane.frame import Fault
from . import defaults

VARINT: Final = 0
BYTES: Final = 2
_FIXED: Final = {1: 8, 5: 4}
_VARINT_BYTES: Final = 10
_MASK: Final = (1 << 64) - 1


def uvarint(number: int) -> bytes:
    """Encode an unsigned LEB128 number (multiformats, unsigned-varint)."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_uvarint(data: bytes | bytearray, at: int = 0) -> tuple[int, int] | None:
    """Decode the number at `at`; return it and its end, or None if it is cut off.

    Raises Fault (`bad-varint`) if it is longer than ten bytes.
    """
    number = 0
    for count in range(_VARINT_BYTES):
        if at + count >= len(data):
            return None
        octet = data[at + count]
        number |= (octet & 0x7F) << 7 * count
        if octet < 0x80:
            return number & _MASK, at + count + 1
    raise Fault("bad-varint")


def prefixed(body: bytes) -> bytes:
    """Prefix a message with its length."""
    return uvarint(len(body)) + body


def number_field(field: int, value: int) -> bytes:
    """Encode a protobuf field of varint type."""
    return uvarint(field << 3 | VARINT) + uvarint(value)


def bytes_field(field: int, value: bytes) -> bytes:
    """Encode a protobuf field of bytes, text or a message."""
    return uvarint(field << 3 | BYTES) + prefixed(value)


class Message:
    """Fields of a protobuf message, at most PROTOBUF_FIELDS. Unknown fields are ignored.

    Raises Fault (`bad-message`) if the bytes are not a message.
    """

    def __init__(self, data: bytes) -> None:
        self._values: dict[int, list[int | bytes]] = {}
        at, count = 0, 0
        while at < len(data):
            count += 1
            if count > defaults.PROTOBUF_FIELDS:
                raise Fault("bad-message")
            at = self._read_field(data, at)

    def _read_field(self, data: bytes, at: int) -> int:
        key, at = _read(data, at)
        kind, field = key & 7, key >> 3
        value: int | bytes
        if kind == VARINT:
            value, at = _read(data, at)
        elif kind == BYTES:
            size, at = _read(data, at)
            value, at = data[at : at + size], at + size
        elif kind in _FIXED:
            value, at = data[at : at + _FIXED[kind]], at + _FIXED[kind]
        else:
            raise Fault("bad-message")
        if at > len(data) or not field:
            raise Fault("bad-message")
        self._values.setdefault(field, []).append(value)
        return at

    def number(self, field: int) -> int | None:
        """Return the last value of a numeric field; None if absent."""
        found = self._values.get(field)
        if not found:
            return None
        value = found[-1]
        if not isinstance(value, int):
            raise Fault("bad-message")
        return value

    def octets(self, field: int, limit: int) -> bytes | None:
        """Return the last value of a bytes field, at most `limit` bytes; None if absent."""
        found = self._values.get(field)
        if not found:
            return None
        value = found[-1]
        if not isinstance(value, bytes) or len(value) > limit:
            raise Fault("bad-message")
        return value

    def message(self, field: int) -> "Message | None":
        """Return an embedded message; None if absent."""
        body = self.octets(field, defaults.NOISE_MESSAGE_BYTES)
        return None if body is None else Message(body)


def _read(data: bytes, at: int) -> tuple[int, int]:
    found = read_uvarint(data, at)
    if found is None:
        raise Fault("bad-message")
    return found
