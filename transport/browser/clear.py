"""What stands where TLS stands on other paths: nothing, with the methods of `tls.Tls`.

A data channel is encrypted already (DTLS) and its ends are proven (proof.py) before a path is
made of it.
"""

import hmac
from dataclasses import dataclass
from typing import Final

from ..errors import TransportError
from ..identity import PeerId
from ..pipe import Pipe

_MOST_EXPORTED: Final = 32


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """A proven data channel: the pipe, who is at the other end, and 32 bytes that name it."""

    pipe: Pipe
    peer: PeerId
    exporter: bytes


class Clear:
    """Passes bytes through. `peer` and `exporter` are those of the session."""

    established = True
    server = True  # nobody turns the roles of a proven channel round

    def __init__(self, session: BrowserSession) -> None:
        self.peer = session.peer
        self.closed = False  # nobody says so on such a path: its end is the pipe's
        self._exporter = session.exporter
        self._in: list[bytes] = []
        self._out: list[bytes | memoryview] = []

    def feed(self, ciphertext: bytes) -> None:
        """Take bytes from the peer."""
        if ciphertext:
            self._in.append(ciphertext)

    def read(self) -> bytes:
        """All that has come, b"" if nothing has."""
        found, self._in = self._in, []
        return found[0] if len(found) == 1 else b"".join(found)

    def write(self, plaintext: bytes | memoryview) -> None:
        """Take bytes for the peer; fetch them with `outgoing`."""
        if plaintext:
            self._out.append(plaintext)

    def outgoing(self) -> bytes:
        """Bytes to send to the peer, b"" if none."""
        found, self._out = self._out, []
        return bytes(found[0]) if len(found) == 1 else b"".join(found)

    def release(self) -> None:
        """There is nothing to give back."""

    def close(self) -> None:
        """There is nothing to say."""

    def exporter(self, label: bytes, size: int) -> bytes:
        """Up to 32 bytes that both ends know, other ones for each label."""
        if size > _MOST_EXPORTED:
            raise TransportError("tls-failed", f"at most {_MOST_EXPORTED} bytes are exported")
        return hmac.digest(self._exporter, label, "sha256")[:size]
