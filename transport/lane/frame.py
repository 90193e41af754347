"""Encoding of a lane's frames on the wire (docs/spec/lane.md, section 2).

A frame is a fixed prefix of 28 bytes, a small head, and a payload that is not encoded further. The
lengths are checked once the prefix is complete, so that an oversized frame is refused before it is
buffered.
"""

import struct
from collections.abc import Iterator, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

import msgpack

from ..decoding import decode
from ..defaults import CODE_BYTES, FRAME_HEAD_BYTES, FRAME_PAYLOAD_BYTES, METHOD_BYTES
from ..errors import Undecodable

Bytes = bytes | memoryview

PREFIX: Final = struct.Struct(">IBBHIQQ")
"""Prefix of a frame: body length (head and payload), kind, flags, head length, number of counted
frames received, id, offset."""
PREFIX_BYTES: Final = PREFIX.size

# Kinds of frames. Those from CALL on are counted and acknowledged, and are sent again if the
# connection breaks before that.
HELLO: Final = 0x01
GOAWAY: Final = 0x02
PING: Final = 0x03
PONG: Final = 0x04
ACK: Final = 0x05
CALL: Final = 0x10
POST: Final = 0x11
REPLY: Final = 0x12
REFUSAL: Final = 0x13
PART: Final = 0x14
CANCEL: Final = 0x15
OPEN: Final = 0x20
DATA: Final = 0x21
CREDIT: Final = 0x22
RESET: Final = 0x23
FIRST_COUNTED: Final = CALL

# Flags. The lowest two bits hold the priority.
PRIORITY_MASK: Final = 0x03
MORE: Final = 0x04  # further PARTs of this message follow
OF_REPLY: Final = 0x08  # this PART belongs to a reply, not to a call
FIN: Final = 0x10  # this is the last DATA of the sender's direction
LAZY: Final = 0x80  # never sent: the loss of this queued frame may be noticed later
WIRE_MASK: Final = 0x7F


class Priority(IntEnum):
    """Priority of a frame. The sender always sends frames with a lower number first."""

    CONTROL = 0
    ACTIVATION = 1
    BULK = 2


PRIORITIES: Final = tuple(Priority)
"""Priorities by number. Each frame needs such a look-up, which costs a fortieth of calling
`Priority`."""
BULK: Final = int(Priority.BULK)
"""The number of `Priority.BULK` as a plain int, because every frame is compared with it."""


