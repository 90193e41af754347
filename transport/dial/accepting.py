"""Listener's side of a link: turns accepted connections and incoming byte streams into links.

The first byte of a connection shows its protocol. 0x16 begins a TLS record, and so a lane. 0x13 is
the length of multistream's first line, and so begins a libp2p conversation (docs/spec/lane.md,
section 1). Strategies register an `Acceptor` for each further byte.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import trio

from .. import defaults
from ..bytestream import ByteStream, PathKind, TcpByteStream
from ..errors import DialFailed, TransportError
from ..handshake.certificate import Certificate
from ..handshake.meeting import Connected, HelloExchange, HelloRefused
from ..handshake.secured import PathLost, SecureStream
from ..handshake.tls import Tls
from ..identity import PeerId
from ..limits import Arrivals, CrowdEntry, HalfOpen
from ..link.link import Link
from ..link.links import Links
from ..link.shared import Shared
from ..networks import path_kind_to
from ..rates import Rate, RateLimiter

LANE_BYTE: Final = b"\x16"
_GONE = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, PathLost, TransportError)


@dataclass(frozen=True, slots=True)
class Acceptor:
    """Server of connections that begin with a certain byte. It must close each of them."""

    name: str
    """Name of the protocol."""
    serve: Callable[[trio.SocketStream, bytes], Awaitable[None]]
    """Serves an accepted connection. The second argument is the bytes already read from it."""
    serve_circuit: Callable[[ByteStream, bytes], Awaitable[object]] | None = None
    """Serves a circuit in the same way. None if the protocol is not used on circuits."""
    lasting: bool = False
    """Whether a connection may last longer than a handshake. The acceptor must then limit its
    connections itself. Otherwise they count as half open."""


class Accepting:
    """Acceptor of an endpoint's connections, which limits the number of half-open ones.

    A connection is half open until its peer is authenticated and its hello accepted.
    """

    def __init__(
        self,
        shared: Shared,
        certificate: Certificate,
        hellos: HelloExchange,
        links: Links,
    ) -> None:
        self.acceptors: dict[int, Acceptor] = {}
        """Servers of other protocols, by the first byte of their connections."""
        self.punched: Callable[[PeerId, str], bool] = lambda peer, ip: False
        """What `register_punched` has registered."""
        self.half_open = HalfOpen(shared.limits)
        self._host = shared.host
        self._guard = shared.guard
        self._limits = shared.limits
        self._certificate = certificate
        self._hellos = hellos
        self._links = links
        self._arrivals = Arrivals(shared.limits)

    def register_punched(self, punched: Callable[[PeerId, str], bool]) -> None:
        """Register `punched(peer, ip)`, which returns whether a TCP connection of that peer from
        that IP address results from hole punching.

        It replaces an earlier one. Without one, no accepted connection counts as punched.
        """
        self.punched = punched

    async def accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        """Accept connections until cancelled. Their links run in `nursery`."""
        rate = Rate(defaults.REFUSALS_BURST, defaults.REFUSALS_PER_S)
        refusals = RateLimiter(rate, self._host.now())
        while True:
            try:
                stream = await listener.accept()
                address = str(stream.socket.getpeername()[0])
            except OSError:  # no file descriptor is left, or the peer has hung up already
                await trio.sleep(defaults.ACCEPT_PAUSE_S)
                continue
            now = self._host.now()
            entry = self.let_in(address, now)
            if entry is None:
                stream.socket.close()
                pause = not refusals.take(now)  # a flood of refusals costs much CPU
            else:
                end = stream.socket.close
                self._guard.start(nursery, address, self._greet, stream, entry, nursery, end=end)
                del end
                pause = self.half_open.count > defaults.ACCEPT_BURST  # and so do handshakes
            del stream  # a reference would keep the socket open until the next connection
            if pause:
                await trio.sleep(defaults.ACCEPT_PAUSE_S)

    def let_in(self, address: str, now: float) -> CrowdEntry | None:
        """Count a connection as half open. Return None if a limit forbids it."""
        entry = self.half_open.enter(address, now)
        if entry is not None and not self._arrivals.allow(entry, now):
            self.half_open.leave(entry)
            return None
        return entry

    async def _greet(
        self, stream: trio.SocketStream, entry: CrowdEntry, nursery: trio.Nursery
    ) -> None:
        """Turn an accepted connection into a link, pass it to an acceptor, or close it."""
        connected: Connected | None = None
        lasting: Acceptor | None = None
        first = b""
        try:
            with trio.move_on_after(self._limits.handshake_s):
                first = await stream.receive_some(defaults.SMALL_READ_BYTES)
                if first[:1] == LANE_BYTE:
                    connected = await self._greet_lane(TcpByteStream(stream), first)
                elif first and (acceptor := self.acceptors.get(first[0])) is not None:
                    if acceptor.lasting:
                        lasting = acceptor
                    else:
                        await acceptor.serve(stream, first)
        except _GONE:
            pass
        finally:
            self.half_open.leave(entry)
            if connected is None and lasting is None:
                stream.socket.close()
        if connected is not None:
            path_kind = path_kind_to(connected.secured.address[0])
            if path_kind is PathKind.DIRECT and self.punched(
                connected.peer, connected.secured.address[0]
            ):
                path_kind = PathKind.PUNCHED
            self._links.take_up(connected, path_kind, nursery)
        elif lasting is not None:
            await lasting.serve(stream, first)

    async def _greet_lane(self, byte_stream: ByteStream, first: bytes) -> Connected | None:
        """Run TLS and the hello as the listener. Return None if the peer was refused."""
        secured = SecureStream(byte_stream, Tls(self._certificate, server=True, expect=None), first)
        await secured.handshake(hold=True)
        return await self._receive(secured)

    async def _receive(self, secured: SecureStream) -> Connected | None:
        """Run the listener's side of the hello. Return None if the peer was refused."""
        try:
            return await self._hellos.receive(secured, self._links.judge)
        except HelloRefused as refused:
            await self._hellos.refuse(secured, refused.code)
            return None

    async def join(
        self, secured: SecureStream, path_kind: PathKind, name: str, nursery: trio.Nursery
    ) -> Link:
        """Wait for the dialling peer's hello on a secured stream, and return the link to that peer.

        Raises DialFailed if the hello is not accepted, or does not arrive in time.
        """
        try:
            with trio.move_on_after(self._limits.handshake_s):
                connected = await self._receive(secured)
                if connected is not None:
                    self._links.take_up(connected, path_kind, nursery)
                    while (link := self._links.link(connected.peer)) is None:
                        await self._links.news.park()
                    return link
        except PathLost:
            secured.close()
        except BaseException:
            secured.close()
            raise
        raise DialFailed.unreachable(name, "its hello was not acceptable")
