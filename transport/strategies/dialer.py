"""The dialer: finds a path to a peer by all strategies, and then looks for better ones.

`Dialer` joins the endpoint with its links, the UDP port, port mapping, discovery in the local
network, the observation of this node's addresses by peers, hole punching, and relays. Several
strategies are tried at the same time. The first path that works carries the link, and a better one
replaces it later. `PathKind` lists the path kinds from best to worst.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import trio

from .. import defaults
from ..address import Address
from ..bytestream import ByteStream, PathKind
from ..dial.accepting import Acceptor
from ..dial.attempt import AddressAttempt, order
from ..dial.attempts import AddressBook, ConnectionAttempts
from ..dial.direct import Direct
from ..dial.endpoint import Endpoint
from ..dial.longpaths import LongPaths
from ..dial.networkchange import SeenNetwork
from ..dial.ports import Places, PortOpener
from ..errors import DialFailed, HostError
from ..handshake.meeting import Connected
from ..host.datagrams import Datagrams, Place
from ..host.seam import Host
from ..identity import PeerId
from ..lan.linking import Neighbourhood
from ..libp2p.client import CircuitClient
from ..libp2p.responder import answer_libp2p
from ..link.link import Link
from ..nat.knowledge import NodeKnowledge
from ..nat.portmap.mapper import PortMapper
from ..nat.portmap.mapping import PortMapping
from ..nat.punch.budget import PunchBudget
from ..nat.punch.defaults import PunchLimits
from ..nat.punch.improving import Improving
from ..nat.punch.needs import Tools
from ..nat.punch.outcome import PunchOutcome
from ..nat.punch.puncher import Puncher
from ..nat.reach.defaults import DIALBACK_BYTE, NONCE_BYTES
from ..nat.reach.measuring import Mapped
from ..nat.reach.service import Reach
from ..nat.vouching import AddressVouching
from ..nat.webport import WebPort
from ..nat.whereabouts import AddressSources, Whereabouts
from ..networks import path_kind_to
from ..peertasks import PeerTasks
from ..relay.client import RelayClient
from ..relay.defaults import RelayLimits
from ..relay.families import Families
from ..relay.service import RelayService
from ..relay.vouch import Vouched, seen_at
from ..udp.port import UdpPort
from ..udp.quic import QuicByteStream
from .circuits import Circuits
from .incoming import Incoming

_DIALBACK_BYTES: Final = len(DIALBACK_BYTE) + NONCE_BYTES


@dataclass(frozen=True, slots=True)
class Strategies:
    """The strategies that this node uses. Tests and cautious owners can disable any of them."""

    direct: bool = True  # dialling TCP addresses
    udp: bool = True  # the UDP port, with all dialling, punching and observing over it
    lan: bool = True  # discovery by multicast in the local network
    mapping: bool = True  # port mappings at the router
    punch_tcp: bool = True
    punch_udp: bool = True
    prediction: bool = True  # prediction of the port that a symmetric NAT allocates for a peer
    relay: bool = True  # links through relays; `RelayLimits` limits this node's own service as one
    web_port: bool = True  # a second listener on TCP 443 while this node is reachable
    libp2p: bool = True  # replies to libp2p programs


ALL_STRATEGIES: Final = Strategies()


class Dialer:
    """Dialer of one node.

    `book` returns the addresses of a peer. `key` is a secret that survives restarts. `relaying`
    limits this node's service as a relay.
    """

    def __init__(
        self,
        host: Host,
        endpoint: Endpoint,
        *,
        strategies: Strategies = ALL_STRATEGIES,
        relaying: RelayLimits | None = None,
        key: bytes = b"",
        book: AddressBook = lambda peer: (),
    ) -> None:
        guard, limits = endpoint.guard, relaying or RelayLimits()
        self.endpoint = endpoint
        self.strategies = strategies
        self.book = book
        self._host = host
        self._on_change: list[Callable[[], None]] = []
        tasks = self._tasks = PeerTasks(guard)
        self._incoming = Incoming(endpoint, tasks)
        self.udp = UdpPort(host, guard=guard) if strategies.udp else None
        self.ports = PortOpener(endpoint, self.udp)
        self.direct = Direct(endpoint, self.udp, self._is_seen)
        self.reach = Reach(host, endpoint, self.udp, seen_at=self._seen_at, guard=guard)
        self.mapper = PortMapper(host, key=key, guard=guard)
        self.relays = RelayClient(host, endpoint, reach=self.direct.reach)
        self.connecting = ConnectionAttempts(host, endpoint, self, tasks)
        self.relaying = RelayService(host, endpoint, limits, fetch=self.connecting.fetch)
        sources = AddressSources(self.udp, self.reach, self.relays, self.mapper)
        self.knowledge = NodeKnowledge(host, endpoint, sources)
        self.whereabouts = Whereabouts(host, endpoint, sources)
        self.vouching = AddressVouching(host, endpoint, self.knowledge)
        self.web_port = WebPort(endpoint, self.whereabouts) if strategies.web_port else None
        self.neighbourhood = Neighbourhood(host, endpoint, self.knowledge.found)
        self.puncher = self._make_puncher()
        """Punches holes for direct paths to peers."""
        self.foreign = self._make_foreign()
        """The libp2p relays that the owner names, and circuits through them."""
        self.circuits = Circuits(endpoint, self.relays, self.foreign, self.knowledge, self, tasks)
        self._families = Families(host, endpoint, book, tasks)
        self._improving = Improving(self.puncher, tasks)
        self._listen_to_parts()

    def _make_puncher(self) -> Puncher:
        """Create the hole punching service with the enabled strategies."""
        strategies, limits = self.strategies, PunchLimits()
        if not strategies.punch_tcp:
            limits = replace(limits, tcp_tries=0)
        if not strategies.prediction:
            limits = replace(limits, searches=0)
        udp, endpoint = self.udp if strategies.punch_udp else None, self.endpoint
        tools = Tools(
            self._host, udp, lambda: endpoint.port, PunchBudget(limits), limits, self._punched
        )
        return Puncher(
            endpoint, tools, self.knowledge, guard=endpoint.guard, look=self.vouching.ask
        )

    def _make_foreign(self) -> CircuitClient:
        """Create the client of libp2p relays. If this is enabled, start to answer libp2p programs
        as well."""
        host, endpoint, responder = self._host, self.endpoint, None
        if self.strategies.libp2p:
            responder = answer_libp2p(host, endpoint, self.relaying.book)
        return CircuitClient(
            host,
            endpoint.identity,
            protocols=responder.protocols if responder is not None else dict,
            port=lambda: endpoint.port,
            guard=endpoint.guard,
        )

    def _listen_to_parts(self) -> None:
        """Register the callbacks by which the parts work together."""
        endpoint, take = self.endpoint, self._incoming.take
        endpoint.accepting.register_punched(self.puncher.opened)
        endpoint.rescue.register_finder(self.connecting.find)
        endpoint.accept(DIALBACK_BYTE[0], Acceptor("dialback", self._dialled_back))
        endpoint.on_observed(self._observed)
        endpoint.on_path(self._path_found)
        self.foreign.on_change(self._changed)
        self.foreign.on_circuit(
            lambda byte_stream, source, relay: take(byte_stream, self.circuits.take_foreign)
        )
        self.relays.on_change(self._relays_changed)
        self.relays.on_circuit(
            lambda byte_stream, *told: take(byte_stream, self.circuits.take, *told)
        )
        self.relays.on_seen(self.knowledge.vouch)
        self.mapper.on_change(self._mapped)
        if self.udp is not None:
            self.udp.on_stun(self._stun)
            self.udp.on_byte_stream(self._udp_came)

    # Used by other components.

    def addresses(self) -> list[Address]:
        """Return the addresses at which peers can reach this node (`Whereabouts.addresses`)."""
        return [*self.whereabouts.addresses(), *self.foreign.addresses()]

    def on_change(self, callback: Callable[[], None]) -> None:
        """Register `callback()`, called whenever `addresses` may have changed."""
        self._on_change.append(callback)

    def outcome(self, peer: PeerId) -> PunchOutcome | None:
        """Return the outcome of the last attempt at hole punching with a peer, or None."""
        return self.puncher.outcomes.get(peer)

    async def connect(
        self,
        peer: PeerId,
        addresses: Sequence[Address] = (),
        *,
        timeout: float,
        needed: bool = True,
    ) -> Link:
        """Return the link to a peer. Dials if there is none.

        The link is returned as soon as one address works; better paths are then found in the
        background. If there are no `addresses`, those in the book are used. Pass `needed=False` for
        a link that serves only the upkeep of the network. Such a link may stay relayed if only a
        birthday search (many probes from and to random ports) would find a direct path. Raises
        DialFailed if no address works within `timeout` seconds.
        """
        if not needed:
            link = await self._connect(peer, addresses, timeout)
        else:
            with self._improving.needing(peer):
                link = await self._connect(peer, addresses, timeout)
                self.need(link)
        link.keep()
        return link

    def need(self, link: Link) -> None:
        """Mark a link as needed, so that a birthday search may be made for a direct path."""
        self._improving.need(link)

    async def ask(self, peer: PeerId, addresses: Sequence[Address], *, timeout: float) -> Link:
        """Return the link to a peer for a few questions only.

        If the link is new, it may be ended after them (`Link.brief`). Raises DialFailed if no
        address works within `timeout` seconds.
        """
        with self.endpoint.briefly(peer):
            return await self._connect(peer, addresses, timeout)

    async def _connect(self, peer: PeerId, addresses: Sequence[Address], timeout: float) -> Link:
        """Return the link to a peer as soon as a path carries it (see `connect`)."""
        with trio.move_on_after(timeout):
            while True:
                link = self.endpoint.link(peer)
                if link is not None and link.connected:
                    await trio.lowlevel.checkpoint()
                    return link
                found = self.connecting.to(peer, addresses or self.book(peer), timeout)
                try:
                    return await found.first()
                except DialFailed:
                    if self.endpoint.link(peer) is None:
                        raise
                await trio.sleep(defaults.FIND_S)  # another task searches for its path as well
        raise DialFailed("timeout", f"`{peer}` did not answer within {timeout:g} s")

    async def dial(self, address: Address, *, timeout: float, given: bool = False) -> Link:
        """Return the link to the peer at an address of any kind.

        `given` says that the owner named the address, so that any port may be dialled there. Raises
        DialFailed if the address does not work within `timeout` seconds.
        """
        if given:
            self.endpoint.aim.give(address)
        if address.peer is not None:
            return await self.connect(address.peer, [address], timeout=timeout)
        if address.transport != "tcp":
            raise DialFailed("bad-address", f"`{address}` does not name its peer")
        return await self.endpoint.dial(address, timeout=timeout)

    def network_changed(self) -> None:
        """Check every path, and repeat what has failed before, because addresses or routers have
        changed."""
        self.mapper.refresh()
        for link in self.endpoint.links():
            link.look()
        self.connecting.search_again()
        self._improving.hurry()

    # Running.

    async def run(
        self,
        listen: str,
        port: int,
        *,
        further: Places = (),
        libp2p_relays: Sequence[Address] = (),
        task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen and serve until cancelled. The value of `task_status` is the port, for TCP and
        UDP.

        Listening on `0.0.0.0` includes `::` if the machine has IPv6. `further` are additional
        addresses and ports. A reservation is held at each of the `libp2p_relays`. Raises
        AddressInUse or HostError if the port cannot be opened.
        """
        failure: HostError | None = None
        async with trio.open_nursery() as nursery:
            try:
                number = await self.ports.listen(nursery, listen, port, further)
            except HostError as error:  # raised below, so that no exception group contains it
                failure = error
                nursery.cancel_scope.cancel()
            else:
                await self._serve(nursery, listen, number, libp2p_relays, task_status)
        if failure is not None:
            raise failure

    async def _serve(
        self,
        nursery: trio.Nursery,
        listen: str,
        port: int,
        libp2p_relays: Sequence[Address],
        task_status: trio.TaskStatus[int],
    ) -> None:
        """Run all parts until cancelled."""
        with self._tasks.run_in(nursery):
            await nursery.start(self.puncher.run)
            await nursery.start(self.reach.run)
            repeat = partial(self.endpoint.guard.start_repeated, nursery)
            repeat("relayed links", self._watch_network)
            repeat("reachability", self._watch_reach, listen)
            if self.udp is not None:
                long = LongPaths(self._host, self.endpoint, self.direct.dial_place)
                nursery.start_soon(long.run)
            near = path_kind_to(listen) is PathKind.LOOPBACK  # only this machine can connect
            if self.strategies.relay:
                nursery.start_soon(self.relays.run)
                await nursery.start(self.foreign.run)
                for relay in libp2p_relays:
                    nursery.start_soon(self.circuits.keep, relay)
            if self.strategies.mapping and not near:
                nursery.start_soon(self.mapper.run, port, self.udp.port if self.udp else 0)
            if self.strategies.lan and not near:
                nursery.start_soon(self.neighbourhood.run, port)
            task_status.started(port)
            await trio.sleep_forever()

    async def _watch_network(self) -> None:
        """Check regularly for network changes and for relayed links, until cancelled."""
        network = SeenNetwork(self._host)
        while True:
            await trio.sleep(defaults.NETWORK_S)
            if network.has_changed():
                self.network_changed()
            self._improve_relayed()

    async def _watch_reach(self, listen: str) -> None:
        """Adapt the relays and the web port whenever this node's reachability changes, until
        cancelled."""
        version = 0
        while True:
            shown = self.whereabouts.shown_reachable()
            if shown is not None:
                if self.web_port is not None:
                    await self.web_port.tend(listen, shown)
                self.relaying.reachable = shown
            self.relays.everywhere = self.whereabouts.everywhere()
            self.relays.reachable = self.whereabouts.reachable()
            self._changed()
            version = await self.reach.changed(version)

    # Used by connection attempts and circuits (`AttemptPlan`, `Improves`).

    def attempts(
        self, peer: PeerId, addresses: Sequence[Address], own: bool
    ) -> list[AddressAttempt]:
        """Return the addresses to try, and when. If `own`, include circuits through this node's
        relays."""
        found = self.knowledge.found_at(peer)
        linked = {link.peer for link in self.endpoint.links() if link.seen}
        ours = [self.relays.address(held.relay) for held in self.relays.relays if own]
        return order(
            self.whereabouts.dialable(addresses, found),
            peer,
            self.strategies,
            linked,
            [each for each in ours if each is not None],
        )

    async def attempt(self, attempt: AddressAttempt) -> Link:
        """Dial one address by its strategy. Raises DialFailed if that fails."""
        address = attempt.address
        if address.relay is not None:
            others = [each.relay for each in attempt.others if each.relay is not None]
            return await self.circuits.dial(address.relay, attempt.peer, others)
        return await self.direct.dial(address, attempt.peer, timeout=defaults.ATTEMPT_S)

    async def link_relay(self, relay: Address, others: Sequence[Address]) -> None:
        """Make a direct link to a relay, by the given addresses or those in the book.

        If both ends have IPv4 and IPv6, the link gets a path over each of them. Raises DialFailed
        if no address works.
        """
        if relay.peer is None or not self._tasks.running:
            return
        link = self.endpoint.link(relay.peer)
        if link is None or not link.connected:
            known = [
                relay,
                *others,
                *(each for each in self.book(relay.peer) if each.relay is None),
            ]
            await self.connecting.to(relay.peer, known, defaults.ATTEMPT_S).first()
        await self._families.meet(relay)

    def improve(self, link: Link, at_once: bool) -> None:
        """Start to look for a direct path of a relayed link, at once or after some seconds."""
        self._improving.begin(link, at_once=at_once)

    def _improve_relayed(self) -> None:
        """Start to look for direct paths of links that have fallen back to a relay.

        For links that have become needed, the birthday search that was skipped is made.
        """
        for link in self.endpoint.links():
            if link.path_kind is PathKind.RELAYED:
                with self.endpoint.guard.around(link.peer):
                    self.improve(link, self.endpoint.peer < link.peer)
                    self._improving.look(link)

    # Incoming connections and events.

    def _punched(
        self, byte_stream: ByteStream, peer: PeerId, client: bool, path_kind: PathKind
    ) -> None:
        """Turn a byte stream that hole punching has opened into a path."""
        # On TCP, this side begins as the client even if both have dialled: TLS settles the roles.
        server = not client and byte_stream.medium != "tcp"
        self._incoming.take(byte_stream, self._incoming.join, path_kind, peer, server)

    def _udp_came(self, byte_stream: QuicByteStream) -> None:
        """Turn an accepted QUIC connection into a path."""
        peer = self.puncher.arrived(byte_stream)
        path_kind = path_kind_to(byte_stream.remote[0])
        if peer is not None and path_kind is PathKind.DIRECT:
            path_kind = PathKind.PUNCHED
        self._incoming.take(byte_stream, self._incoming.join, path_kind, peer, True)

    def _stun(self, data: bytes, source: Place, socket: Datagrams) -> None:
        """Pass a STUN message to hole punching, or else to the measurement of reachability."""
        if not self.puncher.on_stun(data, source, socket):
            self.reach.on_stun(data, source, socket)

    async def _dialled_back(self, stream: trio.SocketStream, first: bytes) -> None:
        """Read the nonce of a dial-back from an accepted connection, and report it."""
        name = stream.socket.getpeername()
        try:
            while len(first) < _DIALBACK_BYTES:
                piece = await stream.receive_some(_DIALBACK_BYTES - len(first))
                if not piece:
                    return
                first += piece
            self.reach.dialback_arrived(first, (str(name[0]), int(name[1])))
        finally:
            stream.socket.close()

    def _observed(self, connected: Connected) -> None:
        """Report the address at which a peer's hello says that it sees this node."""
        secured, place = connected.secured, connected.hello.observed
        if connected.dialled and secured.medium == "tcp" and place is not None:
            self.reach.observed_tcp(connected.peer, secured.address[0], place, secured.local_port)
            if secured.local_port == self.endpoint.port:
                self.knowledge.observed(place)

    def _path_found(self, link: Link, path_kind: PathKind, medium: str) -> None:
        """Tell the parts about a new path of a link."""
        self.connecting.found(link.peer)
        if path_kind is not PathKind.RELAYED:
            self.puncher.met(link.peer, medium)
            self._offer_relay(link, medium)

    def _offer_relay(self, link: Link, medium: str) -> None:
        """Add a linked peer's addresses to the possible relays.

        For a peer that was dialled, this is the dialled address and those in the book. For a peer
        that has dialled, it is only the address at which this node sees the peer, if the book has
        it.
        """
        known = [each for each in self.book(link.peer) if each.relay is None]
        ip, port = link.address
        if not link.identities.dialled:
            known = [each for each in known if each.host == ip]
        elif ip and medium == "tcp" and link.identities.port:
            known.append(Address(ip, link.identities.port, link.peer))
        elif ip and medium == "udp":
            known.append(Address(ip, port, link.peer, transport="udp"))
        self.relays.met([(link.peer, each) for each in known])

    def _mapped(self, mapping: PortMapping | None) -> None:
        """Tell the measurement of reachability about the router's port mapping."""
        self.reach.port_mapped(
            Mapped()
            if mapping is None
            else Mapped(
                (mapping.address, mapping.tcp_port) if mapping.tcp_port else None,
                (mapping.address, mapping.udp_port) if mapping.udp_port else None,
                mapping.address,
            )
        )
        self._changed()

    async def _is_seen(self, peer: PeerId, ip: str) -> bool:
        """Return whether other members see a peer at an IP address."""
        return await self.vouching.is_seen(peer, ip)

    def _seen_at(self, peer: PeerId) -> list[str]:
        """Return the IP addresses at which this node sees a linked peer."""
        link = self.endpoint.link(peer)
        seen = seen_at(link) if link is not None else Vouched("")
        return [ip for ip in (seen.ip, seen.other) if ip]

    def _relays_changed(self) -> None:
        """Dial each relay at which this node has a reservation over the IP version that is not in
        use yet. Report new addresses."""
        for held in self.relays.relays:
            address = self.relays.address(held.relay)
            if address is not None:
                self._tasks.start(str(address), self._families.meet, address)
        self._changed()

    def _changed(self) -> None:
        """Call the callbacks, because `addresses` may have changed."""
        for callback in self._on_change:
            callback()
