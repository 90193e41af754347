"""Interfaces of the other parts of the node that hole punching needs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ...bytestream import ByteStream, PathKind
from ...host.datagrams import Datagrams, Place
from ...host.seam import Host
from ...identity import PeerId
from ...link.calls import Handler, Reply
from ...udp.quic import QuicByteStream
from .budget import PunchBudget
from .candidates import Candidate, SeenAddresses
from .defaults import PunchLimits
from .predict import NatProfile

Socket = Datagrams | None
"""A socket for UDP. None stands for the node's UDP port, which has a socket for each IP version."""

OnStun = Callable[[bytes, Place, Datagrams], None]
"""`on_stun(data, source, socket)` receives a datagram that looks like STUN."""
OnByteStream = Callable[[ByteStream, PeerId, bool, PathKind], None]
"""`on_byte_stream(stream, peer, client, path_kind)` receives a new byte stream, probably to `peer`:
the other end is not authenticated yet. `client` says whether this side is the TLS client on it."""


class Udp(Protocol):
    """Interface of the node's UDP port. See `transport/udp/port.py` for the methods."""

    def send(self, data: bytes, to: Place, socket: Socket = None) -> bool: ...

    def add(self, socket: Datagrams) -> None: ...

    def remove(self, socket: Datagrams) -> None: ...

    async def dial(
        self, place: Place, *, socket: Socket = None, timeout: float
    ) -> QuicByteStream: ...


class Serves(Protocol):
    """Interface of the endpoint: its peer id, its TCP port, and registration of call handlers."""

    @property
    def peer(self) -> PeerId: ...

    @property
    def port(self) -> int: ...

    def handle(self, method: str, handler: Handler) -> None: ...


class PunchChannel(Protocol):
    """Interface of the link over which the two sides exchange offers."""

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
class OwnNat:
    """State of this node before an attempt: its NAT, its addresses, and its observers."""

    nat: NatProfile
    candidates: Sequence[Candidate] = ()
    observers: Sequence[Place] = ()
    """UDP addresses of peers that answer Binding requests."""
    seen_at: float | None = None
    """When observers last saw the UDP port at the address in `candidates`, in seconds on the host's
    clock. None if they have not, or if the address may have changed since."""


class Knowledge(Protocol):
    """Interface to the state of the node and its peers. Each attempt queries the latest state."""

    def own(self, peer: PeerId) -> OwnNat:
        """Return the state of this node, for an attempt with `peer`."""
        ...

    def seen(self, peer: PeerId) -> SeenAddresses:
        """Return the IP addresses of a peer that are known from others than the peer itself."""
        ...

    def rtt(self, peer: PeerId) -> float | None:
        """Return the round trip of the link to a peer in seconds; None if there is no such link."""
        ...


@dataclass(frozen=True, slots=True)
class Tools:
    """Objects that all attempts share."""

    host: Host
    udp: Udp | None
    port: Callable[[], int]  # returns the node's TCP port
    budget: PunchBudget
    limits: PunchLimits
    on_byte_stream: OnByteStream
    bind: str = "0.0.0.0"  # IP address to which extra sockets are bound
    extra: set[Datagrams] = field(default_factory=set)  # the open extra sockets
    searching: set[bytes] = field(default_factory=set)
    """Names of the attempts that have reserved or begun a birthday search."""
