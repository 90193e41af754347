"""Negotiation of a protocol by multistream-select 1.0, without I/O (multiformats, `multistream`).

A line consists of its length as a varint, its text and a newline. Both sides first send the
version. One side then proposes protocols. The other side repeats the one that it accepts, or
replies `na`.
"""

from collections.abc import Container
from typing import Final

from ..lane.frame import Fault
from . import defaults
from .varint import prefixed, read_uvarint

VERSION: Final = "/multistream/1.0.0"
_NOT_AVAILABLE: Final = "na"


def line(text: str) -> bytes:
    """Encode a line."""
    return prefixed(text.encode() + b"\n")


class _Lines:
    """Buffer that splits bytes into lines."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Append received bytes."""
        self._buffer += data

    def next(self) -> str | None:
        """Return the next line, or None if it is incomplete. Raises Fault if it is malformed."""
        found = read_uvarint(self._buffer)
        if found is None:
            return None
        size, start = found
        if not 1 <= size <= defaults.LINE_BYTES:
            raise Fault("bad-multistream")
        if len(self._buffer) < start + size:
            return None
        text = bytes(self._buffer[start : start + size])
        del self._buffer[: start + size]
        if not text.endswith(b"\n") or not text.isascii():
            raise Fault("bad-multistream")
        return text[:-1].decode("ascii")

    def rest(self) -> bytes:
        """Return the remaining bytes, and clear the buffer."""
        data = bytes(self._buffer)
        self._buffer.clear()
        return data


class ProtocolChoice:
    """The side that answers proposals. `chosen` is the accepted protocol, None until there is
    one."""

    def __init__(self, protocols: Container[str]) -> None:
        self.chosen: str | None = None
        self._protocols = protocols
        self._lines = _Lines()
        self._count = 0

    def receive(self, data: bytes) -> bytes:
        """Process received bytes, and return the reply.

        Raises Fault with code `bad-multistream` if they are malformed, and with code `no-protocol`
        after LINES refusals.
        """
        self._lines.feed(data)
        answer = b""
        while self.chosen is None and (text := self._lines.next()) is not None:
            answer += self._answer(text)
        return answer

    def rest(self) -> bytes:
        """Return the bytes that were received after the agreement."""
        return self._lines.rest()

    def _answer(self, text: str) -> bytes:
        """Return the reply to one line."""
        self._count += 1
        if self._count == 1:
            if text != VERSION:
                raise Fault("bad-multistream")
            return line(VERSION)
        if text in self._protocols:
            self.chosen = text
            return line(text)
        if self._count > defaults.LINES:
            raise Fault("no-protocol")
        return line(_NOT_AVAILABLE)


class ProtocolOffer:
    """The side that proposes a single protocol. `chosen` is that protocol once the other side
    accepts it."""

    def __init__(self, protocol: str) -> None:
        self.chosen: str | None = None
        self._protocol = protocol
        self._lines = _Lines()
        self._greeted = False

    def opening(self) -> bytes:
        """Return the first bytes to send."""
        return line(VERSION) + line(self._protocol)

    def receive(self, data: bytes) -> bytes:
        """Process received bytes. Returns b"", because there is nothing to reply.

        Raises Fault with code `bad-multistream` if they are malformed, and with code `no-protocol`
        if the protocol is refused.
        """
        self._lines.feed(data)
        while self.chosen is None and (text := self._lines.next()) is not None:
            if not self._greeted:
                self._greeted = True
                if text != VERSION:
                    raise Fault("bad-multistream")
            elif text == self._protocol:
                self.chosen = text
            else:
                raise Fault("no-protocol" if text == _NOT_AVAILABLE else "bad-multistream")
        return b""

    def rest(self) -> bytes:
        """Return the bytes that were received after the agreement."""
        return self._lines.rest()
