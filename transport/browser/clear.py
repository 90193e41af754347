"""A replacement for `tls.Tls` that passes bytes through, for paths over data channels.

These paths need no TLS. A data channel is already encrypted (DTLS), and both ends have proven their
peer ids (proof.py) before a path uses the channel.
"""

import hmac
from dataclasses import dataclass
from typing import Final

from ..bytestream import ByteStream
from ..errors import TransportError
from ..handshake.secured import SecureStream
from ..identity import PeerId
from ..lane.frame import Bytes

_MOST_EXPORTED: Final = 32  # bytes


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """An authenticated data channel: its byte stream, its peer, and 32 bytes that identify this
    channel."""

    byte_stream: ByteStream
    peer: PeerId
    exporter: bytes

    def secure(self) -> SecureStream:
        """Return the secured stream that a link can use as a path."""
        return SecureStream(self.byte_stream, Clear(self))


class Clear:
    """Replacement for `tls.Tls` that passes bytes through unchanged, because DTLS already encrypts
    them."""

    established = True
    server = True  # the roles never change: the browser always dials

    def __init__(self, session: BrowserSession) -> None:
        self.peer = session.peer
        self.closed = False  # always, because there is no close message: the byte stream just ends
        self._exporter = session.exporter
        self._in: list[Bytes] = []
        self._out: list[bytes | memoryview] = []

    def feed(self, ciphertext: Bytes) -> None:
        """Append bytes from the peer, which `read` returns."""
        if ciphertext:
            self._in.append(ciphertext)

    def read(self) -> Bytes:
        """Return all bytes that have arrived since the last call, or b"" if there are none."""
        found, self._in = self._in, []
        return found[0] if len(found) == 1 else b"".join(found)

    def write(self, plaintext: bytes | memoryview) -> None:
        """Append bytes for the peer, which `outgoing` returns."""
        if plaintext:
            self._out.append(plaintext)

    def outgoing(self) -> bytes:
        """Return the bytes to send to the peer, or b"" if there are none."""
        found, self._out = self._out, []
        return bytes(found[0]) if len(found) == 1 else b"".join(found)

    def release(self) -> None:
        """Do nothing, because there are no resources to release."""

    def close(self) -> None:
        """Do nothing, because there is no close message."""

    def exporter(self, label: bytes, size: int) -> bytes:
        """Return `size` bytes that both ends can compute and that differ for each label.

        Raises TransportError with code `tls-failed` if `size` exceeds 32 bytes.
        """
        if size > _MOST_EXPORTED:
            raise TransportError("tls-failed", f"at most {_MOST_EXPORTED} bytes are exported")
        return hmac.digest(self._exporter, label, "sha256")[:size]
