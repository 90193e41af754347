"""Unsigned varints, and messages with a length prefix (multiformats, unsigned-varint).

The bytes may still be arriving. The reader therefore distinguishes an incomplete number from an
invalid one.
"""

from typing import Final

from ..lane.frame import Fault

_VARINT_BYTES: Final = 10  # largest size of a number of 64 bits
_MASK: Final = (1 << 64) - 1


def uvarint(number: int) -> bytes:
    """Encode a number as an unsigned varint (LEB128)."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_uvarint(data: bytes | bytearray, at: int = 0) -> tuple[int, int] | None:
    """Decode the number at offset `at`. Return (number, offset of its end), or None if it is
    incomplete.

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
    """Return a message with its length as a prefix."""
    return uvarint(len(body)) + body
