"""A node's TCP port: accepts and dials connections, exchanges hellos, and has one link per peer.

Byte streams that are not TCP enter by `Endpoint.join`. From TLS on, all are treated alike.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial

import trio

from .. import defaults
from ..address import Address
from ..bytestream import ByteStream, PathKind
from ..errors import MISHAP, DialFailed, HostError
from ..guard import Guard, Mishap, mishap_of
from ..handshake.certificate import Certificate
from ..handshake.hello import Admission
from ..handshake.meeting import Connected, HelloExchange
from ..handshake.secured import SecureStream, first_bytes, secure
from ..host.seam import Host
from ..identity import Identity, PeerId
from ..lane.shaper import Shaper
from ..limits import Limits
from ..link.calls import Handler
from ..link.link import Link
from ..link.links import Links
from ..link.serving import StreamHandler
from ..link.shared import Shared
from ..networks import path_kind_to
from ..rates import MemoryBudget
from .accepting import Accepting, Acceptor
from .aim import FailedDialLimiter
from .introducing import Introducing
from .rescue import Rescue
from .tcp import connect, resolve


class Endpoint:
    """Listener, dialer and server of one node. Handlers may be registered before it runs or later.

    A peer has at most one live link. `incarnation` is a random value of each Endpoint. With it a
    peer distinguishes a node that has restarted from one whose connection broke. `shaper`
    enforces the owner's bandwidth caps; None if there are none. `report` is that of the `Guard`.
    """

    def __init__(
        self,
        host: Host,
        identity: Identity,
        *,
        admission: Admission,
        limits: Limits | None = None,
        shaper: Shaper | None = None,
        report: Callable[[Mishap], None] | None = None,
    ) -> None:
        self.peer = identity.peer
        self.incarnation = host.entropy(defaults.INCARNATION_BYTES)
        self.guard = Guard(report, self._hang_up)
        """Guard around all code that handles one peer."""
        self.port = 0
        self.listening: list[tuple[str, int]] = []
        """IP addresses and ports on which this node listens."""
        self.identity = identity
        self.aim = FailedDialLimiter(host.now)
        """Limits dials to addresses that peers named."""
        self.shaper = shaper
        limits = limits or Limits()
        self.rescue = Rescue(host, self.reach, limits.handshake_s)
        self._host = host
        self._certificate = Certificate.generate(identity, host)
        self._hellos = HelloExchange(identity.peer, self.incarnation, admission, limits, self.guard)
        shared = Shared(host, limits, MemoryBudget(limits.total_bytes), self.guard, shaper=shaper)
        self._links = Links(identity.peer, self.incarnation, shared, self.rescue)
        self.accepting = Accepting(shared, self._certificate, self._hellos, self._links)
        """What takes connections that others have opened."""
        self._introducing = Introducing(identity.peer, self._hellos, self._links)
        self._nursery: trio.Nursery | None = None
        self._admission_news = trio.lowlevel.ParkingLot()
        self.on_path(self._has_answered)

    # Registration.

    @property
    def admission(self) -> Admission:
        """The rule that decides which peers are let in."""
        return self._hellos.admission

    def admit_by(self, admission: Admission) -> None:
        """Replace the rule that decides which peers are let in. Existing links stay."""
        self._hellos.admission = admission
        self._admission_news.unpark_all()

    async def admission_changed(self) -> None:
        """Wait until `admission` is replaced."""
        await self._admission_news.park()

    def handle(self, method: str, handler: Handler) -> None:
        """Register the handler of calls and posts with the name `method`.

        A plain function runs inline in the link's reader and must not block.
        """
        self._links.handlers.add(method, handler)

    def handle_stream(self, method: str, handler: StreamHandler) -> None:
        """Register the handler of streams with the name `method`. Each stream gets a task of its
        own."""
        self._links.handlers.streams[method] = handler

    def handler(self, method: str) -> Handler | None:
        """Return the handler of calls and posts with the name `method`, or None if there is
        none."""
        found = self._links.handlers.calls.get(method)
        return found[0] if found is not None else None

    def accept(self, byte: int, acceptor: Acceptor) -> None:
        """Register the acceptor of incoming connections that begin with `byte`. They carry no
        lane."""
        self.accepting.acceptors[byte] = acceptor

    def on_link(self, callback: Callable[[Link], None]) -> None:
        """Register `callback(link)`, called for every new link, whichever side dialled."""
        self._links.listeners.up.append(callback)

    def on_link_lost(self, callback: Callable[[Link, str], None]) -> None:
        """Register `callback(link, code)`, called once for every link that has ended."""
        self._links.listeners.lost.append(callback)

    def on_refused(self, callback: Callable[[PeerId, str, str], None]) -> None:
        """Register `callback(peer, code, message)`, called when a peer refuses to let this node
        in."""
        self._hellos.refused.append(
            lambda peer, refused: callback(peer, refused.code, refused.words)
        )

    def on_link_lasting(self, callback: Callable[[Link], None]) -> None:
        """Register `callback(link)`, called once for each link that a component wants to keep for
        longer than a few questions (`Link.keep`), whichever side dialled."""
        self._links.listeners.lasting.append(callback)

    def on_much_traffic(self, callback: Callable[[Link], None]) -> None:
        """Register `callback(link)`, called every second or so while a link with a long round trip
        carries at least `LONG_RATE` bytes per second."""
        self._links.listeners.much.append(callback)

    @contextmanager
    def briefly(self, peer: PeerId) -> Iterator[None]:
        """Open a context in which a new link to this peer is dialled for a few questions only.

        Such a link is `brief` until a component wants it for longer (`Link.keep`).
        """
        self._links.briefly[peer] += 1
        try:
            yield
        finally:
            self._links.briefly[peer] -= 1
            self._links.briefly += Counter()  # drops the entries at zero

    def on_link_quiet(self, callback: Callable[[Link], None]) -> None:
        """Register `callback(link)`, called when a link has no path and its peer has been silent.

        The silence has then lasted `Limits.quiet_s` seconds. Nothing new should be sent to the peer
        until the link is back or lost.
        """
        self._links.listeners.quiet.append(callback)

    def on_link_back(self, callback: Callable[[Link], None]) -> None:
        """Register `callback(link)`, called when a quiet link has a path again."""
        self._links.listeners.back.append(callback)

    def on_link_doubt(self, callback: Callable[[Link, bool], None]) -> None:
        """Register `callback(link, doubtful)`, called when the search for a path begins or ends.

        `doubtful` is True if a search has begun because the link has lost its path, or may have. It
        is False if the search has ended and the link continues.
        """
        self._links.listeners.doubt.append(callback)

    def hold_links(self, holder: Callable[[PeerId], bool]) -> None:
        """Register `holder(peer)`, which returns whether a component needs the link to that peer.

        A link that is needed survives without a path as long as one with open calls
        (`Limits.hold_s`).
        """
        self._links.listeners.holders.append(holder)

    def watch_links(self, watcher: Callable[[PeerId], bool]) -> None:
        """Register `watcher(peer)`. While it returns True, the link to that peer is pinged at the
        usual rate in spite of `Link.rest`.

        This is for components that wait for a peer without an open call, and must notice its
        silence without delay.
        """
        self._links.listeners.watchers.append(watcher)

    def on_observed(self, callback: Callable[[Connected], None]) -> None:
        """Register `callback(connected)`, called when a hello names the address at which this node
        is seen."""
        self._hellos.observers.append(callback)

    def on_path(self, callback: "Callable[[Link, PathKind, str], None]") -> None:
        """Register `callback(link, path_kind, medium)`, called for every new path of a link."""
        self._links.listeners.path.append(callback)

    def link(self, peer: PeerId) -> Link | None:
        """Return the live link to a peer, or None if there is none."""
        return self._links.link(peer)

    def links(self) -> list[Link]:
        """Return all live links."""
        return self._links.all()

    @property
    def udp_port(self) -> int:
        """The UDP port that this node's hellos name; 0 means none."""
        return self._hellos.udp_port

    @udp_port.setter
    def udp_port(self, port: int) -> None:
        self._hellos.udp_port = port

    # Running.

    async def run(
        self,
        listen: str,
        port: int,
        *,
        further: tuple[tuple[str, int], ...] = (),
        task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen on an IP address and serve until cancelled. The value of `task_status` is the
        port.

        `further` are more addresses and ports to listen on, if possible; port 0 stands for the main
        port. Raises AddressInUse or HostError if the main port cannot be opened. When this is
        cancelled, all peers are told (`closed`).
        """
        listeners = [await self._host.listen(listen, port)]
        try:
            self.port = self._hellos.port = int(listeners[0].socket.getsockname()[1])
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
                    nursery.start_soon(self.accepting.accept, listener, nursery)
                task_status.started(self.port)
        finally:
            self._nursery = None
            self.listening = []
            for listener in listeners:
                listener.socket.close()

    async def listen_too(self, address: str, port: int) -> trio.CancelScope:
        """Listen on a further address and port, and return the scope that ends this when cancelled.

        Raises HostError if that is not possible.
        """
        listener, scope = await self._host.listen(address, port), trio.CancelScope()
        if self._nursery is None:
            listener.socket.close()
            raise HostError("the endpoint is not running")
        self.listening.append((address, port))
        self._nursery.start_soon(self._serve_too, listener, (address, port), scope)
        return scope

    async def _serve_too(
        self, listener: trio.SocketListener, place: tuple[str, int], scope: trio.CancelScope
    ) -> None:
        """Accept connections of a further listener until its scope is cancelled."""
        try:
            with scope:
                if self._nursery is not None:
                    await self.accepting.accept(listener, self._nursery)
        finally:
            listener.socket.close()
            if place in self.listening:
                self.listening.remove(place)

    async def dial(
        self, address: Address, *, timeout: float, path_kind: PathKind | None = None
    ) -> Link:
        """Return the link to the peer at an address that the owner named. Dials if there is no
        link.

        Raises DialFailed with code `unreachable`, `refused` (nothing listens there), `timeout`,
        `wrong-peer`, `self`, `tls-failed`, `bad-certificate` or `bad-name`, or with the code with
        which the peer refuses this node (`wrong-swarm`, `not-admitted`, `no-common-version`,
        `full`, …).
        """
        link = None if address.peer is None else self.link(address.peer)
        if link is not None and link.connected:
            await trio.lowlevel.checkpoint()
        else:
            link = await self.reach(address, timeout=timeout, path_kind=path_kind, sure=True)
        link.keep()
        return link

    async def ask(self, peer: PeerId, addresses: Sequence[Address], *, timeout: float) -> Link:
        """Return a link to a peer for a few questions (`Link.brief`).

        If there is no live link, the addresses are dialled one after the other. Raises DialFailed
        if none of them works.
        """
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

    async def reach(
        self,
        address: Address,
        *,
        timeout: float,
        path_kind: PathKind | None = None,
        sure: bool = False,
    ) -> Link:
        """Dial an address, and return the link to the peer there.

        Unlike `dial`, this adds a path even if there is a live link. `aim` limits the dial, unless
        the address is `sure`, that is, not merely a peer's claim. Raises DialFailed as `dial` does.
        """
        if self._nursery is None:
            raise DialFailed("not-running", "the endpoint is not running")
        if address.transport != "tcp" or address.relay is not None:
            raise DialFailed("not-tcp", f"`{address}` is not a TCP address: use the dialer")
        with nullcontext() if sure else self.aim.at(address):
            with (
                trio.move_on_after(timeout),
                self.guard.around(str(address), instead=mishap_of(address)),
            ):
                return await self._dial(address, path_kind)
            raise DialFailed("timeout", f"`{address}` did not answer within {timeout:g} s")

    async def join(
        self,
        byte_stream: ByteStream,
        path_kind: PathKind,
        *,
        expect: PeerId | None,
        server: bool,
        name: str = "",
    ) -> Link:
        """Authenticate the other end of a byte stream, and return the link to that peer.

        The byte stream becomes the path of a new link, or a further path of the live link. The two
        ends must differ in `server`, which selects the TLS server; on a TCP connection that both
        sides opened at once, the ends settle this themselves. `expect` is the peer that must
        answer; None accepts any. If that fails, closes the byte stream and raises DialFailed.
        """
        if self._nursery is None:
            byte_stream.close()
            raise DialFailed("not-running", "the endpoint is not running")
        name = name or f"{byte_stream.remote[0]} port {byte_stream.remote[1]}"
        with self.guard.around(name, byte_stream.close, instead=mishap_of(name)):
            return await self._join(byte_stream, path_kind, expect, server, name, self._nursery)

    async def _join(
        self,
        byte_stream: ByteStream,
        path_kind: PathKind,
        expect: PeerId | None,
        server: bool,
        name: str,
        nursery: trio.Nursery,
    ) -> Link:
        """Run TLS and the hello on a byte stream, and return the link (see `join`)."""
        first = b""
        if server and byte_stream.medium == "circuit":  # other programs use circuits as well
            first = await first_bytes(byte_stream, name)
            acceptor = self.accepting.acceptors.get(first[0]) if first else None
            if acceptor is not None and acceptor.serve_circuit is not None:
                # In a task, because it may last longer than the caller of `join` waits.
                serve = partial(acceptor.serve_circuit, byte_stream, first)
                self.guard.start(nursery, name, serve, end=byte_stream.close)
                raise DialFailed(acceptor.name, f"`{name}` was a {acceptor.name} program")
        secured = await secure(
            byte_stream, self._certificate, expect, name, server=server, first=first
        )
        if secured.tls.server:
            return await self.accepting.join(secured, path_kind, name, nursery)
        return await self._introducing.join(
            secured, path_kind, byte_stream.remote[1], name, nursery
        )

    async def join_secured(self, secured: SecureStream, path_kind: PathKind, name: str) -> Link:
        """Return the link to the peer of a secured stream that is already authenticated.

        This side is the listener. If that fails, closes the stream and raises DialFailed.
        """
        if self._nursery is None:
            secured.close()
            raise DialFailed("not-running", "the endpoint is not running")
        with self.guard.around(name, secured.close, instead=mishap_of(name)):
            return await self.accepting.join(secured, path_kind, name, self._nursery)

    def _hang_up(self, peer: str) -> None:
        """End the link to a peer, because an error has occurred in code that handles it."""
        link = self._links.link(PeerId(peer))
        if link is not None:
            link.close(MISHAP)

    def _has_answered(self, link: Link, path_kind: PathKind, medium: str) -> None:
        """Record that a peer has answered at the address of a new path, unless the path is
        relayed."""
        if path_kind is not PathKind.RELAYED:
            self.aim.answered(link.address[0])

    async def _dial(self, address: Address, path_kind: PathKind | None) -> Link:
        """Dial the IP addresses of an address one after the other, and return the link."""
        failure = DialFailed("unreachable", f"`{address}` has no IP address")
        for ip in await resolve(self._host, address):
            try:
                byte_stream = await connect(self._host, ip, address, self.port)
                return await self.join(
                    byte_stream,
                    path_kind or path_kind_to(ip),
                    expect=address.peer,
                    server=False,
                    name=str(address),
                )
            except DialFailed as error:
                failure = error
        raise failure
