"""yamux: many streams over one secured connection, sans-I/O.

A frame is version, type (1 byte each), flags (2), stream, length (4 each). Each direction of a
stream starts with a window of 256 KiB (hashicorp/yamux, `spec.md`; libp2p specification, `yamux`).
All limits are enforced here. Bytes beyond a window, too many unread bytes, or a malformed frame
raise Fault, which ends the connection; a stream beyond the limit is reset.
"""

import struct
from dataclasses import dataclass
from typing import Any, Final

from ..lane.frame import Fault
from . import defaults

HEADER: Final = struct.Struct(">BBHII")
DATA, WINDOW, PING, GO_AWAY = range(4)
SYN, ACK, FIN, RST = 1, 2, 4, 8
_WINDOW: Final = defaults.YAMUX_WINDOW_BYTES
_PIECE: Final = 16 * 1024  # bytes of a frame: streams take turns after that many


@dataclass(frozen=True, slots=True)
class Opened:
    """The peer opened a stream."""

    stream: "Channel"


@dataclass(frozen=True, slots=True)
class Changed:
    """A stream has new bytes, credit, an end or a failure."""

    stream: "Channel"


Event = Opened | Changed


class Channel:
    """One stream: received bytes that are unread, and the credit to send."""

    __slots__ = (
        "_allowance", "_taken", "_yamux", "context", "credit", "failed", "ident", "read_done",
        "unread", "write_done",
    )  # fmt: skip

    def __init__(self, yamux: "Yamux", ident: int) -> None:
        self.ident = ident
        self.unread = bytearray()
        self.credit = _WINDOW  # bytes that the peer allows us to send
        self.read_done = False  # the peer ended its direction
        self.write_done = False  # we ended our direction
        self.failed = False  # reset by either side, or the connection is lost
        self.context: Any = None  # set by the trio shell
        self._yamux = yamux
        self._allowance = _WINDOW  # bytes that we allow the peer to send
        self._taken = 0  # bytes read since the window was renewed

    def read(self, size: int) -> bytes:
        """Return up to `size` unread bytes; extend the window once half of it is read."""
        data = bytes(self.unread[:size])
        del self.unread[: len(data)]
        self._yamux.held -= len(data)
        self._taken += len(data)
        if self._taken >= _WINDOW // 2 and not (self.read_done or self.failed):
            self._yamux.frame(WINDOW, 0, self.ident, self._taken)
            self._allowance += self._taken
            self._taken = 0
        return data

    def write(self, data: bytes | memoryview) -> int:
        """Queue bytes as far as credit and the connection's buffer allow; return how many."""
        room = min(self.credit, len(data), defaults.UNSENT_BYTES - self._yamux.unsent)
        if room <= 0 or self.failed or self.write_done:
            return 0
        for start in range(0, room, _PIECE):
            piece = data[start : min(start + _PIECE, room)]
            self._yamux.frame(DATA, 0, self.ident, len(piece), piece)
        self.credit -= room
        return room

    def end(self) -> None:
        """End our direction of the stream."""
        if not (self.failed or self.write_done):
            self.write_done = True
            self._yamux.frame(DATA, FIN, self.ident, 0)
            self._yamux.forget(self)

    def reset(self) -> None:
        """End both directions immediately, and drop unread bytes."""
        if not self.failed and not (self.read_done and self.write_done):
            self._yamux.frame(WINDOW, RST, self.ident, 0)
        self.fail()

    def fail(self) -> None:
        """Mark the stream as failed and drop unread bytes."""
        self.failed = True
        self._yamux.held -= len(self.unread)
        self.unread.clear()
        self._yamux.forget(self)

    def take(self, data: memoryview) -> None:
        """Append received bytes. Raises Fault (`window-exceeded`) if they exceed the window."""
        self._allowance -= len(data)
        if self._allowance < 0:
            raise Fault("window-exceeded")
        self.unread += data


