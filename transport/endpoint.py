"""A node's one TCP port: accepts, dials, says hello, and keeps one link per peer.

The first byte of a connection tells what it is: 0x16 a TLS record, so a lane; 0x13 the
length of multistream's first line, so a libp2p program (docs/spec/lane.md, section 1). Pipes of
other kinds (`Endpoint.join`) take the same way from TLS on.
"""

import errno
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from typing import Final

import trio

from . import defaults
from .address import Address
from .aim import Aim
from .browser.clear import BrowserSession, Clear
from .calls import Handler
from .certificate import Certificate
from .errors import DialFailed, HostError, TransportError
from .hello import Admission
from .host import Host
from .identity import Identity, PeerId
from .libp2p import Libp2pResponder
from .limits import Arrivals, HalfOpen, Limits
from .link import Link
from .links import Links
from .meeting import Connected, Door, Refused
from .path import Path, PathLost
from .pipe import Pipe, TcpPipe, Way
from .place import way_to
from .rates import Bucket, Rate
from .relay.book import RelayBook
from .rescue import Finder, Rescue
from .serving import StreamHandler
from .shaper import Shaper
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
    a restarted node from one whose connection broke. `finder` is asked for a path where a link
    has lost its last one and dialling again does not bring it back. `shaper` holds the owner's
    bandwidth caps; None: there are none.
    """

    def __init__(
        self,
        host: Host,
        identity: Identity,
        *,
        admission: Admission,
        limits: Limits | None = None,
        libp2p: bool = True,
        shaper: Shaper | None = None,
    ) -> None:
        self.peer = identity.peer
        self.incarnation = host.entropy(defaults.INCARNATION_BYTES)
        self.port = 0
        self.listening: list[tuple[str, int]] = []
        """IP addresses and ports that are listened on."""
        self._host = host
        self._limits = limits or Limits()
        self._certificate = Certificate.generate(identity, host)
        self._door = Door(identity.peer, self.incarnation, admission, self._limits)
        self._aim = Aim(host.now)
        self.shaper = shaper
        self.rescue = Rescue(host, self.reach, self._aim, self._limits.handshake_s)
        self._links = Links(
            host, identity.peer, self.incarnation, self._limits, self.rescue, shaper
        )
        self._half_open = HalfOpen(self._limits)
        self._arrivals = Arrivals(self._limits)
        self._nursery: trio.Nursery | None = None
        self.identity = identity
        self._published: set[str] = set()
        self.libp2p: Libp2pResponder | None = None
        """What answers libp2p programs; None where nothing does."""
        if libp2p:
            self.relay_for_libp2p(None)
        self.punched: Callable[[PeerId, str], bool] = lambda peer, ip: False
        """Whether a TCP connection from a peer at an IP address came through a hole of ours."""
        self._firsts: dict[int, Greeter] = {}
        self._admission_news = trio.lowlevel.ParkingLot()

    # Registration.

    @property
    def admission(self) -> Admission:
        """Who is let in. May be replaced at any time; links that are up stay."""
        return self._door.admission

    @admission.setter
    def admission(self, admission: Admission) -> None:
        self._door.admission = admission
        self._admission_news.unpark_all()

    async def admission_changed(self) -> None:
        """Wait until it is replaced."""
        await self._admission_news.park()

    def handle(self, method: str, handler: Handler) -> None:
        """Answer calls and posts of that name. A plain function runs inline and must not block."""
        self._links.handlers.add(method, handler)

    def publish(self, method: str) -> None:
        """Let libp2p programs, which are strangers all, call this method too. It must be handled
        by then, and cheap."""
        self._published.add(method)

    def relay_for_libp2p(self, book: RelayBook | None) -> None:
        """Answer libp2p programs from now on, and relay between them within the limits of a book.
        Before `run`."""
        self.libp2p = Libp2pResponder(
            self._host,
            self.identity,
            addresses=self._own_addresses,
            published=self._open_to_strangers,
            relay=book,
        )

    def handle_stream(self, method: str, handler: StreamHandler) -> None:
        """Serve streams of that name, each in a task of its own."""
        self._links.handlers.streams[method] = handler

    def handle_first_byte(self, byte: int, greeter: "Greeter") -> None:
        """Let `greeter(first bytes, stream)` have accepted connections that begin so; it closes
        the stream. It runs within the bounds of connections not let in yet."""
        self._firsts[byte] = greeter

    def on_link(self, callback: Callable[[Link], None]) -> None:
        """`callback(link)` for every link that comes up, whichever side dialled."""
        self._links.up.append(callback)

    def on_link_lost(self, callback: Callable[[Link, str], None]) -> None:
        """`callback(link, code)` once for every link that has ended for good."""
        self._links.lost.append(callback)

    def on_link_kept(self, callback: Callable[[Link], None]) -> None:
        """`callback(link)` when somebody here wants a link, whichever side dialled it, for longer
        than a few questions."""
        self._links.kept.append(callback)

    @contextmanager
    def briefly(self, peer: PeerId) -> Iterator[None]:
        """A link to this peer that is dialled meanwhile is for a few questions only: it is
        `brief` until somebody wants it for longer (`Link.keep`)."""
        self._links.briefly[peer] += 1
        try:
            yield
        finally:
            self._links.briefly[peer] -= 1
            self._links.briefly += Counter()  # forgets those at zero

    def on_link_quiet(self, callback: Callable[[Link], None]) -> None:
        """`callback(link)` when nothing carries a link and its peer has not been heard for
        `Limits.quiet_s`: nothing new should be sent there. It comes back or is lost."""
        self._links.quiet.append(callback)

    def on_link_back(self, callback: Callable[[Link], None]) -> None:
        """`callback(link)` when a link that was quiet has a path again."""
        self._links.back.append(callback)

    def hold_links(self, holder: Callable[[PeerId], bool]) -> None:
        """Where `holder(peer)`, somebody needs the link to that peer: without a path it is kept for
        as long as if calls were open on it (`Limits.hold_s`)."""
        self._links.holders.append(holder)

    def on_observed(self, callback: Callable[[Connected], None]) -> None:
        """`callback(connected)` for every hello that says where the peer sees this node."""
        self._door.observers.append(callback)

    def on_path(self, callback: "Callable[[Link, Way, str], None]") -> None:
        """`callback(link, way, medium)` for every path that comes to carry or stand by a link."""
        self._links.path.append(callback)

    def link(self, peer: PeerId) -> Link | None:
        """The live link to a peer."""
        return self._links.link(peer)

    def links(self) -> list[Link]:
        """All live links."""
        return self._links.all()

    @property
    def finder(self) -> Finder | None:
        """Asked for a path where a link has lost its last one."""
        return self.rescue.finder

    @finder.setter
    def finder(self, finder: Finder | None) -> None:
        self.rescue.finder = finder

    @property
    def udp_port(self) -> int:
        """The UDP port that hellos name, 0: none."""
        return self._door.udp_port

    @udp_port.setter
    def udp_port(self, port: int) -> None:
        self._door.udp_port = port

    # Running.

    async def run(
        self,
        listen: str,
        port: int,
        *,
        further: tuple[tuple[str, int], ...] = (),
        task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen on an IP address and serve until cancelled; started with the port.

        `further` are addresses and ports listened on as well where they can be had (port 0: the
        same port). Raises AddressInUse and HostError before it has started. Cancelled, it tells
        every peer (`closed`).
        """
        listeners = [await self._host.listen(listen, port)]
        try:
            self.port = self._door.port = int(listeners[0].socket.getsockname()[1])
            self.listening = [(listen, self.port)]
            for address, other in further:
                with suppress(HostError):
                    listeners.append(await self._host.listen(address, other or self.port))
                    self.listening.append((address, other or self.port))
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._links.tick)
                nursery.start_soon(self._links.run_alarm)
                nursery.start_soon(self._links.give_back)
                for listener in listeners:
                    nursery.start_soon(self._accept, listener, nursery)
                task_status.started(self.port)
        finally:
            self._nursery = None
            self.listening = []
            for listener in listeners:
                listener.socket.close()

    async def dial(self, address: Address, *, timeout: float, way: Way | None = None) -> Link:
        """The link to who answers there; an existing one where it is live.

        Raises DialFailed: `unreachable`, `refused` (nothing listens), `timeout`, `wrong-peer`,
        `self`, `tls-failed`, `bad-certificate`, `bad-name`, or what the peer's hello said
        (`wrong-swarm`, `not-admitted`, `no-common-version`, `full`, …).
        """
        link = None if address.peer is None else self.link(address.peer)
        if link is not None and link.connected:
            await trio.lowlevel.checkpoint()
        else:
            link = await self.reach(address, timeout=timeout, way=way)
        link.keep()
        return link

    async def ask(self, peer: PeerId, addresses: Sequence[Address], *, timeout: float) -> Link:
        """A link to a peer for a few questions (`Link.brief`), at one address after the other; an
        existing one where it is live. Raises DialFailed."""
        link = self.link(peer)
        if link is not None and link.connected:
            await trio.lowlevel.checkpoint()
            return link
        failure = DialFailed("unreachable", f"no address of `{peer}` is known")
        with self.briefly(peer):
            for address in addresses:
                try:
                    return await self.reach(replace(address, peer=peer), timeout=timeout)
                except DialFailed as error:
                    failure = error
        raise failure

    async def reach(self, address: Address, *, timeout: float, way: Way | None = None) -> Link:
        """As `dial`, but a live link gets a further path there. Raises DialFailed."""
        if self._nursery is None:
            raise DialFailed("not-running", "the endpoint is not running")
        if address.transport != "tcp" or address.relay is not None:
            raise DialFailed("not-tcp", f"`{address}` is not a TCP address: the ladder dials it")
        with trio.move_on_after(timeout):
            return await self._dial(address, way)
        raise DialFailed("timeout", f"`{address}` did not answer within {timeout:g} s")

    async def join(
        self, pipe: Pipe, way: Way, *, expect: PeerId | None, server: bool, name: str = ""
    ) -> Link:
        """Prove who is at the other end of a pipe, and let it carry the link to that peer: a
        new one, or beside what the one that is there has. Raises DialFailed; the pipe is
        closed then. The two ends take different sides (`server`); a TCP connection that both
        opened at once finds its sides by itself."""
        if self._nursery is None:
            pipe.close()
            raise DialFailed("not-running", "the endpoint is not running")
        name = name or f"{pipe.remote[0]} port {pipe.remote[1]}"
        first = b""
        if server and pipe.medium == "circuit":  # a libp2p program may come that way as well
            first = await self._first_of(pipe, name)
            if first[:1] == MULTISTREAM_BYTE and self.libp2p is not None:
                serve = partial(self.libp2p.serve_pipe, pipe, first, relayed=True)
                self._nursery.start_soon(serve)  # for longer than whoever joins it waits
                raise DialFailed("libp2p", f"`{name}` was a libp2p program")
        path = await self._secure(pipe, expect, name, server=server, first=first)
        if path.tls.server:
            return await self._join_as_server(path, way, name)
        return await self._introduce(path, way, pipe.remote[1], name)

    async def join_proven(self, session: BrowserSession) -> Link:
        """The same for a browser's channel, whose other end has proven itself already; this
        side is the listener. Raises DialFailed."""
        if self._nursery is None:
            session.pipe.close()
            raise DialFailed("not-running", "the endpoint is not running")
        path = Path(session.pipe, Clear(session))
        return await self._join_as_server(path, Way.BROWSER, f"browser {session.peer}")

    # Accepting.

    async def _accept(self, listener: trio.SocketListener, nursery: trio.Nursery) -> None:
        rate = Rate(defaults.REFUSALS_BURST, defaults.REFUSALS_PER_S)
        refusals = Bucket(rate, self._host.now())
        while True:
            try:
                stream = await listener.accept()
                address = str(stream.socket.getpeername()[0])
            except OSError:  # no file descriptor left, or gone before it was looked at
                await trio.sleep(defaults.ACCEPT_PAUSE_S)
                continue
            now = self._host.now()
            subnet = self._let_in(address, now)
            if subnet is None:
                stream.socket.close()
                pause = not refusals.take(now)  # they cost little, and a flood is many
            else:
                nursery.start_soon(self._greet, stream, subnet)
                pause = self._half_open.count > defaults.ACCEPT_BURST  # nor must handshakes
            del stream  # or it stays until the next one comes
            if pause:
                await trio.sleep(defaults.ACCEPT_PAUSE_S)

    def _let_in(self, address: str, now: float) -> str | None:
        """The subnet for which it counts as half open; None where it is one too many."""
        subnet = self._half_open.enter(address)
        if subnet is not None and not self._arrivals.allow(subnet, now):
            self._half_open.leave(subnet)
            return None
        return subnet

    async def _greet(self, stream: trio.SocketStream, subnet: str) -> None:
        """From accept to a link, a libp2p conversation, or nothing."""
        connected: Connected | None = None
        first = b""
        try:
            with trio.move_on_after(self._limits.handshake_s):
                first = await stream.receive_some(defaults.SMALL_READ_BYTES)
                if first[:1] == LANE_BYTE:
                    connected = await self._greet_lane(TcpPipe(stream), first)
                elif first and first[0] in self._firsts:
                    await self._firsts[first[0]](first, stream)
        except _GONE:
            pass
        finally:
            self._half_open.leave(subnet)
            if connected is None and first[:1] != MULTISTREAM_BYTE:
                stream.socket.close()
        if connected is not None and self._nursery is not None:
            way = way_to(connected.path.address[0])
            if way is Way.DIRECT and self.punched(connected.peer, connected.path.address[0]):
                way = Way.PUNCHED
            self._links.take_up(connected, way, self._nursery)
        elif first[:1] == MULTISTREAM_BYTE:
            await self._serve_libp2p(stream, first)

    async def _greet_lane(self, pipe: Pipe, first: bytes) -> Connected | None:
        path = Path(pipe, Tls(self._certificate, server=True, expect=None), first)
        await path.handshake()
        return await self._receive(path)

    async def _receive(self, path: Path) -> Connected | None:
        """The listener's side of the hello; None where the peer was refused."""
        try:
            return await self._door.receive(path, self._links.refusal)
        except Refused as refused:
            await self._door.refuse(path, refused.code)
            return None

    async def _join_as_server(self, path: Path, way: Way, name: str) -> Link:
        assert self._nursery is not None
        try:
            with trio.move_on_after(self._limits.handshake_s):
                connected = await self._receive(path)
                if connected is not None:
                    self._links.take_up(connected, way, self._nursery)
                    while (link := self.link(connected.peer)) is None:
                        await self._links.news.park()
                    return link
        except PathLost:
            path.close()
        except BaseException:
            path.close()
            raise
        raise _unreachable(name, "its hello was not acceptable")

    async def _serve_libp2p(self, stream: trio.SocketStream, first: bytes) -> None:
        if self.libp2p is None:
            stream.socket.close()
        else:
            await self.libp2p.serve(stream, first)

    def _open_to_strangers(self) -> dict[str, Handler]:
        calls = self._links.handlers.calls
        return {method: calls[method][0] for method in self._published if method in calls}

    def _own_addresses(self) -> list[Address]:
        found = self._host.interfaces()
        return [Address(item.address, self.port, self.peer) for item in found]

    # Dialling.

    async def _dial(self, address: Address, way: Way | None) -> Link:
        failure = DialFailed("unreachable", f"`{address}` has no IP address")
        for ip in await self._resolve(address):
            try:
                return await self._dial_ip(ip, address, way)
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

    async def _dial_ip(self, ip: str, address: Address, way: Way | None) -> Link:
        name = str(address)
        try:
            pipe = TcpPipe(await self._connect(ip, address.port))
        except ConnectionRefusedError:
            raise DialFailed("refused", f"nothing listens at `{name}`") from None
        except OSError as error:
            raise _unreachable(name, error.strerror or str(error)) from None
        return await self.join(
            pipe, way or way_to(ip), expect=address.peer, server=False, name=name
        )

    async def _connect(self, ip: str, port: int) -> trio.SocketStream:
        """From the listen port, so that others see where this node can be dialled; from any
        where a connection between the two ports is there already. Raises OSError."""
        try:
            return await self._host.connect(ip, port, source_port=self.port)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EADDRINUSE, errno.EINVAL):
                raise
        return await self._host.connect(ip, port)

    async def _introduce(self, path: Path, way: Way, port: int, name: str) -> Link:
        """The dialler's side of the hello, on a proven path."""
        peer = path.tls.peer
        try:
            if peer == self.peer:
                raise DialFailed("self", f"`{name}` is this node itself")
            if (known := self.link(peer)) is not None:
                return await self._carry_on(known, path, way)
            proving = await self._links.prove_alone(peer)
            try:
                if (known := self.link(peer)) is not None:
                    return await self._carry_on(known, path, way)
                connected = await self._say_hello(path, name)
                link = self._links.register(connected, port)
            finally:
                proving.done()
        except Refused as refused:
            path.close()
            return await self._after_refusal(peer, refused, name)
        except BaseException as error:
            path.close()
            if isinstance(error, PathLost):
                raise _unreachable(name, "it hung up during the hello") from None
            raise
        assert self._nursery is not None
        await self._nursery.start(self._links.run, link, connected, way)
        return link

    async def _say_hello(self, path: Path, name: str) -> Connected:
        """Before others that dial the same peer have lost their patience: they wait."""
        with trio.move_on_after(defaults.HELLO_S):
            return await self._door.introduce(path, None)
        raise DialFailed("timeout", f"`{name}` did not answer our hello")

    async def _carry_on(self, link: Link, path: Path, way: Way) -> Link:
        """A further connection of a link. Another one may come up meanwhile: no dial waits for
        another here, or one that hangs would hold up those that work."""
        connected = await self._door.introduce(path, link.identities.peer_incarnation)
        if not self._links.add(connected, way, link):
            raise DialFailed("closed", f"the link to `{link.peer}` has ended meanwhile")
        return link

    async def _after_refusal(self, peer: PeerId, refused: Refused, name: str) -> Link:
        if refused.code == "duplicate":  # the peer's own dial is the one that stays
            with trio.move_on_after(defaults.DUPLICATE_S):
                while (link := self.link(peer)) is None:
                    await self._links.news.park()
                return link
        if refused.code in _FORGOTTEN and (link := self.link(peer)) is not None:
            link.close("peer-restarted")
        raise DialFailed(refused.code, f"`{name}` refused us: {refused.words}")

    async def _first_of(self, pipe: Pipe, name: str) -> bytes:
        """The first bytes of a pipe. Raises DialFailed."""
        try:
            while True:
                await pipe.wait_readable()
                with suppress(BlockingIOError):
                    return pipe.read_ready(defaults.SMALL_READ_BYTES)
        except (OSError, trio.ClosedResourceError):
            pipe.close()
            raise _unreachable(name, "it hung up") from None
        except BaseException:
            pipe.close()
            raise

    async def _secure(
        self,
        pipe: Pipe,
        expect: PeerId | None,
        name: str,
        *,
        server: bool,
        first: bytes = b"",
    ) -> Path:
        """TLS over a pipe. Raises DialFailed."""
        path = Path(
            pipe,
            Tls(self._certificate, server=server, expect=expect),
            first,
            turn=lambda: Tls(self._certificate, server=True, expect=expect),
        )
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


Greeter = Callable[[bytes, trio.SocketStream], Awaitable[None]]


def _unreachable(name: str, reason: str) -> DialFailed:
    return DialFailed("unreachable", f"`{name}` cannot be reached: {reason}")


def _is_name(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return True
    return False
