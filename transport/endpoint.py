"""A node's one TCP port: accepts, dials, says hello, and keeps one link per peer.

The first byte of a connection tells what it is: 0x16 a TLS record, so a lane; 0x13 the
length of multistream's first line, so a libp2p program (docs/spec/lane.md, section 1).
"""

from collections.abc import Callable
from ipaddress import ip_address
from typing import Final

import trio

from . import defaults
from .address import Address
from .budget import Budget
from .calls import Handler
from .certificate import Certificate
from .errors import DialFailed, HostError, TransportError
from .hello import Admission
from .host import Host
from .identity import Identity, PeerId
from .libp2p import Libp2pResponder
from .limits import HalfOpen, Limits
from .link import Link
from .meeting import Connected, Door, Refused
from .path import Path, PathLost
from .pipe import TcpPipe
from .serving import Handlers, StreamHandler
from .tls import Tls

LANE_BYTE: Final = b"\x16"
MULTISTREAM_BYTE: Final = b"\x13"
_GONE = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, PathLost, TransportError)
# Codes of a failed resumption after which there is nothing to resume.
_FORGOTTEN = ("unknown-link", "peer-restarted")
_TRIES = 8  # addresses of one name that are dialled


class Endpoint:
    """Listens, dials and serves. Handlers are registered before or while it runs.

    A peer has one live link at most. `incarnation` is new with every Endpoint, so peers tell
    a restarted node from one whose connection broke.
    """

    def __init__(
        self,
        host: Host,
        identity: Identity,
        *,
        admission: Admission,
        limits: Limits | None = None,
        libp2p: bool = True,
    ) -> None:
        self.peer = identity.peer
        self.incarnation = host.entropy(defaults.INCARNATION_BYTES)
        self.port = 0
        self._host = host
        self._identity = identity
        self._limits = limits or Limits()
        self._certificate = Certificate.generate(identity, host)
        self._door = Door(identity.peer, self.incarnation, admission, self._limits)
        self._handlers = Handlers()
        self._budget = Budget(self._limits.total_bytes)
        self._half_open = HalfOpen(self._limits)
        self._links: dict[PeerId, Link] = {}
        self._proving: dict[PeerId, trio.Event] = {}  # dials whose TLS has proven the peer
        self._news = trio.lowlevel.ParkingLot()  # a link came up, or a dial ended
        self._up: list[Callable[[Link], None]] = []
        self._lost: list[Callable[[Link, str], None]] = []
        self._nursery: trio.Nursery | None = None
        self._libp2p = libp2p
        self._responder: Libp2pResponder | None = None

    # Registration.

    @property
    def admission(self) -> Admission:
        """Who is let in. May be replaced at any time; links that are up stay."""
        return self._door.admission

    @admission.setter
    def admission(self, admission: Admission) -> None:
        self._door.admission = admission

    def handle(self, method: str, handler: Handler) -> None:
        """Answer calls and posts of that name. A plain function runs inline and must not block."""
        self._handlers.add(method, handler)

    def handle_stream(self, method: str, handler: StreamHandler) -> None:
        """Serve streams of that name, each in a task of its own."""
        self._handlers.streams[method] = handler

    def on_link(self, callback: Callable[[Link], None]) -> None:
        """`callback(link)` for every link that comes up, whichever side dialled."""
        self._up.append(callback)

    def on_link_lost(self, callback: Callable[[Link, str], None]) -> None:
        """`callback(link, code)` once for every link that has ended for good."""
        self._lost.append(callback)

    def link(self, peer: PeerId) -> Link | None:
        """The live link to a peer."""
        link = self._links.get(peer)
        return link if link is not None and link.alive else None

    def links(self) -> list[Link]:
        """All live links."""
        return [link for link in self._links.values() if link.alive]

    # Running.

    async def run(
        self,
        listen: str,
        port: int,
        *,
        task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen on an IP address and serve until cancelled; started with the port.

        Raises AddressInUse and HostError before it has started. Cancelled, it tells every
        peer (`closed`).
        """
        listener = await self._host.listen(listen, port)
        try:
            self.port = self._door.port = int(listener.socket.getsockname()[1])
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._tick)
                task_status.started(self.port)
                await self._accept(listener, nursery)
        finally:
            self._nursery = None
            listener.socket.close()

    async def dial(self, address: Address, *, timeout: float) -> Link:
        """The link to who answers there; an existing one where it is live.

        Raises DialFailed: `unreachable`, `refused` (nothing listens), `timeout`, `wrong-peer`,
        `self`, `tls-failed`, `bad-certificate`, `bad-name`, or what the peer's hello said
        (`wrong-swarm`, `not-admitted`, `no-common-version`, `full`, …).
        """
        if self._nursery is None:
            raise DialFailed("not-running", "the endpoint is not running")
        if address.peer is not None and (link := self.link(address.peer)) is not None:
            await trio.lowlevel.checkpoint()
            return link
        with trio.move_on_after(timeout):
            return await self._dial(address, self._nursery)
        raise DialFailed("timeout", f"`{address}` did not answer within {timeout:g} s")

    # Accepting.

    async def _accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        while True:
            try:
                stream = await listener.accept()
                address = str(stream.socket.getpeername()[0])
            except OSError:  # no file descriptor left, or gone before it was looked at
                await trio.sleep(defaults.ACCEPT_PAUSE_S)
                continue
            subnet = self._half_open.enter(address)
            if subnet is None:
                stream.socket.close()
                continue
            nursery.start_soon(self._greet, stream, subnet)
            if self._half_open.count > defaults.ACCEPT_BURST:  # handshakes must not fill the loop
                await trio.sleep(defaults.ACCEPT_PAUSE_S)

    async def _greet(self, stream: trio.SocketStream, subnet: str) -> None:
        """From accept to a link, a libp2p conversation, or nothing."""
        connected: Connected | None = None
        first = b""
        try:
            with trio.move_on_after(self._limits.handshake_s):
                first = await stream.receive_some(defaults.SMALL_READ_BYTES)
                if first[:1] == LANE_BYTE:
                    connected = await self._greet_lane(stream, first)
        except _GONE:
            pass
        finally:
            self._half_open.leave(subnet)
            if connected is None and first[:1] != MULTISTREAM_BYTE:
                stream.socket.close()
        if connected is not None:
            self._take_up(connected)
        elif first[:1] == MULTISTREAM_BYTE:
            await self._serve_libp2p(stream, first)

    async def _greet_lane(self, stream: trio.SocketStream, first: bytes) -> Connected | None:
        path = Path(TcpPipe(stream), Tls(self._certificate, server=True, expect=None), first)
        await path.handshake()
        try:
            return await self._door.receive(path, self._decide)
        except Refused as refused:
            await self._door.refuse(path, refused.code)
            return None

    def _decide(self, connected: Connected) -> str | None:
        """The code that refuses an admitted peer, None where its link may come up.

        Both ends may have dialled at once. The smaller peer id decides, alone: it refuses while
        its own dial is proving the peer, or the link it dialled is up. A peer that dials
        anew where it had dialled before has lost that link, so the new one replaces it.
        """
        peer, hello = connected.peer, connected.hello
        link = self.link(peer)
        if hello.resume is not None:
            return None if self._resumes(link, connected) else "unknown-link"
        if peer == self.peer:
            return "self"
        if self.peer < peer and (peer in self._proving or self._dialled_and_up(link, connected)):
            return "duplicate"
        if link is None and len(self._links) >= self._limits.links:
            return "full"
        return None

    def _dialled_and_up(self, link: Link | None, connected: Connected) -> bool:
        return (
            link is not None
            and link.connected
            and link.identities.dialled
            and link.identities.peer_incarnation == connected.hello.incarnation
        )

    def _resumes(self, link: Link | None, connected: Connected) -> bool:
        return (
            link is not None
            and not link.identities.dialled
            and connected.hello.resume == self.incarnation
            and connected.hello.incarnation == link.identities.peer_incarnation
        )

    async def _serve_libp2p(self, stream: trio.SocketStream, first: bytes) -> None:
        if not self._libp2p:
            stream.socket.close()
            return
        if self._responder is None:
            self._responder = Libp2pResponder(
                self._host, self._identity, addresses=self._own_addresses
            )
        await self._responder.serve(stream, first)

    def _own_addresses(self) -> list[Address]:
        found = self._host.interfaces()
        return [Address(item.address, self.port, self.peer) for item in found]

    # Dialling.

    async def _dial(self, address: Address, nursery: trio.Nursery) -> Link:
        failure = DialFailed("unreachable", f"`{address}` has no IP address")
        for ip in await self._resolve(address):
            try:
                return await self._dial_ip(ip, address, nursery)
            except DialFailed as error:
                failure = error
        raise failure

    async def _resolve(self, address: Address) -> list[str]:
        if not _is_name(address.host):
            return [address.host]
        try:
            found = await self._host.resolve(address.host)
        except HostError as error:
            raise DialFailed("bad-name", error.message) from None
        version = {"dns4": 4, "dns6": 6}.get(address.dns)
        return [ip for ip in found if version in (None, ip_address(ip).version)][:_TRIES]

    async def _dial_ip(self, ip: str, address: Address, nursery: trio.Nursery) -> Link:
        path = await self._connect(ip, address.port, address.peer, str(address))
        peer = path.tls.peer
        try:
            if peer == self.peer:
                raise DialFailed("self", f"`{address}` is this node itself")
            while peer in self._proving:
                await self._proving[peer].wait()
            if (link := self.link(peer)) is not None:
                path.close()
                return link
            self._proving[peer] = trio.Event()
            try:
                connected = await self._door.introduce(path, None)
                link = self._register(connected, address.port)
            finally:
                self._proving.pop(peer).set()
        except Refused as refused:
            path.close()
            return await self._after_refusal(peer, refused, address)
        except BaseException as error:
            path.close()
            if isinstance(error, PathLost):
                raise _unreachable(str(address), "it hung up during the hello") from None
            raise
        await nursery.start(self._run_link, link, connected)
        return link

    async def _after_refusal(self, peer: PeerId, refused: Refused, address: Address) -> Link:
        if refused.code == "duplicate":  # the peer's own dial is the one that stays
            with trio.move_on_after(defaults.DUPLICATE_S):
                while (link := self.link(peer)) is None:
                    await self._news.park()
                return link
        raise DialFailed(refused.code, f"`{address}` refused us: {refused.words}")

    async def _connect(self, ip: str, port: int, expect: PeerId | None, name: str) -> Path:
        """TCP and TLS. Raises DialFailed."""
        try:
            stream = await self._host.connect(ip, port)
        except ConnectionRefusedError:
            raise DialFailed("refused", f"nothing listens at `{name}`") from None
        except OSError as error:
            raise _unreachable(name, error.strerror or str(error)) from None
        path = Path(TcpPipe(stream), Tls(self._certificate, server=False, expect=expect))
        try:
            await path.handshake()
        except PathLost:
            path.close()
            raise _unreachable(name, "it hung up during the handshake") from None
        except TransportError as error:
            path.close()
            raise DialFailed(error.code, f"`{name}`: {error.message}") from None
        except BaseException:
            path.close()
            raise
        return path

    # Links.

    async def _tick(self) -> None:
        """The one timer of all links."""
        while True:
            while not self._links:
                await self._news.park()
            now = self._host.now()
            for link in [link for link in self._links.values() if link.due <= now]:
                link.tick(now)
            await trio.sleep(defaults.TICK_S)

    def _take_up(self, connected: Connected) -> None:
        """An accepted connection becomes a link, or carries one again."""
        link = self.link(connected.peer)
        if connected.hello.resume is not None:
            if link is not None:
                link.attach(connected.path, connected.early)
            return
        new = self._register(connected, connected.hello.port)
        if self._nursery is not None:
            self._nursery.start_soon(self._run_link, new, connected)

    def _register(self, connected: Connected, port: int) -> Link:
        old = self._links.get(connected.peer)
        if old is not None:
            same = old.identities.peer_incarnation == connected.hello.incarnation
            old.close("replaced" if same else "peer-restarted")
        link = self._links[connected.peer] = Link(
            self._host,
            connected.lane(self._limits, self._host.now()),
            connected.identities(self.incarnation, port),
            limits=self._limits,
            handlers=self._handlers,
            budget=self._budget,
            rescue=self._rescue,
        )
        return link

    async def _run_link(
        self,
        link: Link,
        connected: Connected,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        def up() -> None:
            task_status.started()
            self._news.unpark_all()
            for callback in self._up:
                callback(link)

        try:
            await link.run(connected.path, connected.early, up)
        finally:
            if self._links.get(link.peer) is link:
                del self._links[link.peer]
            self._news.unpark_all()
            for callback in self._lost:
                callback(link, link.code or "closed")

    async def _rescue(self, link: Link) -> str | None:
        ip, port = link.address[0], link.identities.port
        if not link.identities.dialled:
            return await self._probe(ip, port)
        try:
            path = await self._connect(ip, port, link.peer, f"{ip} port {port}")
        except DialFailed as error:
            return "peer-gone" if error.code in ("refused", "wrong-peer") else None
        try:
            connected = await self._door.introduce(path, link.identities.peer_incarnation)
            link.attach(path, connected.early)
        except PathLost:
            path.close()
        except Refused as refused:
            path.close()
            return "peer-restarted" if refused.code in _FORGOTTEN else None
        except trio.Cancelled:
            path.close()
            raise
        return None

    async def _probe(self, ip: str, port: int) -> str | None:
        """The side that was dialled cannot resume; it looks whether the peer still listens."""
        if not port:
            await trio.sleep(defaults.PROBE_S)
            return None
        try:
            stream = await self._host.connect(ip, port)
        except ConnectionRefusedError:
            return "peer-gone"
        except OSError:
            return None
        stream.socket.close()
        await trio.sleep(defaults.PROBE_S)
        return None


def _unreachable(name: str, reason: str) -> DialFailed:
    return DialFailed("unreachable", f"`{name}` cannot be reached: {reason}")


def _is_name(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return True
    return False