class Yamux:
    """Streams of one connection. Feed plaintext, send what `outgoing` returns.

    `streams` limits those that the peer holds open, `held` the unread bytes of all.
    """

    def __init__(self, *, dialled: bool, streams: int, held: int) -> None:
        self.channels: dict[int, Channel] = {}
        self.held = 0
        self.leaving = False  # the peer accepts no more streams
        self.pongs = 0
        self.frames = 0  # received so far
        self.asked = 0  # streams requested by the peer so far
        self._most_streams = streams
        self._most_held = held
        self._next = 1 if dialled else 2
        self._parity = 0 if dialled else 1  # of the peer's streams
        self._theirs = 0
        self._buffer = bytearray()
        self._body: tuple[Channel | None, int, int] | None = None  # stream, bytes missing, flags
        self._out = bytearray()

    @property
    def unsent(self) -> int:
        """Number of queued bytes."""
        return len(self._out)

    def open(self) -> Channel:
        """Open a stream of our own."""
        channel = self.channels[self._next] = Channel(self, self._next)
        self.frame(WINDOW, SYN, self._next, 0)
        self._next += 2
        return channel

    def ping(self) -> None:
        """Send a ping; `pongs` counts the replies."""
        self.frame(PING, SYN, 0, 0)

    def outgoing(self, limit: int) -> bytes:
        """Return up to `limit` bytes to encrypt and send."""
        data = bytes(self._out[:limit])
        del self._out[: len(data)]
        return data

    def frame(
        self, kind: int, flags: int, stream: int, size: int, body: bytes | memoryview = b""
    ) -> None:
        """Queue one frame."""
        self._out += HEADER.pack(0, kind, flags, stream, size)
        self._out += body

    def forget(self, channel: Channel) -> None:
        """Remove a finished stream from the table; its reader keeps unread bytes."""
        over = channel.failed or (channel.read_done and channel.write_done)
        if over and self.channels.get(channel.ident) is channel:
            del self.channels[channel.ident]
            self._theirs -= channel.ident % 2 == self._parity

    def receive(self, data: bytes) -> list[Event]:
        """Take plaintext. Raises Fault (`bad-yamux`, `window-exceeded`, `held-exceeded`)."""
        self._buffer += data
        events: list[Event] = []
        view = memoryview(bytes(self._buffer))
        at = 0
        while True:
            if self._body is not None:
                used = self._take_body(view[at:], events)
                at += used
                if self._body is not None:
                    break
            if len(view) - at < HEADER.size:
                break
            self.frames += 1
            self._take_header(HEADER.unpack_from(view, at), events)
            at += HEADER.size
        self._buffer = bytearray(view[at:])
        return events

    def _take_header(self, header: tuple[int, ...], events: list[Event]) -> None:
        version, kind, flags, ident, size = header
        if version or kind > GO_AWAY:
            raise Fault("bad-yamux")
        if kind == PING:
            self._on_ping(flags, size)
        elif kind == GO_AWAY:
            self.leaving = True
        else:
            channel = self._find(flags, ident, events)
            if kind == DATA:
                if size > _WINDOW:
                    raise Fault("window-exceeded")
                self._body = channel, size, flags
            elif channel is not None:
                self._on_credit(channel, size)
                self._on_flags(channel, flags)
                events.append(Changed(channel))

    def _take_body(self, data: memoryview, events: list[Event]) -> int:
        """Take bytes of a data frame; return how many were used."""
        assert self._body is not None
        channel, missing, flags = self._body
        piece = data[:missing]
        if channel is not None and not channel.failed:
            if channel.read_done and piece:
                raise Fault("bad-yamux")
            channel.take(piece)
            self.held += len(piece)
            if self.held > self._most_held:
                raise Fault("held-exceeded")
        missing -= len(piece)
        self._body = (channel, missing, flags) if missing else None
        if channel is not None:
            if not missing:
                self._on_flags(channel, flags)
            if piece or not missing:
                events.append(Changed(channel))
        return len(piece)

    def _find(self, flags: int, ident: int, events: list[Event]) -> Channel | None:
        """Return the frame's stream; None if it has ended or exceeds the limit."""
        channel = self.channels.get(ident)
        if not flags & SYN:
            return channel  # frames for an ended stream may still be in flight
        if channel is not None or not ident or ident % 2 != self._parity:
            raise Fault("bad-yamux")
        self.asked += 1
        if self._theirs >= self._most_streams:
            self.frame(WINDOW, RST, ident, 0)
            return None
        channel = self.channels[ident] = Channel(self, ident)
        self._theirs += 1
        self.frame(WINDOW, ACK, ident, 0)
        events.append(Opened(channel))
        return channel

    def _on_flags(self, channel: Channel, flags: int) -> None:
        if flags & RST:
            channel.fail()
        elif flags & FIN:
            channel.read_done = True
            self.forget(channel)

    def _on_credit(self, channel: Channel, size: int) -> None:
        channel.credit += size
        if channel.credit > defaults.YAMUX_CREDIT:
            raise Fault("bad-yamux")

    def _on_ping(self, flags: int, size: int) -> None:
        if flags & SYN:
            self.frame(PING, ACK, 0, size)
        else:
            self.pongs += 1
