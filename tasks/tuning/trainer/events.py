"""Event files that TensorBoard reads: TFRecord frames with small protobuf messages. No I/O.

Formats: tensorflow/core/lib/io/record_writer.h and tensorflow/core/util/event.proto. A frame is the
length (uint64), its CRC, the message, and its CRC; the CRCs are masked CRC32C.
"""

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

_POLYNOMIAL: Final = 0x82F63B78  # CRC32C (Castagnoli), reflected
_MASK: Final = 0xA282EAD8
_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5  # wire types of protobuf
_START: Final = 1  # SessionLog.SessionStatus


@lru_cache(maxsize=1)
def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        found.append(byte)
    return tuple(found)


def crc32c(data: bytes) -> int:
    """Return the CRC32C of some bytes."""
    crc, table = 0xFFFFFFFF, _table()
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def record(message: bytes) -> bytes:
    """Return a message in its frame."""
    length = struct.pack("<Q", len(message))
    return length + _masked(length) + message + _masked(message)


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)


def beginning(wall: float, step: int) -> bytes:
    """Return the records that begin a file whose first step is `step`.

    TensorBoard then discards what earlier files of the folder have from this step on, because the
    run was repeated from a checkpoint. `wall` is in seconds since 1970.
    """
    version = record(_wall(wall) + _field(3, _BYTES, b"brain.Event:2"))
    start = _field(1, _VARINT, _START)
    return version + record(_wall(wall) + _step(step) + _field(7, _BYTES, start))


def scalars(wall: float, step: int, values: Mapping[str, float]) -> bytes:
    """Return the record with some named values of a step."""
    summary = b"".join(
        _field(1, _BYTES, _field(1, _BYTES, name.encode()) + _field(2, _FLOAT, value))
        for name, value in values.items()
    )
    return record(_wall(wall) + _step(step) + _field(5, _BYTES, summary))


def _wall(seconds: float) -> bytes:
    return _field(1, _DOUBLE, seconds)


def _step(step: int) -> bytes:
    return _field(2, _VARINT, step)


def _field(number: int, kind: int, value: bytes | float) -> bytes:
    """Encode one field of a protobuf message."""
    tag = _varint(number << 3 | kind)
    if isinstance(value, bytes):
        return tag + _varint(len(value)) + value
    if kind == _VARINT:
        return tag + _varint(int(value))
    return tag + struct.pack("<d" if kind == _DOUBLE else "<f", value)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
