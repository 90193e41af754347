"""A circuit as a byte stream: bytes to a peer, carried by a stream to a relay.

It carries the TLS records of the two ends, which the relay cannot decrypt.
"""

import struct
from typing import Final

import trio

from ..errors import CallRefused, LinkClosed
from ..host.datagrams import Place
from ..identity import PeerId
from ..lane import frame as wire
from ..lane.frame import Fault
from ..link.stream import Stream
from .book import EXPIRED
from .defaults import AHEAD_BYTES, LOW_BYTES, PREFACE_BYTES
from .vouch import Vouched, read_vouched

_LENGTH: Final = struct.Struct(">H")


def encode_preface(target: Vouched) -> bytes:
    """Encode the preface that a relay sends to the opener of a circuit: where it sees the
    target."""
    head = wire.encode_header({"seen": list(target)})
    return _LENGTH.pack(len(head)) + head


class CircuitByteStream:
    """One end of a circuit through the peer `relay`.

    `seen` is the address at which the relay sees the other end. On the opener's side, it is None
    until the relay's preface has arrived. `voucher` is the IP address at which this node sees the
    relay, by which the relay's statements are checked (see vouch.py). `failure` is the code of an
    abnormal end: the code of a reset, `link-lost`, or `bad-preface`.
    """

    medium: Final = "circuit"
    inside: Final = True  # carried by a link of this node, which counts its bytes

    def __init__(
        self,
        stream: Stream,
        relay: PeerId,
        *,
        seen: Vouched | None = None,
        voucher: str | None = None,
    ) -> None:
        self.relay = relay
        self.seen = seen
        self.failure: str | None = None
        self.stream = stream
        """The stream to the relay."""
        self._voucher = voucher  # None if no preface is expected
        self._preface = b""
        self._closed = trio.Event()

    @property
    def lapsed(self) -> bool:
        """Whether the relay has ended the circuit because its time had passed."""
        return self.failure == EXPIRED

    @property
    def remote(self) -> Place:
        """An empty address, because the other end of a circuit cannot be dialled."""
        return "", 0

    def read_ready(self, size: int) -> bytes:
        """Return 1 to `size` received bytes; b"" at the end. Raises BlockingIOError if there are
        none yet."""
        if self._closed.is_set():
            raise _gone("closed")
        try:
            if self._voucher is not None:
                self._read_preface(self._voucher)
            return self.stream.receive_ready(size)
        except (CallRefused, LinkClosed) as error:
            raise self._fail(error) from None

    def write_ready(self, data: memoryview) -> int:
        """Queue bytes, and return how many were accepted. Raises BlockingIOError if there is no
        room."""
        if self._closed.is_set():
            raise _gone("closed")
        try:
            return self.stream.send_ready(data, AHEAD_BYTES)
        except (CallRefused, LinkClosed) as error:
            raise self._fail(error) from None

    async def wait_readable(self) -> None:
        await self.stream.wait_receivable()
        if self._closed.is_set():
            raise trio.ClosedResourceError

    async def wait_writable(self) -> None:
        try:
            await self.stream.wait_sendable(LOW_BYTES)
        except (CallRefused, LinkClosed) as error:
            if self._closed.is_set():
                raise trio.ClosedResourceError from None
            raise self._fail(error) from None

    async def wait_closed(self) -> None:
        """Wait until `close` has been called."""
        await self._closed.wait()

    def end(self) -> None:
        if self._closed.is_set():
            raise _gone("closed")
        try:
            self.stream.end()
        except (CallRefused, LinkClosed) as error:
            raise self._fail(error) from None

    def close(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            self.stream.reset("closed")

    def _read_preface(self, voucher: str) -> None:
        """Read the relay's preface. Raises BlockingIOError until it is complete, and OSError if it
        is invalid."""
        while (missing := self._missing()) > 0:
            piece = self.stream.receive_ready(missing)
            if not piece:
                raise self._refuse_preface()
            self._preface += piece
        try:
            head = wire.decode_header(self._preface[_LENGTH.size :])
        except Fault:
            raise self._refuse_preface() from None
        self.seen = read_vouched(head.get("seen"), voucher)
        self._voucher = None

    def _missing(self) -> int:
        """Return how many bytes of the preface, or of its length, have not arrived."""
        if len(self._preface) < _LENGTH.size:
            return _LENGTH.size - len(self._preface)
        (size,) = _LENGTH.unpack_from(self._preface)
        if size > PREFACE_BYTES:
            raise self._refuse_preface()
        return int(size) + _LENGTH.size - len(self._preface)

    def _refuse_preface(self) -> OSError:
        """Record that the preface is invalid, and return the error to raise."""
        self.failure = "bad-preface"
        return _gone("bad-preface")

    def _fail(self, error: CallRefused | LinkClosed) -> OSError:
        """Record the code of the stream's error, and return the OSError to raise."""
        code = error.code if isinstance(error, CallRefused) else "link-lost"
        self.failure = self.failure or code
        return _gone(code)


def _gone(code: str) -> OSError:
    """Return the error with which a circuit has ended."""
    return ConnectionResetError(f"the circuit ended ({code})")
