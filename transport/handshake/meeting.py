"""Exchange of hellos on an authenticated connection (docs/spec/lane.md, section 3).

The dialler speaks first and proves that it may come in. The listener replies with its own hello, or
sends a code and closes.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import trio

from .. import defaults
from ..guard import Guard
from ..identity import PeerId
from ..lane import frame as wire
from ..lane.events import Windows
from ..lane.frame import Fault
from ..lane.lane import Lane
from ..limits import Limits
from .hello import (
    EXPORTER_BYTES,
    EXPORTER_LABEL,
    Admission,
    Admitted,
    Binding,
    Hello,
    Secret,
    Token,
    admit,
    common_version,
    confirm,
)
from .secured import PathLost, SecureStream


class Refused(Exception):
    """The exchange of hellos ended with a code of this node, or the peer's with its message."""

    def __init__(self, code: str, words: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.words = words or code


@dataclass(frozen=True, slots=True)
class Identities:
    """The identities at both ends of a link: the peer, both incarnations, and how it was made."""

    peer: PeerId
    incarnation: bytes
    peer_incarnation: bytes
    dialled: bool
    admitted: Admitted
    port: int = 0  # the port on which the peer listens, or at which it was dialled
    udp_port: int = 0  # the peer's UDP port; 0 if it has none


@dataclass(frozen=True, slots=True)
class Connected:
    """A connection after the exchange of hellos. `early` is plaintext received after the peer's."""

    secured: SecureStream
    peer: PeerId
    hello: Hello
    admitted: Admitted
    dialled: bool
    early: bytes

    def lane(self, limits: Limits, now: float) -> Lane:
        """Return the core of a new link over this connection."""
        return Lane(dialled=self.dialled, limits=limits, remote=self.hello.windows, now=now)

    def identities(self, incarnation: bytes, port: int) -> Identities:
        """Return the identities at both ends of the new link."""
        return Identities(
            self.peer,
            incarnation,
            self.hello.incarnation,
            self.dialled,
            self.admitted,
            port,
            self.hello.udp_port,
        )


class Door:
    """Sender and judge of hellos for one node. `port` is 0 until the node listens."""

    def __init__(
        self,
        peer: PeerId,
        incarnation: bytes,
        admission: Admission,
        limits: Limits,
        guard: Guard,
    ) -> None:
        self.admission = admission
        self.port = 0
        self.udp_port = 0
        self.observers: list[Callable[[Connected], None]] = []
        self.refused: list[Callable[[PeerId, Refused], None]] = []
        """Callbacks for peers that refuse to let this node in."""
        self._peer = peer
        self._incarnation = incarnation
        self._guard = guard
        self._windows = Windows(
            limits.stream_window_bytes, limits.link_window_bytes, limits.streams
        )

    async def receive(
        self, secured: SecureStream, decide: Callable[[Connected], str | None]
    ) -> Connected:
        """Run the listener's side. `decide` is asked last, about an admitted peer, and may return a
        code that refuses it. Raises Refused, PathLost."""
        hello, early = await _read_hello(secured)
        peer = secured.tls.peer
        admitted, secret = self._judge(hello, secured)
        connected = Connected(secured, peer, hello, admitted, False, early)
        code = decide(connected)
        if code is not None:
            raise Refused(code)
        token = None
        if secret is not None:
            self.admission.used(secret)
            token = secret.prove("listener", _binding(secured, dialler=peer, listener=self._peer))
        tokens = () if token is None else (token,)
        secured.send(self._hello(secured, hello.incarnation if hello.resume else None, *tokens))
        self._tell(connected)
        return connected

    def _tell(self, connected: Connected) -> None:
        if connected.hello.observed is not None:
            self._guard.tell(connected.peer, self.observers, connected, end=connected.secured.close)

    def tell_refused(self, peer: PeerId, refused: Refused) -> None:
        """Report that a peer has refused to let this node in."""
        self._guard.tell(peer, self.refused, peer, refused)

    def _judge(self, hello: Hello, secured: SecureStream) -> tuple[Admitted, Secret | None]:
        if common_version(defaults.PROTOCOL_VERSIONS, hello.versions) is None:
            raise Refused("no-common-version")
        if hello.resume is not None:  # both incarnations and TLS prove a link that is up
            return Admitted("resumed"), None
        binding = _binding(secured, dialler=secured.tls.peer, listener=self._peer)
        judged = admit(self.admission, hello, binding)
        if isinstance(judged, str):
            raise Refused(judged)
        return judged

    async def introduce(self, secured: SecureStream, resume: bytes | None) -> Connected:
        """Run the dialler's side. `resume` names the peer's incarnation to resume a link.

        Raises Refused, PathLost."""
        peer = secured.tls.peer
        binding = _binding(secured, dialler=self._peer, listener=peer)
        secret = self.admission.secret
        tokens = []
        if secret is not None and resume is None:
            tokens = [each.prove("dialler", binding) for each in (secret, *self.admission.further)]
        secured.send(self._hello(secured, resume, *tokens))
        await secured.drain()
        hello, early = await _read_hello(secured)
        if common_version(defaults.PROTOCOL_VERSIONS, hello.versions) is None:
            raise Refused("no-common-version")
        if resume is not None:
            if hello.incarnation != resume or hello.resume != self._incarnation:
                raise Refused("peer-restarted")
            return self._connected(secured, hello, Admitted("resumed"), early)
        admitted = confirm(self.admission, hello, binding)
        if isinstance(admitted, str):
            raise Refused(admitted)
        return self._connected(secured, hello, admitted, early)

    def _connected(
        self, secured: SecureStream, hello: Hello, admitted: Admitted, early: bytes
    ) -> Connected:
        connected = Connected(secured, secured.tls.peer, hello, admitted, True, early)
        self._tell(connected)
        return connected

    async def refuse(self, secured: SecureStream, code: str) -> None:
        """Send the reason, wait a moment for the peer to hang up, and close."""
        with trio.move_on_after(defaults.REFUSAL_S), suppress(PathLost):
            words = self.admission.words(secured.tls.peer, code)
            secured.send(wire.encode(wire.GOAWAY, head=wire.encode_code(code, words)))
            await secured.drain()
            await secured.receive()
        secured.close()

    def _hello(self, secured: SecureStream, resume: bytes | None, *tokens: Token) -> bytes:
        hello = Hello(
            versions=defaults.PROTOCOL_VERSIONS,
            incarnation=self._incarnation,
            windows=self._windows,
            swarm=self.admission.swarm,
            resume=resume,
            port=self.port,
            udp_port=self.udp_port,
            observed=secured.address if secured.address[1] else None,
            token=tokens[0] if tokens else None,
            further=tokens[1:],
        )
        return wire.encode(wire.HELLO, head=hello.encode())


async def _read_hello(secured: SecureStream) -> tuple[Hello, bytes]:
    """Return the peer's first frame, at most HELLO_BYTES, and the bytes after it."""
    data = bytes(secured.early())
    try:
        while (found := wire.first_frame(data, defaults.HELLO_BYTES)) is None:
            piece = await secured.receive()
            if not piece:
                raise PathLost
            data += piece
        frame, rest = found
        if frame.kind == wire.GOAWAY:
            raise Refused(*wire.decode_code(frame.head))
        if frame.kind != wire.HELLO:
            raise Fault("bad-hello")
        return Hello.decode(frame.head), rest
    except Fault as fault:
        raise Refused(fault.code) from None


def _binding(secured: SecureStream, *, dialler: PeerId, listener: PeerId) -> Binding:
    return Binding(secured.tls.exporter(EXPORTER_LABEL, EXPORTER_BYTES), dialler, listener)
