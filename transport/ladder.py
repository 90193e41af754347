"""All the ways to a peer, and which to try when: from its first address to the best path there is.

`Ladder` joins what stands apart: the endpoint and its links, the UDP port, port mapping, discovery
on the own network, what peers see of this node, hole punching, relays. Several ways to a peer are
tried at once; the first that works carries the link, and what is better takes over. The
order in which a person is told of them: `pipe.Way`.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import trio

from . import defaults
from .address import Address
from .aim import Aim
from .climb import Attempt, Climb, order
from .datagrams import Datagrams, Place
from .endpoint import Endpoint
from .errors import AddressInUse, DialFailed, HostError
from .families import Families
from .host import Host, Interface
from .identity import PeerId
from .improving import Improving
from .knowledge import Knowledge
from .lan.mdns import LanDiscovery
from .libp2p.client import CircuitClient
from .libp2p.muxstream import MuxStream
from .link import Link
from .longpaths import LongPaths
from .meeting import Connected
from .pipe import Pipe, Way
from .place import way_to
from .portmap.mapper import PortMapper
from .portmap.mapping import Mapping
from .punch.defaults import PunchLimits
from .punch.outcome import Outcome
from .punch.puncher import Puncher
from .reach.defaults import DIALBACK_BYTE, NONCE_BYTES
from .reach.measuring import Mapped
from .reach.service import Reach
from .relay.circuit import CircuitPipe
from .relay.client import RelayClient
from .relay.defaults import RelayLimits
from .relay.service import RelayService
from .relay.vouch import Vouched, is_relayed, seen_at
from .rescue import pace
from .rounds import Rounds
from .udp.port import UdpPort
from .udp.quic import QuicPipe
from .vouching import Vouching
from .whereabouts import Whereabouts

_DIALBACK_BYTES: Final = len(DIALBACK_BYTE) + NONCE_BYTES
_PORT_TRIES: Final = 8

AddressBook = Callable[[PeerId], Sequence[Address]]
"""Where a peer says that it can be reached, as far as it may be believed."""


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
    relay: bool = True  # using relays; whether to be one is `RelayLimits.volunteer`


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
        key: bytes = b"",
        book: AddressBook = lambda peer: (),
        foreign: Sequence[Address] = (),
    ) -> None:
        """`foreign` are relays of the libp2p kind, not shoal's, at which a place is held."""
        self.endpoint = endpoint
        self.rungs = rungs = rungs or Rungs()
        self.book = book
        self.aim = Aim(host.now)
        self.without_udp = ""  # why there is no UDP port though there should be
        self._host = host
        self._nursery: trio.Nursery | None = None
        self._climbs: dict[PeerId, Climb] = {}
        self._searches: set[Rounds[None]] = set()
        self._on_change: list[Callable[[], None]] = []
        self.udp = UdpPort(host) if rungs.udp else None
        self._udp_runs = trio.Lock()
        self.reach = Reach(host, endpoint, self.udp, volunteer=observes, seen_at=self._seen_at)
        self.mapper = PortMapper(host, key=key)
        self.lan: LanDiscovery | None = None
        self.relays = RelayClient(host, endpoint, reach=self._reach_relay)
        self.relaying = RelayService(host, endpoint, relaying or RelayLimits(), fetch=self._fetch)
        self.knowledge = Knowledge(host, endpoint, self.udp, self.reach, self.relays, self.mapper)
        self.whereabouts = Whereabouts(host, endpoint, self.reach, self.relays, self.mapper)
        self._families = Families(host, endpoint, book, self.aim)
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
        )
        endpoint.punched = self.puncher.opened
        if endpoint.libp2p is not None:
            endpoint.relay_for_libp2p(self.relaying.book)
        self.foreign = CircuitClient(
            host,
            endpoint.identity,
            protocols=endpoint.libp2p.protocols if endpoint.libp2p is not None else dict,
            port=lambda: endpoint.port,
        )
        self._foreign_relays = tuple(foreign)
        self.foreign.on_circuit(self._foreign_circuit_came)
        self.foreign.on_change(self._changed)
        self.vouching = Vouching(host, endpoint, self.knowledge)
        self._improving = Improving(self.puncher, self.vouching.ask)
        endpoint.finder = self._find
        endpoint.handle_first_byte(DIALBACK_BYTE[0], self._dialled_back)
        endpoint.on_observed(self._observed)
        endpoint.on_path(self._path_found)
        self.relays.on_change(self._relays_changed)
        self.relays.on_circuit(self._circuit_came)
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
        self, peer: PeerId, addresses: Sequence[Address] = (), *, timeout: float
    ) -> Link:
        """The link to a peer, by whichever of its addresses answers first; better paths follow
        by themselves. Without addresses the book is asked. Raises DialFailed."""
        link = await self._connect(peer, addresses, timeout)
        link.keep()
        return link

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
                climb = self._climb(peer, addresses or self.book(peer), timeout)
                try:
                    return await climb.first()
                except DialFailed:
                    if self.endpoint.link(peer) is None:
                        raise
                await trio.sleep(defaults.FIND_S)  # a link that is looked for elsewhere too
        raise DialFailed("timeout", f"`{peer}` did not answer within {timeout:g} s")

    async def dial(self, address: Address, *, timeout: float) -> Link:
        """The link to who answers at one address, of whichever kind. Raises DialFailed."""
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
        self._search_again()
        self._improving.hurry()

    def _search_again(self) -> None:
        """The network may be back: who looks for a path does so at once."""
        self.endpoint.rescue.wake()
        for search in self._searches:
            search.wake()

    # Running.

    async def run(
        self,
        listen: str,
        port: int,
        *,
        further: tuple[tuple[str, int], ...] = (),
        task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Listen and serve until cancelled; started with the port, the same for TCP and UDP.

        Listening on `0.0.0.0` is listening on `::` as well, where there is IPv6. Raises
        AddressInUse and HostError before it has started.
        """
        failure: HostError | None = None
        async with trio.open_nursery() as nursery:
            try:
                number = await self._listen(nursery, listen, port, further)
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
        self._nursery = nursery
        try:
            await nursery.start(self.puncher.run)
            await nursery.start(self.reach.run)
            nursery.start_soon(self._watch_network)
            nursery.start_soon(self._watch_reach)
            if self.udp is not None:
                nursery.start_soon(LongPaths(self._host, self.endpoint, self._dial_place).run)
            near = way_to(listen) is Way.LOOPBACK  # nobody but this machine can come
            if self.rungs.relay:
                nursery.start_soon(self.relays.run)
                await nursery.start(self.foreign.run)
                for relay in self._foreign_relays:
                    nursery.start_soon(self._keep_foreign, relay)
            if self.rungs.mapping and not near:
                nursery.start_soon(self.mapper.run, port, self.udp.port if self.udp else 0)
            if self.rungs.lan and not near:
                nursery.start_soon(self._discover, port)
            task_status.started(port)
            await trio.sleep_forever()
        finally:
            self._nursery = None

    async def _listen(
        self, nursery: trio.Nursery, listen: str, port: int, further: tuple[tuple[str, int], ...]
    ) -> int:
        everywhere = listen == "0.0.0.0"
        if everywhere:
            further = (("::", 0), *further)
        for turn in range(_PORT_TRIES):
            number, scope = await self._listen_udp(nursery, listen, port)
            try:
                bound: int = await nursery.start(
                    lambda task_status, number=number: self.endpoint.run(
                        listen, number, further=further, task_status=task_status
                    )
                )
            except AddressInUse:
                scope.cancel()
                if port or turn == _PORT_TRIES - 1:
                    raise
                continue
            self.endpoint.udp_port = self.udp.port if self.udp is not None else 0
            return bound
        raise AssertionError("the last try raises")

    async def _listen_udp(
        self, nursery: trio.Nursery, listen: str, port: int
    ) -> tuple[int, trio.CancelScope]:
        """The number that UDP has got, and what ends it again; `port` where there is no UDP to
        be had. A machine without IPv6 has it over IPv4."""
        scope = trio.CancelScope()
        if self.udp is None:
            return port, scope
        for addresses in (["0.0.0.0", "::"], ["0.0.0.0"]) if listen == "0.0.0.0" else ([listen],):
            scope = trio.CancelScope()  # that of a try that failed has been used up
            try:
                number: int = await nursery.start(self._run_udp, self.udp, scope, addresses, port)
            except AddressInUse:
                self.without_udp = f"UDP port {port} is in use by another program"
            except HostError as error:
                self.without_udp = error.message
            else:
                self.without_udp = ""
                return number, scope
        return port, scope

    async def _run_udp(
        self,
        udp: UdpPort,
        scope: trio.CancelScope,
        addresses: list[str],
        port: int,
        *,
        task_status: trio.TaskStatus[int],
    ) -> None:
        with scope:
            async with self._udp_runs:  # one given up may still be closing its sockets
                await udp.run(addresses, port, task_status=task_status)

    async def _discover(self, port: int) -> None:
        """On the own network, for the swarm that this node is in now: joining changes it."""
        while True:
            swarm = self.endpoint.admission.swarm
            async with trio.open_nursery() as nursery:
                if swarm:
                    self.lan = LanDiscovery(self._host, self.endpoint.peer, swarm)
                    self.lan.on_peer(self._neighbour)
                    nursery.start_soon(self.lan.run, port)
                await self.endpoint.admission_changed()
                nursery.cancel_scope.cancel()

    async def _watch_network(self) -> None:
        """Other addresses, or time that passed without us: a lid that was closed."""
        before, wall = self._interfaces(), self._host.wall() - self._host.now()
        while True:
            await trio.sleep(defaults.NETWORK_S)
            now, later = self._interfaces(), self._host.wall() - self._host.now()
            if now != before or later - wall > defaults.SLEPT_S:
                self.network_changed()
            before, wall = now, later
            self._improve_relayed()

    def _interfaces(self) -> list[Interface]:
        return self._host.interfaces()

    async def _watch_reach(self) -> None:
        version = 0
        while True:
            self.relays.everywhere = self.whereabouts.everywhere()
            self.relays.reachable = self.whereabouts.reachable()
            self._changed()
            version = await self.reach.changed(version)

    # Climbing.

    def _climb(self, peer: PeerId, addresses: Sequence[Address], timeout: float) -> Climb:
        """The climb to a peer that is under way, or a new one."""
        climb = self._climbs.get(peer)
        if climb is not None and not climb.over:
            return climb
        climb = self._climbs[peer] = Climb(peer, self.endpoint)
        if self._nursery is None:
            climb.finish()
            return climb
        self._nursery.start_soon(self._run_climb, climb, addresses, timeout)
        return climb

    def _attempts(
        self, peer: PeerId, addresses: Sequence[Address], *, own: bool = True
    ) -> list[Attempt]:
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

    async def _run_climb(self, climb: Climb, addresses: Sequence[Address], timeout: float) -> None:
        attempts = self._attempts(climb.peer, addresses)
        try:
            with trio.move_on_after(timeout):
                await climb.run(attempts, self._attempt)
        finally:
            climb.finish()
            if self._climbs.get(climb.peer) is climb:
                del self._climbs[climb.peer]

    async def _attempt(self, attempt: Attempt) -> Link:
        """One way to one address. Raises DialFailed."""
        address = attempt.address
        if address.relay is not None:
            return await self._through(address.relay, attempt.peer)
        with self.aim.at(address):
            if address.transport == "udp":
                return await self._dial_udp(address, attempt.peer)
            return await self.endpoint.reach(address, timeout=defaults.CLIMB_S)

    async def _dial_udp(self, address: Address, peer: PeerId | None) -> Link:
        if self.udp is None:
            raise DialFailed("no-udp", "this node has no UDP port")
        try:
            pipe = await self.udp.dial((address.host, address.port), timeout=defaults.CLIMB_S)
        except OSError as error:
            raise DialFailed("unreachable", f"`{address}` does not answer: {error}") from None
        way = way_to(address.host)
        name = str(address)
        link = await self.endpoint.join(pipe, way, expect=peer, server=False, name=name)
        pipe.trust()
        return link

    async def _dial_place(self, place: Place, peer: PeerId) -> Link:
        return await self._dial_udp(Address(*place, peer, transport="udp"), peer)

    async def _reach_relay(self, address: Address, timeout: float) -> Link:
        """A direct path to a relay."""
        with trio.move_on_after(timeout), self.aim.at(address):
            if address.transport == "udp":
                return await self._dial_udp(address, address.peer)
            return await self.endpoint.reach(address, timeout=timeout)
        raise DialFailed("timeout", f"`{address}` did not answer within {timeout:g} s")

    async def _link_relay(self, relay: Address) -> None:
        """A direct link to a relay, by the address that is given or any that is known of it, and
        by both IP versions where there are both. Raises DialFailed."""
        if relay.peer is None or self._nursery is None:
            return
        link = self.endpoint.link(relay.peer)
        if link is None or not link.connected:
            known = [relay, *(each for each in self.book(relay.peer) if each.relay is None)]
            await self._climb(relay.peer, known, defaults.CLIMB_S).first()
        await self._families.meet(relay, self._nursery)

    async def _fetch(self, peer: PeerId) -> None:
        """A direct link to a peer whom somebody wants to reach through here, if there is a way;
        by a relay at first where need be, but by none that would look for the peer in its turn."""
        attempts = self._attempts(peer, self.book(peer), own=False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Climb(peer, self.endpoint).run, attempts, self._attempt)
            while nursery.child_tasks or self.endpoint.link(peer) is not None:
                link = self.endpoint.link(peer)
                if link is not None and link.connected and not is_relayed(link):
                    break
                await trio.sleep(defaults.FETCH_LOOK_S)
            nursery.cancel_scope.cancel()

    async def _through(self, relay: Address, peer: PeerId) -> Link:
        try:
            await self._link_relay(relay)
            pipe = await self.relays.dial(relay, peer, timeout=defaults.CLIMB_S)
        except DialFailed as error:
            if error.code not in ("tls-failed", "unreachable"):
                raise
            return await self._through_foreign(relay, peer)
        name = f"{peer} through {relay.peer}"
        try:
            with trio.fail_after(defaults.CLIMB_S):
                link = await self.endpoint.join(
                    pipe, Way.RELAYED, expect=peer, server=False, name=name
                )
        except DialFailed as error:
            if pipe.failure is not None:  # the relay's own word says more
                raise DialFailed(pipe.failure, f"`{name}`: {pipe.failure}") from None
            raise error from None
        except trio.TooSlowError:
            raise DialFailed("timeout", f"`{name}` did not answer") from None
        self.knowledge.vouch(peer, pipe.seen, relay.peer)
        self._improve(link, at_once=True)
        return link

    async def _through_foreign(self, relay: Address, peer: PeerId) -> Link:
        """By a relay that does not speak as we do: perhaps libp2p's."""
        with trio.move_on_after(defaults.CLIMB_S):
            with self.aim.at(relay):
                pipe = await self.foreign.dial(relay.through(peer))
            link = await self.endpoint.join(
                pipe, Way.RELAYED, expect=peer, server=False, name=f"{peer} through {relay.peer}"
            )
            self._improve(link, at_once=True)
            return link
        raise DialFailed("timeout", f"`{peer}` through `{relay}` did not answer")

    async def _keep_foreign(self, relay: Address) -> None:
        """Hold a place at a foreign relay, asked for again where it is lost."""
        while True:
            held = any(each.relay == relay for each in self.foreign.addresses())
            if not held and not self.relays.reachable:
                with suppress(DialFailed), trio.move_on_after(defaults.CLIMB_S):
                    await self.foreign.reserve(relay)
            await trio.sleep(defaults.FOREIGN_S)

    def _foreign_circuit_came(self, pipe: MuxStream, source: PeerId, relay: Address) -> None:
        self._join_soon(pipe, Way.RELAYED, None, server=True)

    async def _find(self, link: Link) -> None:
        """A link has lost all paths: look for one until cancelled."""
        rounds: Rounds[None] = Rounds(self._host, pause=defaults.FIND_S, every=pace(self._host))
        self._searches.add(rounds)
        try:
            await rounds.run(lambda: self._look_once(link.peer))
        finally:
            self._searches.discard(rounds)

    async def _look_once(self, peer: PeerId) -> None:
        with trio.move_on_after(defaults.CLIMB_S):
            attempts = self._attempts(peer, self.book(peer))
            await Climb(peer, self.endpoint).run(attempts, self._attempt)

    def _improve(self, link: Link, *, at_once: bool) -> None:
        if self._nursery is not None:
            self._improving.begin(link, self._nursery, at_once=at_once)

    def _improve_relayed(self) -> None:
        """Links that have lost their direct path and live on by a relay."""
        for link in self.endpoint.links():
            if link.way is Way.RELAYED:
                self._improve(link, at_once=self.endpoint.peer < link.peer)

    # What comes.

    def _join_soon(self, pipe: Pipe, way: Way, expect: PeerId | None, *, server: bool) -> None:
        if self._nursery is None:
            pipe.close()
        else:
            self._nursery.start_soon(self._join, pipe, way, expect, server)

    async def _join(self, pipe: Pipe, way: Way, expect: PeerId | None, server: bool) -> None:
        with suppress(DialFailed), trio.move_on_after(defaults.HANDSHAKE_S):
            link = await self.endpoint.join(pipe, way, expect=expect, server=server)
            if isinstance(pipe, QuicPipe):
                pipe.trust()
            if way is Way.RELAYED:
                self._improve(link, at_once=False)

    def _punched(self, pipe: Pipe, peer: PeerId, client: bool, way: Way) -> None:
        # TCP that both opened finds its sides by itself; what only one opened was dialled.
        server = not client and pipe.medium != "tcp"
        self._join_soon(pipe, way, peer, server=server)

    def _udp_came(self, pipe: QuicPipe) -> None:
        peer = self.puncher.arrived(pipe)
        way = way_to(pipe.remote[0])
        if peer is not None and way is Way.DIRECT:
            way = Way.PUNCHED
        self._join_soon(pipe, way, peer, server=True)

    def _circuit_came(
        self, pipe: CircuitPipe, source: PeerId, relay: PeerId, seen: Vouched | None
    ) -> None:
        if self._nursery is None:
            pipe.close()
            return
        self._nursery.start_soon(self._take_circuit, pipe, source, relay, seen)

    async def _take_circuit(
        self, pipe: CircuitPipe, source: PeerId, relay: PeerId, seen: Vouched | None
    ) -> None:
        with suppress(DialFailed), trio.move_on_after(defaults.HANDSHAKE_S):
            link = await self.endpoint.join(pipe, Way.RELAYED, expect=source, server=True)
            self.knowledge.vouch(source, seen, relay)
            self._improve(link, at_once=False)

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
        self._search_again()
        if way is not Way.RELAYED:
            self.puncher.met(link.peer, medium)
        if way is not Way.RELAYED:
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
        self.relays.offer([(link.peer, each) for each in known])

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

    def _neighbour(self, peer: PeerId, place: Place) -> None:
        """Somebody of our swarm answers on our own network."""
        self.knowledge.found(peer, place[0])
        link = self.endpoint.link(peer)
        if link is not None:
            link.keep()
        if self._nursery is None or (link is not None and link.way in (Way.LAN, Way.LOOPBACK)):
            return
        self._nursery.start_soon(self._meet_neighbour, Address(*place, peer))

    async def _meet_neighbour(self, address: Address) -> None:
        with suppress(DialFailed):
            await self.endpoint.reach(address, timeout=defaults.CLIMB_S, way=Way.LAN)

    def _seen_at(self, peer: PeerId) -> str | None:
        link = self.endpoint.link(peer)
        return seen_at(link).ip or None if link is not None else None

    def _relays_changed(self) -> None:
        for held in self.relays.relays:
            address = self.relays.address(held.relay)
            if self._nursery is not None and address is not None:
                self._nursery.start_soon(self._families.meet, address, self._nursery)
        self._changed()

    def _changed(self) -> None:
        for callback in self._on_change:
            callback()
