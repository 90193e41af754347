"""What punching needs of the rest of the node, and nothing more."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..calls import Handler, Reply
from ..datagrams import Datagrams, Place
from ..host import Host
from ..identity import PeerId
from ..pipe import Pipe, Way
from ..udp.quic import QuicPipe
from .budget import Budget
from .candidates import Candidate, Seen
from .defaults import PunchLimits
from .predict import Nat

Socket = Datagrams | None
"""A socket of the UDP port: None is the port itself (of whichever IP version fits)."""

OnStun = Callable[[bytes, Place, Datagrams], None]
OnPipe = Callable[[Pipe, PeerId, bool, Way], None]
"""`on_pipe(pipe, peer, client, way)`: there is a way to `peer`, and this side is the TLS client on
it or not. Who answers there has still to prove that it is `peer`."""


class Udp(Protocol):
    """The node's UDP port."""

    def send(self, data: bytes, to: Place, socket: Socket = None) -> bool: ...

    def add(self, socket: Datagrams) -> None: ...

    def remove(self, socket: Datagrams) -> None: ...

    async def dial(self, place: Place, *, socket: Socket = None, timeout: float) -> QuicPipe: ...


class Serves(Protocol):
    """The endpoint: whose it is, on which TCP port it listens, and who answers its calls."""

    @property
    def peer(self) -> PeerId: ...

    @property
    def port(self) -> int: ...

    def handle(self, method: str, handler: Handler) -> None: ...


class Channel(Protocol):
    """The link over which both sides agree."""

    @property
    def peer(self) -> PeerId: ...

    async def call(
        self, method: str, header: Mapping[str, Any] = ..., payload: bytes = ..., *, timeout: float
    ) -> Reply: ...


@dataclass(frozen=True, slots=True)
class Own:
    """What this node knows of itself. `observers` are UDP places of peers that answer Binding
    requests, those at different IP addresses first; `seen_at` is when `candidates` were last true
    of the UDP port, on the host's clock."""

    nat: Nat
    candidates: Sequence[Candidate] = ()
    observers: Sequence[Place] = ()
    seen_at: float | None = None


class Knowledge(Protocol):
    """What the node knows; asked anew in each attempt."""

    def own(self, peer: PeerId) -> Own:
        """Of this node, for an attempt with `peer`."""
        ...

    def seen(self, peer: PeerId) -> Seen:
        """Of a peer, from others than itself."""
        ...

    def rtt(self, peer: PeerId) -> float | None:
        """The round trip of the link to a peer, in seconds, where it is known."""
        ...


@dataclass(frozen=True, slots=True)
class Tools:
    """What all attempts share. `bind` is the IP address that fresh sockets are bound to, `extra`
    are those that are open, `searching` names the attempts with a birthday search."""

    host: Host
    udp: Udp | None
    port: Callable[[], int]
    budget: Budget
    limits: PunchLimits
    on_pipe: OnPipe
    bind: str = "0.0.0.0"
    extra: set[Datagrams] = field(default_factory=set)
    searching: set[bytes] = field(default_factory=set)
