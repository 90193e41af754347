"""Exchange of hellos on an authenticated connection (docs/spec/lane.md, section 3).

The dialler sends its hello first, with a proof that it may be let in. The listener replies with its
own hello, or sends a code and closes the connection.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import trio

from .. import defaults
from ..guard import Guard
from ..identity import PeerId
from ..lane import frame as wire
from ..lane.events import GrantedLimits
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
    HelloToken,
    Secret,
    admit,
    common_version,
    confirm,
)
from .secured import PathLost, SecureStream


class HelloRefused(Exception):
    """The exchange of hellos has failed.

    `code` is the reason, found by this node or sent by the peer. `words` is the message that the
    peer sent with its code; if there is none, it equals `code`.
    """

    def __init__(self, code: str, words: str = "") -> None:
        super().__init__(code)
        self.code = code
        self.words = words or code


@dataclass(frozen=True, slots=True)
class Identities:
    """The identities at both ends of a link, and how the link was made.

    `incarnation` is this node's. `dialled` says whether this side dialled. `admitted` is the rule
    by which the dialler was let in.
    """

    peer: PeerId
    incarnation: bytes
    peer_incarnation: bytes
    dialled: bool
    admitted: Admitted
    port: int = 0  # the port on which the peer listens, or at which it was dialled
    udp_port: int = 0  # the peer's UDP port; 0 if it has none


@dataclass(frozen=True, slots=True)
class Connected:
    """A connection after the exchange of hellos.

    `hello` is the peer's. `early` is plaintext that has arrived after the peer's hello.
    """

    secured: SecureStream
    peer: PeerId
    hello: Hello
    admitted: Admitted
    dialled: bool
    early: bytes

    def lane(self, limits: Limits, now: float) -> Lane:
        """Create the lane of a new link over this connection."""
        return Lane(dialled=self.dialled, limits=limits, remote=self.hello.windows, now=now)

    def identities(self, incarnation: bytes, port: int) -> Identities:
        """Return the identities at both ends of the new link. `incarnation` is this node's."""
        return Identities(
            self.peer,
            incarnation,
            self.hello.incarnation,
            self.dialled,
            self.admitted,
            port,
            self.hello.udp_port,
        )


class HelloExchange:
    """Exchange of hellos for one node: sends this node's hello and checks the peer's.

    `port` and `udp_port` are the listening ports that this node's hellos name; 0 for none.
    """

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
        self.refused: list[Callable[[PeerId, HelloRefused], None]] = []
        """Callbacks that are called when a peer refuses to let this node in."""
        self._peer = peer
        self._incarnation = incarnation
        self._guard = guard
        self._windows = GrantedLimits(
            limits.stream_window_bytes, limits.link_window_bytes, limits.streams
        )

    async def receive(
        self, secured: SecureStream, decide: Callable[[Connected], Awaitable[str | None]]
    ) -> Connected:
        """Run the listener's side of the exchange.

        `decide` is called last, with a peer that passes admission. It may return a code that
        refuses that peer. Raises HelloRefused if the peer is refused, and PathLost if the
        connection breaks.
        """
        hello, early = await _read_hello(secured)
        peer = secured.tls.peer
        admitted, secret = self._judge(hello, secured)
        connected = Connected(secured, peer, hello, admitted, False, early)
        code = await decide(connected)
        if code is not None:
            raise HelloRefused(code)
        token = None
        if secret is not None:
            self.admission.used(secret)
            token = secret.prove("listener", _binding(secured, dialler=peer, listener=self._peer))
        tokens = () if token is None else (token,)
        secured.send(self._hello(secured, hello.incarnation if hello.resume else None, *tokens))
        self._tell(connected)
        return connected

    def _tell(self, connected: Connected) -> None:
        """Report a connection whose hello names the address at which the peer sees this node."""
        if connected.hello.observed is not None:
            self._guard.tell(connected.peer, self.observers, connected, end=connected.secured.close)

    def tell_refused(self, peer: PeerId, refused: HelloRefused) -> None:
        """Report that a peer has refused to let this node in."""
        self._guard.tell(peer, self.refused, peer, refused)

    def _judge(self, hello: Hello, secured: SecureStream) -> tuple[Admitted, Secret | None]:
        """Check the dialler's hello. Return (rule by which the peer is let in, secret that it has
        proven).

        The secret is None if none was needed. Raises HelloRefused if the peer is not let in.
        """
        if common_version(defaults.PROTOCOL_VERSIONS, hello.versions) is None:
            raise HelloRefused("no-common-version")
        if hello.resume is not None:  # TLS and both incarnations prove that the link exists
            return Admitted("resumed"), None
        binding = _binding(secured, dialler=secured.tls.peer, listener=self._peer)
        judged = admit(self.admission, hello, binding)
        if isinstance(judged, str):
            raise HelloRefused(judged)
        return judged

    async def introduce(self, secured: SecureStream, resume: bytes | None) -> Connected:
        """Run the dialler's side of the exchange.

        To add a path to a link, pass the peer's incarnation as `resume`; None makes a new link.
        Raises HelloRefused if either side refuses the other, and PathLost if the connection breaks.
        """
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
            raise HelloRefused("no-common-version")
        if resume is not None:
            if hello.incarnation != resume or hello.resume != self._incarnation:
                raise HelloRefused("peer-restarted")
            return self._connected(secured, hello, Admitted("resumed"), early)
        admitted = confirm(self.admission, hello, binding)
        if isinstance(admitted, str):
            raise HelloRefused(admitted)
        return self._connected(secured, hello, admitted, early)

    def _connected(
        self, secured: SecureStream, hello: Hello, admitted: Admitted, early: bytes
    ) -> Connected:
        """Create the result of the dialler's side, and report it."""
        connected = Connected(secured, secured.tls.peer, hello, admitted, True, early)
        self._tell(connected)
        return connected

    async def refuse(self, secured: SecureStream, code: str) -> None:
        """Send a code and its message to the peer, wait a moment for the peer to close, and
        close."""
        with trio.move_on_after(defaults.REFUSAL_S), suppress(PathLost):
            words = self.admission.words(secured.tls.peer, code)
            secured.send(wire.encode(wire.GOAWAY, head=wire.encode_code(code, words)))
            await secured.drain()
            await secured.receive()
        secured.close()

    def _hello(self, secured: SecureStream, resume: bytes | None, *tokens: HelloToken) -> bytes:
        """Encode this node's hello. The first of the `tokens` proves the current secret."""
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
    """Receive the peer's hello. Return (hello, bytes that have arrived after it).

    Raises HelloRefused if the first frame is a refusal, is malformed, or exceeds HELLO_BYTES.
    """
    data = bytes(secured.early())
    try:
        while (found := wire.first_frame(data, defaults.HELLO_BYTES)) is None:
            piece = await secured.receive()
            if not piece:
                raise PathLost
            data += piece
        frame, rest = found
        if frame.kind == wire.GOAWAY:
            raise HelloRefused(*wire.decode_code(frame.head))
        if frame.kind != wire.HELLO:
            raise Fault("bad-hello")
        return Hello.decode(frame.head), rest
    except Fault as fault:
        raise HelloRefused(fault.code) from None


def _binding(secured: SecureStream, *, dialler: PeerId, listener: PeerId) -> Binding:
    """Return the values that tie a proof to this connection."""
    return Binding(secured.tls.exporter(EXPORTER_LABEL, EXPORTER_BYTES), dialler, listener)
