"""yamux: many streams over one secured connection, without I/O.

A frame begins with its version and type (1 byte each), flags (2 bytes), stream id and length (4
bytes each). Each direction of a stream begins with a window of 256 KiB (hashicorp/yamux, `spec.md`;
libp2p specification, `yamux`). All limits are enforced here. Bytes beyond a window, too many unread
bytes, or a malformed frame raise Fault, which ends the connection. A stream that exceeds the number
of streams is reset.
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
_PIECE: Final = 16 * 1024  # largest payload of a frame, so that streams alternate


@dataclass(frozen=True, slots=True)
class ChannelOpened:
    """Event: the peer has opened a stream."""

    stream: "YamuxChannel"


@dataclass(frozen=True, slots=True)
class Changed:
    """Event: a stream has new bytes or credit, or has ended or failed."""

    stream: "YamuxChannel"


Event = ChannelOpened | Changed


class YamuxChannel:
    """One stream: received bytes that are unread, and the credit to send."""

    __slots__ = (
        "_allowance", "_taken", "_yamux", "context", "credit", "failed", "ident", "read_done",
        "unread", "write_done",
    )  # fmt: skip

    def __init__(self, yamux: "Yamux", ident: int) -> None:
        self.ident = ident
        self.unread = bytearray()
        self.credit = _WINDOW  # bytes that the peer allows us to send
        self.read_done = False  # whether the peer has ended its direction
        self.write_done = False  # whether this side has ended its direction
        self.failed = False  # whether either side has reset the stream, or the connection is lost
        self.context: Any = None  # the `MuxStream` of this stream
        self._yamux = yamux
        self._allowance = _WINDOW  # bytes that this side allows the peer to send
        self._taken = 0  # bytes read since the window was renewed

    def read(self, size: int) -> bytes:
        """Remove and return up to `size` unread bytes. Extends the window once half of it has been
        read."""
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
        """Queue as many bytes as the credit and the connection's buffer allow. Return their
        number."""
        room = min(self.credit, len(data), defaults.UNSENT_BYTES - self._yamux.unsent)
        if room <= 0 or self.failed or self.write_done:
            return 0
        for start in range(0, room, _PIECE):
            piece = data[start : min(start + _PIECE, room)]
            self._yamux.frame(DATA, 0, self.ident, len(piece), piece)
        self.credit -= room
        return room

    def end(self) -> None:
        """End this side's direction of the stream."""
        if not (self.failed or self.write_done):
            self.write_done = True
            self._yamux.frame(DATA, FIN, self.ident, 0)
            self._yamux.forget(self)

    def reset(self) -> None:
        """End both directions at once, and drop unread bytes."""
        if not self.failed and not (self.read_done and self.write_done):
            self._yamux.frame(WINDOW, RST, self.ident, 0)
        self.fail()

    def fail(self) -> None:
        """Mark the stream as failed, and drop unread bytes."""
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
    """The streams of one connection. Pass plaintext to `receive`, and send what `outgoing` returns.

    `streams` limits the number of streams that the peer has open, and `held` the number of unread
    bytes of all streams.
    """

    def __init__(self, *, dialled: bool, streams: int, held: int) -> None:
        self.channels: dict[int, YamuxChannel] = {}
        self.held = 0
        self.leaving = False  # whether the peer accepts no more streams
        self.pongs = 0  # replies to pings so far, a count
        self.frames = 0  # frames received so far, a count
        self.asked = 0  # streams requested by the peer so far, a count
        self._most_streams = streams
        self._most_held = held
        self._next = 1 if dialled else 2
        self._parity = 0 if dialled else 1  # parity of the ids of the peer's streams
        self._theirs = 0  # open streams of the peer, a count
        self._buffer = bytearray()
        self._body: tuple[YamuxChannel | None, int, int] | None = (
            None  # stream, bytes missing, flags
        )
        self._out = bytearray()

    @property
    def unsent(self) -> int:
        """The number of queued bytes."""
        return len(self._out)

    def open(self) -> YamuxChannel:
        """Open a stream from this side."""
        channel = self.channels[self._next] = YamuxChannel(self, self._next)
        self.frame(WINDOW, SYN, self._next, 0)
        self._next += 2
        return channel

    def ping(self) -> None:
        """Send a ping. `pongs` counts the replies."""
        self.frame(PING, SYN, 0, 0)

    def outgoing(self, limit: int) -> bytes:
        """Remove and return up to `limit` bytes, to be encrypted and sent."""
        data = bytes(self._out[:limit])
        del self._out[: len(data)]
        return data

    def frame(
        self, kind: int, flags: int, stream: int, size: int, body: bytes | memoryview = b""
    ) -> None:
        """Append one frame to the queue."""
        self._out += HEADER.pack(0, kind, flags, stream, size)
        self._out += body

    def forget(self, channel: YamuxChannel) -> None:
        """Remove a stream from the table if it has ended. Its unread bytes can still be read."""
        over = channel.failed or (channel.read_done and channel.write_done)
        if over and self.channels.get(channel.ident) is channel:
            del self.channels[channel.ident]
            self._theirs -= channel.ident % 2 == self._parity

    def receive(self, data: bytes) -> list[Event]:
        """Process plaintext, and return the events of streams.

        Raises Fault with code `bad-yamux` for a malformed frame, `window-exceeded` for bytes beyond
        a window, or `held-exceeded` for too many unread bytes.
        """
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
        """Process the header of a frame."""
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
        """Process bytes of a data frame. Return how many of them belong to the frame."""
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

    def _find(self, flags: int, ident: int, events: list[Event]) -> YamuxChannel | None:
        """Return the stream of a frame. Return None if it has ended, or exceeds the number of
        streams."""
        channel = self.channels.get(ident)
        if not flags & SYN:
            return channel  # frames for an ended stream may still be in flight
        if channel is not None or not ident or ident % 2 != self._parity:
            raise Fault("bad-yamux")
        self.asked += 1
        if self._theirs >= self._most_streams:
            self.frame(WINDOW, RST, ident, 0)
            return None
        channel = self.channels[ident] = YamuxChannel(self, ident)
        self._theirs += 1
        self.frame(WINDOW, ACK, ident, 0)
        events.append(ChannelOpened(channel))
        return channel

    def _on_flags(self, channel: YamuxChannel, flags: int) -> None:
        """Process the end or the reset of a stream."""
        if flags & RST:
            channel.fail()
        elif flags & FIN:
            channel.read_done = True
            self.forget(channel)

    def _on_credit(self, channel: YamuxChannel, size: int) -> None:
        """Add credit to a stream. Raises Fault if it becomes too large."""
        channel.credit += size
        if channel.credit > defaults.YAMUX_CREDIT:
            raise Fault("bad-yamux")

    def _on_ping(self, flags: int, size: int) -> None:
        """Reply to a ping, or count a reply."""
        if flags & SYN:
            self.frame(PING, ACK, 0, size)
        else:
            self.pongs += 1
