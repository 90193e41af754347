"""All the ways to a peer, and which to try when: from its first address to the best path there is.

`Ladder` joins what stands apart: the endpoint and its links, the UDP port, port mapping, discovery
on the own network, what peers see of this node, hole punching, relays. Several ways to a peer are
tried at once; the first that works carries the link, and what is better takes over. The
order in which a person is told of them: `pipe.Way`.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import trio

from . import defaults
from .address import Address
from .circuits import Circuits
from .climb import Attempt, order
from .climbs import AddressBook, Climbs
from .datagrams import Datagrams, Place
from .direct import Direct
from .endpoint import Endpoint
from .errors import DialFailed, HostError
from .families import Families
from .host import Host
from .identity import PeerId
from .improving import Improving
from .knowledge import Knowledge
from .libp2p.client import CircuitClient
from .link import Link
from .longpaths import LongPaths
from .meeting import Connected
from .neighbourhood import Neighbourhood
from .network import Network
from .pipe import Pipe, Way
from .place import way_to
from .portmap.mapper import PortMapper
from .portmap.mapping import Mapping
from .ports import Places, Ports
from .punch.defaults import PunchLimits
from .punch.outcome import Outcome
from .punch.puncher import Puncher
from .reach.defaults import DIALBACK_BYTE, NONCE_BYTES
from .reach.measuring import Mapped
from .reach.service import Reach
from .relay.client import RelayClient
from .relay.defaults import RelayLimits
from .relay.service import RelayService
from .relay.vouch import Vouched, is_relayed, seen_at
from .udp.port import UdpPort
from .udp.quic import QuicPipe
from .vouching import Vouching
from .webport import WebPort
from .whereabouts import Whereabouts

_DIALBACK_BYTES: Final = len(DIALBACK_BYTE) + NONCE_BYTES


@dataclass(frozen=True, slots=True)
class Rungs:
    """Which ways this node takes. Each can be left out, which tests and cautious owners do."""

    direct: bool = True  # dialling TCP addresses
    udp: bool = True  # a UDP port at all: dialling over it, punching over it, observing
    lan: bool = True  # multicast on the own network
    mapping: bool = True  # asking the router for a port
    punch_tcp: bool = True
    punch_udp: bool = True
    prediction: bool = True  # finding the port of a NAT that draws one for each peer
    relay: bool = True  # using relays; what this node lends as one is `RelayLimits`


ALL_RUNGS: Final = Rungs()


class Ladder:
    """One for each node. `book` says where peers are; `key` is secret and stays over restarts."""

    def __init__(
        self,
        host: Host,
        endpoint: Endpoint,
        *,
        rungs: Rungs | None = None,
        relaying: RelayLimits | None = None,
        observes: bool = True,
        web_port: bool = True,
        key: bytes = b"",
        book: AddressBook = lambda peer: (),
        foreign: Sequence[Address] = (),
    ) -> None:
        """`web_port`: listen on TCP 443 as well while others reach this node. `foreign` are relays
        of the libp2p kind, not shoal's, at which a place is held."""
        self.endpoint = endpoint
        self.rungs = rungs = rungs or Rungs()
        self.book = book
        self._host = host
        self._nursery: trio.Nursery | None = None
        self._on_change: list[Callable[[], None]] = []
        self.udp = UdpPort(host, guard=endpoint.guard) if rungs.udp else None
        self.ports = Ports(endpoint, self.udp)
        self.direct = Direct(endpoint, self.udp)
        self.reach = Reach(
            host,
            endpoint,
            self.udp,
            volunteer=observes,
            seen_at=self._seen_at,
            guard=endpoint.guard,
        )
        self.mapper = PortMapper(host, key=key, guard=endpoint.guard)
        self.relays = RelayClient(host, endpoint, reach=self.direct.reach)
        self.climbs = Climbs(
            host,
            endpoint,
            book=lambda peer: self.book(peer),
            attempts=self._attempts,
            dial=self._attempt,
        )
        self.relaying = RelayService(
            host, endpoint, relaying or RelayLimits(), fetch=self.climbs.fetch
        )
        self.knowledge = Knowledge(host, endpoint, self.udp, self.reach, self.relays, self.mapper)
        self.whereabouts = Whereabouts(host, endpoint, self.reach, self.relays, self.mapper)
        self.web_port = WebPort(endpoint, self.whereabouts) if web_port else None
        self.neighbourhood = Neighbourhood(host, endpoint, self.knowledge.found)
        self._families = Families(host, endpoint, book)
        limits = PunchLimits()
        if not rungs.punch_tcp:
            limits = replace(limits, tcp_tries=0)
        if not rungs.prediction:
            limits = replace(limits, searches=0)
        self.puncher = Puncher(
            host,
            endpoint,
            self.udp if rungs.punch_udp else None,
            self.knowledge,
            self._punched,
            limits=limits,
            guard=endpoint.guard,
            look=lambda peer: self.vouching.ask(peer),
        )
        endpoint.punched = self.puncher.opened
        if endpoint.libp2p is not None:
            endpoint.relay_for_libp2p(self.relaying.book)
        self.foreign = CircuitClient(
            host,
            endpoint.identity,
            protocols=endpoint.libp2p.protocols if endpoint.libp2p is not None else dict,
            port=lambda: endpoint.port,
            guard=endpoint.guard,
        )
        self._foreign_relays = tuple(foreign)
        self.foreign.on_circuit(
            lambda pipe, source, relay: self._take_soon(pipe, self.circuits.take_foreign)
        )
        self.foreign.on_change(self._changed)
        self.vouching = Vouching(host, endpoint, self.knowledge)
        self.direct.is_seen = self.vouching.is_seen
        self._improving = Improving(self.puncher, endpoint.guard)
        self.circuits = Circuits(
            endpoint,
            self.relays,
            self.foreign,
            self.knowledge,
            link_relay=self._link_relay,
            improve=self._improve,
        )
        endpoint.finder = self.climbs.find
        endpoint.handle_first_byte(DIALBACK_BYTE[0], self._dialled_back)
        endpoint.on_observed(self._observed)
        endpoint.on_path(self._path_found)
        self.relays.on_change(self._relays_changed)
        self.relays.on_circuit(lambda pipe, *told: self._take_soon(pipe, self.circuits.take, *told))
        self.relays.on_seen(self.knowledge.vouch)
        self.mapper.on_change(self._mapped)
        if self.udp is not None:
            self.udp.on_stun(self._stun)
            self.udp.on_pipe(self._udp_came)

    # What others use.

    def addresses(self) -> list[Address]:
        """Where others can reach this node (`Whereabouts.addresses`)."""
        return [*self.whereabouts.addresses(), *self.foreign.addresses()]

    def on_change(self, callback: Callable[[], None]) -> None:
        """`callback()` whenever `addresses` may have changed."""
        self._on_change.append(callback)

    def outcome(self, peer: PeerId) -> Outcome | None:
        """What the last attempt to punch through to a peer came to."""
        return self.puncher.outcomes.get(peer)

    async def connect(
        self,
        peer: PeerId,
        addresses: Sequence[Address] = (),
        *,
        timeout: float,
        needed: bool = True,
    ) -> Link:
        """The link to a peer, by whichever of its addresses answers first; better paths follow
        by themselves. Without addresses the book is asked. Upkeep of the network does not count as
        `needed`: for it a relayed path will do where only a birthday search finds a direct one.
        Raises DialFailed."""
        if not needed:
            link = await self._connect(peer, addresses, timeout)
        else:
            with self._improving.needing(peer):
                link = await self._connect(peer, addresses, timeout)
                self.need(link)
        link.keep()
        return link

    def need(self, link: Link) -> None:
        """A component uses this link: do more for a direct path from now on."""
        self._improving.need(link)

    async def ask(self, peer: PeerId, addresses: Sequence[Address], *, timeout: float) -> Link:
        """The same for a few questions only: a link that is new may be ended after them
        (`Link.brief`). Raises DialFailed."""
        with self.endpoint.briefly(peer):
            return await self._connect(peer, addresses, timeout)

    async def _connect(self, peer: PeerId, addresses: Sequence[Address], timeout: float) -> Link:
        with trio.move_on_after(timeout):
            while True:
                link = self.endpoint.link(peer)
                if link is not None and link.connected:
                    await trio.lowlevel.checkpoint()
                    return link
                climb = self.climbs.to(peer, addresses or self.book(peer), timeout)
                try:
                    return await climb.first()
                except DialFailed:
                    if self.endpoint.link(peer) is None:
                        raise
                await trio.sleep(defaults.FIND_S)  # a link that is looked for elsewhere too
        raise DialFailed("timeout", f"`{peer}` did not answer within {timeout:g} s")

    async def dial(self, address: Address, *, timeout: float, given: bool = False) -> Link:
        """Return the link to the peer at an address of any kind.

        `given` says that the owner named the address. Raises DialFailed.
        """
        if given:
            self.endpoint.aim.give(address)
        if address.peer is not None:
            return await self.connect(address.peer, [address], timeout=timeout)
        if address.transport != "tcp":
            raise DialFailed("bad-address", f"`{address}` does not say who answers there")
        return await self.endpoint.dial(address, timeout=timeout)

    def network_changed(self) -> None:
        """Addresses or the router are others than before: every path is asked for a sign of
        life, what was given up on is tried again."""
        self.mapper.refresh()
        for link in self.endpoint.links():
            link.look()
        self.climbs.search_again()
        self._improving.hurry()

    # Running.

    async def run(
        self,
        listen: str,
        port: int,
        *,
        further: Places = (),
        task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen and serve until cancelled; started with the port, the same for TCP and UDP.

        Listening on `0.0.0.0` is listening on `::` as well, where there is IPv6. Raises
        AddressInUse and HostError before it has started.
        """
        failure: HostError | None = None
        async with trio.open_nursery() as nursery:
            try:
                number = await self.ports.listen(nursery, listen, port, further)
            except HostError as error:  # to be raised as it is, not in a group
                failure = error
                nursery.cancel_scope.cancel()
            else:
                await self._serve(nursery, listen, number, task_status)
        if failure is not None:
            raise failure

    async def _serve(
        self, nursery: trio.Nursery, listen: str, port: int, task_status: trio.TaskStatus[int]
    ) -> None:
        self._nursery = self.climbs.nursery = self.circuits.nursery = nursery
        try:
            await nursery.start(self.puncher.run)
            await nursery.start(self.reach.run)
            nursery.start_soon(self._watch_network)
            nursery.start_soon(self._watch_reach, listen)
            if self.udp is not None:
                nursery.start_soon(LongPaths(self._host, self.endpoint, self.direct.dial_place).run)
            near = way_to(listen) is Way.LOOPBACK  # nobody but this machine can come
            if self.rungs.relay:
                nursery.start_soon(self.relays.run)
                await nursery.start(self.foreign.run)
                for relay in self._foreign_relays:
                    nursery.start_soon(self.circuits.keep, relay)
            if self.rungs.mapping and not near:
                nursery.start_soon(self.mapper.run, port, self.udp.port if self.udp else 0)
            if self.rungs.lan and not near:
                nursery.start_soon(self.neighbourhood.run, port)
            task_status.started(port)
            await trio.sleep_forever()
        finally:
            self._nursery = self.climbs.nursery = self.circuits.nursery = None

    async def _watch_network(self) -> None:
        network = Network(self._host)
        while True:
            await trio.sleep(defaults.NETWORK_S)
            if network.has_changed():
                self.network_changed()
            self._improve_relayed()

    async def _watch_reach(self, listen: str) -> None:
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

    # Climbing.

    def _attempts(self, peer: PeerId, addresses: Sequence[Address], own: bool) -> list[Attempt]:
        """What to try, and when; `own`: at this node's own relays too."""
        found = self.knowledge.found_at(peer)
        linked = {link.peer for link in self.endpoint.links() if not is_relayed(link)}
        ours = [self.relays.address(held.relay) for held in self.relays.relays if own]
        return order(
            self.whereabouts.dialable(addresses, found),
            peer,
            self.rungs,
            linked,
            [each for each in ours if each is not None],
        )

    async def _attempt(self, attempt: Attempt) -> Link:
        """One way to one address. Raises DialFailed."""
        address = attempt.address
        if address.relay is not None:
            others = [each.relay for each in attempt.others if each.relay is not None]
            return await self.circuits.dial(address.relay, attempt.peer, others)
        return await self.direct.dial(address, attempt.peer, timeout=defaults.CLIMB_S)

    async def _link_relay(self, relay: Address, others: Sequence[Address]) -> None:
        """A direct link to a relay, by the addresses that are given or any that is known of it,
        and by both IP versions where there are both. Raises DialFailed."""
        if relay.peer is None or self._nursery is None:
            return
        link = self.endpoint.link(relay.peer)
        if link is None or not link.connected:
            known = [
                relay,
                *others,
                *(each for each in self.book(relay.peer) if each.relay is None),
            ]
            await self.climbs.to(relay.peer, known, defaults.CLIMB_S).first()
        await self._families.meet(relay, self._nursery)

    def _improve(self, link: Link, at_once: bool) -> None:
        if self._nursery is not None:
            self._improving.begin(link, self._nursery, at_once=at_once)

    def _improve_relayed(self) -> None:
        """Links that have lost their direct path and live on by a relay, or that are needed now."""
        for link in self.endpoint.links():
            if link.way is Way.RELAYED:
                self._improve(link, self.endpoint.peer < link.peer)
                self._improving.look(link)

    # What comes.

    def _take_soon(self, pipe: Pipe, take: Callable[..., Awaitable[None]], *told: object) -> None:
        if self._nursery is None:
            pipe.close()
        else:
            guard = self.endpoint.guard
            guard.start(self._nursery, pipe.remote, take, pipe, *told, end=pipe.close)

    async def _join(self, pipe: Pipe, way: Way, expect: PeerId | None, server: bool) -> None:
        with suppress(DialFailed), trio.move_on_after(defaults.HANDSHAKE_S):
            await self.endpoint.join(pipe, way, expect=expect, server=server)
            if isinstance(pipe, QuicPipe):
                pipe.trust()

    def _punched(self, pipe: Pipe, peer: PeerId, client: bool, way: Way) -> None:
        # TCP that both opened finds its sides by itself; what only one opened was dialled.
        server = not client and pipe.medium != "tcp"
        self._take_soon(pipe, self._join, way, peer, server)

    def _udp_came(self, pipe: QuicPipe) -> None:
        peer = self.puncher.arrived(pipe)
        way = way_to(pipe.remote[0])
        if peer is not None and way is Way.DIRECT:
            way = Way.PUNCHED
        self._take_soon(pipe, self._join, way, peer, True)

    def _stun(self, data: bytes, source: Place, socket: Datagrams) -> None:
        if not self.puncher.on_stun(data, source, socket):
            self.reach.on_stun(data, source, socket)

    async def _dialled_back(self, first: bytes, stream: trio.SocketStream) -> None:
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
        path, place = connected.path, connected.hello.observed
        if connected.dialled and path.medium == "tcp" and place is not None:
            self.reach.observed_tcp(connected.peer, path.address[0], place, path.local_port)
            if path.local_port == self.endpoint.port:
                self.knowledge.observed(place)

    def _path_found(self, link: Link, way: Way, medium: str) -> None:
        self.climbs.found(link.peer)
        if way is not Way.RELAYED:
            self.puncher.met(link.peer, medium)
            self._offer_relay(link, medium)

    def _offer_relay(self, link: Link, medium: str) -> None:
        """Whoever was dialled, and so can be, may relay; who came, if it says that it can be
        dialled where it is seen."""
        known = [each for each in self.book(link.peer) if each.relay is None]
        ip, port = link.address
        if not link.identities.dialled:
            known = [each for each in known if each.host == ip]
        elif ip and medium == "tcp" and link.identities.port:
            known.append(Address(ip, link.identities.port, link.peer))
        elif ip and medium == "udp":
            known.append(Address(ip, port, link.peer, transport="udp"))
        self.relays.met([(link.peer, each) for each in known])

    def _mapped(self, mapping: Mapping | None) -> None:
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

    def _seen_at(self, peer: PeerId) -> list[str]:
        link = self.endpoint.link(peer)
        seen = seen_at(link) if link is not None else Vouched("")
        return [ip for ip in (seen.ip, seen.other) if ip]

    def _relays_changed(self) -> None:
        for held in self.relays.relays:
            address = self.relays.address(held.relay)
            if self._nursery is not None and address is not None:
                guard, nursery = self.endpoint.guard, self._nursery
                guard.start(nursery, str(address), self._families.meet, address, nursery)
        self._changed()

    def _changed(self) -> None:
        for callback in self._on_change:
            callback()
