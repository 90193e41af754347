"""Interfaces of the node that hole punching needs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ...bytestream import ByteStream, PathKind
from ...host.datagrams import Datagrams, Place
from ...host.seam import Host
from ...identity import PeerId
from ...link.calls import Handler, Reply
from ...udp.quic import QuicByteStream
from .budget import Budget
from .candidates import Candidate, Seen
from .defaults import PunchLimits
from .predict import Nat

Socket = Datagrams | None
"""A socket of the UDP port. None is the port itself (of whichever IP version fits)."""

OnStun = Callable[[bytes, Place, Datagrams], None]
OnByteStream = Callable[[ByteStream, PeerId, bool, PathKind], None]
"""`on_pipe(pipe, peer, client, way)` receives a byte stream to `peer`. `client` says whether this
side is the TLS client on it. The other end is not authenticated yet."""


class Udp(Protocol):
    """The node's UDP port."""

    def send(self, data: bytes, to: Place, socket: Socket = None) -> bool: ...

    def add(self, socket: Datagrams) -> None: ...

    def remove(self, socket: Datagrams) -> None: ...

    async def dial(
        self, place: Place, *, socket: Socket = None, timeout: float
    ) -> QuicByteStream: ...


class Serves(Protocol):
    """The endpoint: its peer id, its TCP port, and registration of call handlers."""

    @property
    def peer(self) -> PeerId: ...

    @property
    def port(self) -> int: ...

    def handle(self, method: str, handler: Handler) -> None: ...


class Channel(Protocol):
    """The link over which both sides make their agreement."""

    @property
    def peer(self) -> PeerId: ...

    async def call(
        self,
        method: str,
        header: Mapping[str, object] = ...,
        payload: bytes = ...,
        *,
        timeout: float,
    ) -> Reply: ...


@dataclass(frozen=True, slots=True)
class Own:
    """State of this node for punching. `observers` are UDP addresses of peers that answer Binding
    requests, those at different IP addresses first. `seen_at` is when `candidates` last held for
    the UDP port, on the host's clock."""

    nat: Nat
    candidates: Sequence[Candidate] = ()
    observers: Sequence[Place] = ()
    seen_at: float | None = None


class Knowledge(Protocol):
    """State of the node and its peers, queried in each attempt."""

    def own(self, peer: PeerId) -> Own:
        """Return this node's state, for an attempt with `peer`."""
        ...

    def seen(self, peer: PeerId) -> Seen:
        """Return what others than the peer say about its addresses."""
        ...

    def rtt(self, peer: PeerId) -> float | None:
        """Return the round trip of the link to a peer in seconds, or None."""
        ...


@dataclass(frozen=True, slots=True)
class Tools:
    """Objects that all attempts share. Fresh sockets are bound to the IP address `bind`; `extra`
    holds the open ones. `searching` names the attempts with a birthday search."""

    host: Host
    udp: Udp | None
    port: Callable[[], int]
    budget: Budget
    limits: PunchLimits
    on_byte_stream: OnByteStream
    bind: str = "0.0.0.0"
    extra: set[Datagrams] = field(default_factory=set)
    searching: set[bytes] = field(default_factory=set)
