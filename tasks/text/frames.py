"""Frames between the daemon and the text child: 4 bytes of length, then a msgpack map."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgpack

from ...transport.decoding import decode
from ...transport.errors import Undecodable
from ..defaults import TEXT_ITEMS, TEXT_REQUEST_BYTES
from ..errors import TextError


def pack_frame(message: Mapping[str, Any], *, limit: int = TEXT_REQUEST_BYTES) -> bytes:
    """Encode a frame. Raises TextError("text-too-large") beyond `limit` bytes."""
    try:
        body: bytes = msgpack.packb(message)
    except UnicodeEncodeError:
        raise TextError("bad-text", "the text is not valid Unicode") from None
    if len(body) > limit:
        raise TextError("text-too-large", f"{len(body)} bytes where {limit} are allowed")
    return len(body).to_bytes(4) + body


def unpack_body(body: bytes | memoryview, *, limit: int = TEXT_REQUEST_BYTES) -> dict[str, Any]:
    """Decode the map in a frame. Raises TextError("text-protocol") for anything else."""
    try:
        message = decode(body, limit=limit, items=TEXT_ITEMS)
    except Undecodable as error:
        raise TextError("text-protocol", f"a frame is not readable: {error}") from None
    if not isinstance(message, dict):
        raise TextError("text-protocol", "a frame is not a map")
    return message


class FrameReader:
    """Decoder of frames. A length over `limit` bytes raises TextError before it is read."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        self._buffer += data
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[:4])
            if size > self._limit:
                raise TextError("text-protocol", f"a frame of {size} bytes")
            if len(self._buffer) < 4 + size:
                return
            body = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            yield unpack_body(body, limit=self._limit)
