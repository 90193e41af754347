"""multistream-select 1.0: negotiation of a protocol, sans-I/O (multiformats, `multistream`).

A line is its length as a varint, its text and a newline. Both sides first send the version; then
one proposes protocols, and the other repeats the one it accepts or answers `na`.
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
    """Splits bytes into lines. Raises Fault (`bad-multistream`)."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next(self) -> str | None:
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
        data = bytes(self._buffer)
        self._buffer.clear()
        return data


class Choice:
    """Answering side. `chosen` is set once a proposal is among `protocols`."""

    def __init__(self, protocols: Container[str]) -> None:
        self.chosen: str | None = None
        self._protocols = protocols
        self._lines = _Lines()
        self._count = 0

    def receive(self, data: bytes) -> bytes:
        """Take received bytes and return the reply; `rest` has the bytes after the agreement.

        Raises Fault (`bad-multistream`, or `no-protocol` after LINES refusals).
        """
        self._lines.feed(data)
        answer = b""
        while self.chosen is None and (text := self._lines.next()) is not None:
            answer += self._answer(text)
        return answer

    def rest(self) -> bytes:
        """Return the bytes received after the agreement."""
        return self._lines.rest()

    def _answer(self, text: str) -> bytes:
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


class Offer:
    """Proposing side, for a single protocol. `chosen` is set once the other side accepts."""

    def __init__(self, protocol: str) -> None:
        self.chosen: str | None = None
        self._protocol = protocol
        self._lines = _Lines()
        self._greeted = False

    def opening(self) -> bytes:
        """Return the first bytes to send."""
        return line(VERSION) + line(self._protocol)

    def receive(self, data: bytes) -> bytes:
        """Take bytes; return b"". Raises Fault (`bad-multistream`, `no-protocol`)."""
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
        """Return the bytes received after the agreement."""
        return self._lines.rest()