class Fault(Exception):
    """A protocol error of a peer, inside protocol code. `Lane` and `Libp2pConnection` catch it and
    end the connection with its code, so their callers never see it. `code` is a fixed word from
    docs/spec/lane.md or libp2p.md."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


class Frame(NamedTuple):
    """A received frame. `head` and `payload` are slices of the received data."""

    kind: int
    flags: int
    received: int
    ident: int
    offset: int
    head: Bytes
    payload: Bytes


class Cutter:
    """Splitter of a connection's decrypted bytes into frames.

    It stores at most one incomplete frame. Raises Fault with code `frame-too-large` if a prefix
    announces more than `payload_bytes` of payload or `head_bytes` of head.
    """

    def __init__(
        self, payload_bytes: int = FRAME_PAYLOAD_BYTES, head_bytes: int = FRAME_HEAD_BYTES
    ) -> None:
        self._payload_bytes = payload_bytes
        self._head_bytes = head_bytes
        self._rest = b""

    @property
    def begun(self) -> tuple[int, int]:
        """(bytes of the incomplete frame received so far, its priority). The priority is 0 while it
        is unknown."""
        size = len(self._rest)
        return size, min(self._rest[5] & PRIORITY_MASK, BULK) if size > 5 else 0

    def feed(self, data: Bytes) -> Iterator[Frame]:
        """Append received bytes and yield the frames that are now complete."""
        return self._go_on(data) if self._rest else self._cut(data, 0)

    def _go_on(self, data: Bytes) -> Iterator[Frame]:
        at = self._missing(data)
        if at < 0:
            self._rest += data
            return
        yield from self._cut(self._rest + data[:at], 0)
        yield from self._cut(data, at)

    def _missing(self, data: Bytes) -> int:
        """Return how many bytes of `data` complete the incomplete frame, or -1 if it stays
        incomplete.

        Only these bytes are copied to the incomplete frame, so that the rest of a large read is
        split without a copy.
        """
        begun = len(self._rest)
        prefix = self._rest[:PREFIX_BYTES] + data[: max(0, PREFIX_BYTES - begun)]
        if len(prefix) < PREFIX_BYTES:
            return -1
        length, _, _, head, *_ = PREFIX.unpack(prefix)
        self._check(length, head)
        missing = PREFIX_BYTES + length - begun
        return missing if missing <= len(data) else -1

    def _check(self, length: int, head: int) -> None:
        if head > self._head_bytes or not head <= length <= head + self._payload_bytes:
            raise Fault("frame-too-large")

    def _cut(self, data: Bytes, at: int) -> Iterator[Frame]:
        view, end = memoryview(data), len(data)
        while end - at >= PREFIX_BYTES:
            length, kind, flags, head, received, ident, offset = PREFIX.unpack_from(data, at)
            self._check(length, head)
            body = at + PREFIX_BYTES
            split, stop = body + head, body + length
            if stop > end:
                break
            at = stop
            # Equal to `Frame(…)`, at half the cost.
            yield tuple.__new__(
                Frame, (kind, flags, received, ident, offset, view[body:split], view[split:stop])
            )
        self._rest = bytes(view[at:])


def encode(kind: int, *, head: bytes = b"", ident: int = 0, offset: int = 0) -> bytes:
    """Return an encoded frame that has no payload and is not counted: a hello or a goaway."""
    return PREFIX.pack(len(head), kind, 0, len(head), 0, ident, offset) + head


def encode_request(method: str, header: Mapping[str, object]) -> bytes:
    """Return the encoded head of a CALL, POST or OPEN frame: the length of the method's name, the
    name, and the header as a map.

    Raises ValueError if the method's name or the header exceeds its limit.
    """
    head = _encode_method(method)
    if not header:
        return head
    head += encode_header(header)
    if len(head) > FRAME_HEAD_BYTES:
        raise ValueError(f"a header has at most {FRAME_HEAD_BYTES} bytes; use the payload")
    return head


@lru_cache(maxsize=256)  # a node keeps calling the same few methods
def _encode_method(method: str) -> bytes:
    name = method.encode()
    if not 0 < len(name) <= METHOD_BYTES:
        raise ValueError(f"a method name has 1 to {METHOD_BYTES} bytes")
    return b"%c%b" % (len(name), name)


def decode_request(head: Bytes) -> tuple[str, dict[str, object]]:
    """Return (method, header) of a request's head. Raises Fault with code `bad-head` if it is
    malformed."""
    size = head[0] if head else 0
    if not 0 < size <= METHOD_BYTES or size >= len(head):
        raise Fault("bad-head")
    end = 1 + size
    try:
        method = str(head[1:end], "utf-8")
    except UnicodeDecodeError:
        raise Fault("bad-head") from None
    return method, decode_header(head[end:]) if end < len(head) else {}


def encode_header(header: Mapping[str, object]) -> bytes:
    """Return a header encoded as a MessagePack map; an empty header has no bytes. Raises ValueError
    if the result is too large."""
    if not header:
        return b""
    packed: bytes = msgpack.packb(dict(header))
    if len(packed) > FRAME_HEAD_BYTES:
        raise ValueError(f"a header has at most {FRAME_HEAD_BYTES} bytes; use the payload")
    return packed


def decode_header(data: Bytes) -> dict[str, object]:
    """Return the map with string keys that `data` encodes. Raises Fault with code `bad-head` if it
    is malformed or has more than FRAME_HEAD_BYTES.

    Extension types and timestamps are refused.
    """
    if not data:
        return {}
    try:
        header = decode(data, limit=FRAME_HEAD_BYTES)
    except Undecodable:
        raise Fault("bad-head") from None
    if not isinstance(header, dict) or not all(isinstance(key, str) for key in header):
        raise Fault("bad-head")
    return header


def encode_code(code: str, message: str = "") -> bytes:
    """Return the encoded head of a REFUSAL, RESET or GOAWAY frame: the code's length, the code, and
    the message."""
    name = code.encode()[:CODE_BYTES]
    return b"%c%b%b" % (len(name), name, message.encode()[:1024])


def decode_code(head: Bytes) -> tuple[str, str]:
    """Return (code, message) from a peer, safe to display. The code consists of a-z, 0-9 and
    hyphens. The message has at most 200 characters, and its control characters are replaced. Raises
    Fault with code `bad-head` if the head is malformed."""
    size = head[0] if head else 0
    code = bytes(head[1 : 1 + size])
    if not 0 < size <= CODE_BYTES or len(code) != size or not _is_word(code):
        raise Fault("bad-head")
    text = str(head[1 + size :], "utf-8", "replace")[:200]
    return code.decode("ascii"), "".join(c if c.isprintable() else "\ufffd" for c in text)


def _is_word(code: bytes) -> bool:
    return all(97 <= c <= 122 or 48 <= c <= 57 or c == 45 for c in code)


def first_frame(data: bytes, head_bytes: int) -> tuple[Frame, bytes] | None:
    """Return (first frame of a connection, bytes after it). This frame must have no payload. Return
    None while it is incomplete. Raises Fault with code `frame-too-large` if it has a payload, or
    more than `head_bytes` of head."""
    if len(data) < PREFIX_BYTES:
        return None
    length, kind, flags, head, received, ident, offset = PREFIX.unpack_from(data)
    if length != head or head > head_bytes:
        raise Fault("frame-too-large")
    stop = PREFIX_BYTES + length
    if len(data) < stop:
        return None
    return Frame(kind, flags, received, ident, offset, data[PREFIX_BYTES:stop], b""), data[stop:]
