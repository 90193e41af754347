"""Frames between the daemon and its worker over a Unix stream socket. Spec: docs/spec/engine.md.

Both processes use a `WorkerChannel`, which never blocks: the daemon waits for its socket with trio,
the worker with poll. A payload of at least 64 KiB is sent as a descriptor of shared memory, in one
piece instead of many socket buffers. The receiver copies the shared memory into its own memory. A
mapping would occupy a descriptor for the lifetime of the payload, and would fault if the other
process truncated the file.
"""

import array
import os
import socket
import stat
import struct
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence

import msgpack

from ...transport.decoding import decode
from ...transport.errors import Undecodable
from .defaults import HEADER_BYTES, INLINE_BYTES, PAYLOAD_BYTES

Buffer = bytes | bytearray | memoryview
Header = Sequence[object]
Result = tuple[object, Buffer]
"""The value and the payload of a reply."""
Request = Callable[[Header, memoryview], Result]
"""What answers one kind of frame, of which it takes the header and the payload."""

_PREFIX = struct.Struct("!IB3xQ")  # header size, kind, payload size
_INLINE, _DESCRIPTOR = 0, 1
_RECEIVE = 256 * 1024  # the most bytes to receive in one call
_DESCRIPTORS = 64  # the most descriptors to receive in one call
_GATHERED = 64  # the most buffers to send in one call
_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
_MEMORY = sys.platform == "linux"


class WireError(Exception):
    """Error for a violation of the protocol by the other process. Close the connection."""


class WireClosed(Exception):
    """Error for a connection that the other process has closed."""


class WorkerChannel:
    """One end of the connection between daemon and worker."""

    def __init__(self, descriptor: int) -> None:
        """Create a channel over a connected Unix stream socket.

        `descriptor` is duplicated, and the caller must close the original.
        """
        self._sock = socket.socket(fileno=os.dup(descriptor))
        self._sock.setblocking(False)
        self._arrived = bytearray()
        self._descriptors: deque[int] = deque()
        self._waiting: deque[tuple[memoryview, int]] = deque()  # (data, descriptor or -1)

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        """Close the socket and all descriptors that were received or not sent yet."""
        self._sock.close()
        for descriptor in (*self._descriptors, *(item[1] for item in self._waiting)):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptors.clear()
        self._waiting.clear()

    def put(self, header: Header, payload: Buffer = b"") -> None:
        """Queue a frame, which `flush` sends. The payload is copied once.

        Raises WireError if the frame is too large for the receiver.
        """
        packed = msgpack.packb(header)
        size = payload.nbytes if isinstance(payload, memoryview) else len(payload)
        if len(packed) > HEADER_BYTES or size > PAYLOAD_BYTES:
            raise WireError(f"a frame of {len(packed)} and {size} bytes is too large")
        if size < INLINE_BYTES:
            frame = b"".join((_PREFIX.pack(len(packed), _INLINE, size), packed, payload))
            self._waiting.append((memoryview(frame), -1))
        else:
            frame = _PREFIX.pack(len(packed), _DESCRIPTOR, size) + packed
            self._waiting.append((memoryview(frame), _shared(payload)))

    def flush(self) -> bool:
        """Send as much of the queue as the socket accepts now. Return whether everything was sent.

        Raises WireClosed if the connection is closed.
        """
        try:
            while self._waiting:
                self._sent(self._send_some())
        except BlockingIOError:
            return False
        except OSError as error:
            raise WireClosed(error.strerror) from None
        return True

    def _send_some(self) -> int:
        """Send from the front of the queue and return the number of bytes sent.

        A frame with a descriptor is sent alone.
        """
        data, descriptor = self._waiting[0]
        if descriptor < 0:
            if len(self._waiting) == 1:
                return self._sock.send(data)
            return self._sock.sendmsg(self._plain())
        rights = array.array("i", [descriptor])
        count = self._sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        os.close(descriptor)
        self._waiting[0] = (data, -1)
        return count

    def _plain(self) -> list[memoryview]:
        """Return the data of the first queued frames, up to one with a descriptor."""
        buffers: list[memoryview] = []
        for data, descriptor in self._waiting:
            if descriptor >= 0 or len(buffers) == _GATHERED:
                break
            buffers.append(data)
        return buffers

    def _sent(self, count: int) -> None:
        """Remove the first `count` bytes from the queue."""
        while count:
            data, descriptor = self._waiting.popleft()
            if count < len(data):
                self._waiting.appendleft((data[count:], descriptor))
                return
            count -= len(data)

    def receive(self) -> list[tuple[Header, memoryview]]:
        """Return the frames that have arrived, as (header, payload).

        Raises WireClosed if the connection is closed, and WireError if a frame is invalid.
        """
        frames = self.arrived(PAYLOAD_BYTES)  # copies all payloads, because none may be larger
        return [(header, data) for header, data in frames if isinstance(data, memoryview)]

    def arrived(self, most: int) -> list[tuple[Header, "Payload"]]:
        """Return the frames that have arrived, as `receive` does, but leave payloads of over `most`
        bytes where they are. The caller must read or close them.

        Raises WireClosed if the other end is closed, and WireError if the frames are malformed.
        """
        try:
            room = socket.CMSG_SPACE(_DESCRIPTORS * 4)
            data, ancillary, flags, _ = self._sock.recvmsg(_RECEIVE, room, _CLOEXEC)
        except BlockingIOError:
            return []
        except OSError as error:
            raise WireClosed(error.strerror) from None
        for level, kind, raw in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._descriptors.extend(array.array("i", raw[: len(raw) - len(raw) % 4]))
        if flags & socket.MSG_CTRUNC:
            raise WireError("too many descriptors at once")
        if not data:
            raise WireClosed("the other side closed")
        self._arrived += data
        return self._frames(most)

    def _frames(self, most: int) -> list[tuple[Header, "Payload"]]:
        """Remove and return the complete frames from the received bytes."""
        frames = list[tuple[Header, "Payload"]]()
        offset = 0
        while len(self._arrived) - offset >= _PREFIX.size:
            header_size, kind, size = _PREFIX.unpack_from(self._arrived, offset)
            _check_prefix(header_size, kind, size)
            start = offset + _PREFIX.size
            end = start + header_size + (size if kind == _INLINE else 0)
            if end > len(self._arrived):
                break
            header = parse_header(self._arrived[start : start + header_size])
            if kind == _INLINE:
                frames.append((header, memoryview(self._arrived[start + header_size : end])))
            else:
                shared = self._shared_payload(size)
                frames.append((header, shared if size > most else shared.read()))
            offset = end
        del self._arrived[:offset]
        return frames

    def _shared_payload(self, size: int) -> "SharedPayload":
        """Return the payload of `size` bytes in the next received descriptor."""
        if not self._descriptors:
            raise WireError("a payload's descriptor is missing")
        return SharedPayload(self._descriptors.popleft(), size)


