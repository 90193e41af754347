"""Unsigned varints and protobuf, as much of them as libp2p's messages need.

A reader takes bounded bytes, gives plain values and raises `Fault`: nothing of a message is
believed before its type was asked for.
"""

from typing import Final

from ..frame import Fault
from . import defaults

VARINT: Final = 0
BYTES: Final = 2
_FIXED: Final = {1: 8, 5: 4}
_VARINT_BYTES: Final = 10
_MASK: Final = (1 << 64) - 1


def uvarint(number: int) -> bytes:
    """An unsigned LEB128 number (multiformats, unsigned-varint)."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_uvarint(data: bytes | bytearray, at: int = 0) -> tuple[int, int] | None:
    """The number that starts at `at` and where it ends; None where it is cut off.

    Raises Fault (`bad-varint`) over ten bytes.
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
    """A message behind its length."""
    return uvarint(len(body)) + body


def number_field(field: int, value: int) -> bytes:
    """A protobuf field of varint type."""
    return uvarint(field << 3 | VARINT) + uvarint(value)


def bytes_field(field: int, value: bytes) -> bytes:
    """A protobuf field of bytes, text or a message."""
    return uvarint(field << 3 | BYTES) + prefixed(value)


class Message:
    """The fields of one protobuf message, PROTOBUF_FIELDS at most; unknown ones are kept unread.

    Raises Fault (`bad-message`) on anything that is not one.
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
        """The last value of a number's field; None where it is absent."""
        found = self._values.get(field)
        if not found:
            return None
        value = found[-1]
        if not isinstance(value, int):
            raise Fault("bad-message")
        return value

    def octets(self, field: int, limit: int) -> bytes | None:
        """The last value of a field of bytes, `limit` at most; None where it is absent."""
        found = self._values.get(field)
        if not found:
            return None
        value = found[-1]
        if not isinstance(value, bytes) or len(value) > limit:
            raise Fault("bad-message")
        return value

    def message(self, field: int) -> "Message | None":
        """A message within this one; None where it is absent."""
        body = self.octets(field, defaults.NOISE_MESSAGE_BYTES)
        return None if body is None else Message(body)


def _read(data: bytes, at: int) -> tuple[int, int]:
    found = read_uvarint(data, at)
    if found is None:
        raise Fault("bad-message")
    return found