class SharedPayload:
    """A received payload in shared memory that is not copied yet."""

    def __init__(self, descriptor: int, size: int) -> None:
        """The descriptor belongs to this object from now on."""
        self._descriptor, self._size = descriptor, size

    def read(self) -> memoryview:
        """Return a copy, and close the descriptor. Another thread may do this.

        Raises WireError if it is not the memory that was announced.
        """
        try:
            return read_shared(self._descriptor, self._size)
        finally:
            self.close()

    def close(self) -> None:
        """Close the descriptor, unless it is closed."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


Payload = memoryview | SharedPayload


def _check_prefix(header_size: int, kind: int, size: int) -> None:
    """Raise WireError if a frame announces more bytes than allowed, or the wrong kind of
    payload."""
    inline = size < INLINE_BYTES
    if (
        header_size > HEADER_BYTES
        or size > PAYLOAD_BYTES
        or kind != (_INLINE if inline else _DESCRIPTOR)
    ):
        raise WireError(f"a frame of kind {kind} announces {header_size} and {size} bytes")


def parse_header(data: bytes | bytearray) -> Header:
    """Decode a frame's header. Raises WireError unless it is an array that begins with a string."""
    try:
        header = decode(data, limit=HEADER_BYTES, tuples=True)
    except Undecodable as error:
        raise WireError("a frame's header cannot be read") from error
    if not isinstance(header, tuple) or not header or not isinstance(header[0], str):
        raise WireError("a frame's header is not an array that starts with a word")
    return header


def _shared(payload: Buffer) -> int:
    """Return a descriptor of shared memory (or of an unlinked file) with a copy of the payload."""
    if _MEMORY:
        descriptor = os.memfd_create("shoal", os.MFD_CLOEXEC)
    else:
        descriptor, path = tempfile.mkstemp(prefix="shoal-")
        os.unlink(path)
    try:
        rest = memoryview(payload).cast("B")
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_shared(descriptor: int, size: int) -> memoryview:
    """Read a payload of `size` bytes from the file of `descriptor` into memory of this process.

    Raises WireError if the file has another size or is not a regular file.
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size != size:
        raise WireError("a payload has not the size its frame announces")
    data = memoryview(bytearray(size))
    done = 0
    while done < size:
        count = os.preadv(descriptor, [data[done:]], done)
        if count == 0:
            raise WireError("a payload has not the size its frame announces")
        done += count
    return data
