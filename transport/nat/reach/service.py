"""Reachability service of a node: measures how peers can reach it, and helps peers measure."""

from dataclasses import replace
from math import inf

import trio

from ...guard import Guard
from ...host.datagrams import Datagrams, Place
from ...host.seam import Host
from ...identity import PeerId
from . import defaults, stun
from .dialback import Awaited
from .dialler import Dialler, SeenAt
from .judging import consensus
from .linkedpeers import LinkedPeers, Links
from .looking import Looker, StunPort
from .measuring import Mapped, Measurement, Ports
from .offers import can_observe, observers
from .reachability import Answer, Dialled, Reachability
from .stun import Kind
from .tcpviews import TcpViews
from .volunteer import Volunteer


class Reach:
    """Reachability service of one node. `udp` is the node's UDP port, or None.

    With `volunteer` it also answers Binding requests and dials back for peers. `seen_at` returns
    the IP addresses at which this node sees a peer: none if it reaches the peer only through
    relays. Without `seen_at`, the status of the links is used.
    """

    def __init__(
        self,
        host: Host,
        endpoint: Links,
        udp: StunPort | None,
        *,
        volunteer: bool = True,
        seen_at: SeenAt | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.reachability = Reachability()
        self.version = 0
        self._host = host
        self._guard = guard = guard or Guard()
        self._endpoint = endpoint
        self._udp = udp
        self._peers = LinkedPeers(host, endpoint, seen_at, guard)
        dialler = Dialler(host, self._peers.seen_at, self._outside) if volunteer else None
        self._volunteer = Volunteer(host, endpoint, udp, dialler, guard)
        self._awaited = Awaited()
        self._looker = Looker(host, udp) if udp is not None else None
        self._views = TcpViews()
        self._mapped = Mapped()
        self._bought: dict[tuple[str, Place], Dialled] = {}
        self._bought_at = -inf
        self._could_ask: frozenset[tuple[PeerId, str]] = frozenset()
        self._turn = 0
        self._changed = trio.lowlevel.ParkingLot()
        self._linked = trio.Event()
        self._news = trio.Event()  # set when something has changed that a measurement depends on
        self._measuring = trio.Lock()
        endpoint.on_link(lambda _: self._linked.set())

    def _outside(self) -> set[str]:
        """Return the public IP addresses at which others see this node."""
        known = self.reachability
        found = {*known.udp_places, known.udp_place, known.tcp_place, *self._mapped_places()}
        return {place[0] for place in found if place is not None}

    def _mapped_places(self) -> list[Place]:
        return [place for place in (self._mapped.tcp, self._mapped.udp) if place is not None]

    # Used by other components.

    @property
    def measuring(self) -> bool:
        """Whether a measurement is under way."""
        return self._measuring.locked()

    async def changed(self, version: int) -> int:
        """Wait until `version` is higher than this one, and return it."""
        await trio.lowlevel.checkpoint()
        while self.version <= version:
            await self._changed.park()
        return self.version

    def observed_tcp(
        self, observer: PeerId, observer_ip: str, place: Place, local_port: int
    ) -> None:
        """Note that a peer's hello reports where it sees a connection that this node dialled, from
        `local_port` to `observer_ip`."""
        now, port = self._host.now(), self._endpoint.port
        before = self._views.place(port, now)
        self._views.add(observer, observer_ip, place, local_port, now)
        after = self._views.place(port, now)
        if before is not None and after is not None and before != after:
            self._news.set()

    def dialback_arrived(self, first: bytes, source: Place) -> bool:
        """Whether an accepted TCP connection that began with `first` (at least 17 bytes) is a
        dial-back to this node. The caller closes the connection in any case."""
        return self._awaited.on_connection(first, source)

    def on_stun(self, data: bytes, source: Place, socket: Datagrams) -> bool:
        """Take a STUN message of the UDP port. Return whether it was for this service."""
        message = stun.decode(data)
        if message is None or self._udp is None:
            return False
        if message.kind is Kind.SUCCESS and self._looker is not None:
            return self._looker.on_answer(message, source)
        if message.kind is Kind.INDICATION and message.nonce is not None:
            return self._awaited.on_nonce(message.nonce, source)
        answer = self._volunteer.answer(data, message, source)
        return answer is not None and self._udp.send(answer, source, socket)

    def port_mapped(self, mapped: Mapped) -> None:
        """Note the result of port mapping, which the next measurement verifies."""
        if mapped != self._mapped:
            self._mapped = mapped
            self._news.set()

    def observers(self) -> list[Place]:
        """Return UDP addresses of linked peers that are known to answer Binding requests, spread
        over networks."""
        return [each.places[0] for each in observers(self._peers.known())]

    async def look(self, count: int = defaults.LOOK_OBSERVERS) -> list[Place]:
        """Return the addresses at which up to `count` observers see the UDP port now.

        The addresses are in the order of asking.
        """
        if self._looker is None:
            return []
        seen = await self._looker.look(self.observers()[:count])
        return [place for place in seen if place is not None]

    async def measure(self) -> Reachability:
        """Measure everything now (2 to 20 s), or wait for the measurement under way."""
        if not self._measuring.locked():
            self._bought.clear()
        return await self._measure_again()

    async def _measure_again(self) -> Reachability:
        """Measure as `measure` does, but reuse recent results of paid dial-backs."""
        if self._measuring.locked():
            async with self._measuring:
                return self.reachability
        async with self._measuring:
            self._news = trio.Event()
            await self._measure()
            return self.reachability

    # Running.

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Volunteer, and measure: once there are links, every 30 min, and after changes."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self._volunteer.run)
            nursery.start_soon(self._watch_addresses)
            nursery.start_soon(self._watch_port)
            nursery.start_soon(self._watch_links)
            task_status.started()
            await self._linked.wait()
            await self._settle()
            while True:
                with self._guard.around("peers that were asked how this node is reached"):
                    await self._measure_again()
                await trio.sleep(defaults.MEASURE_GAP_S)
                with trio.move_on_after(self._pause()):
                    await self._news.wait()

    async def _settle(self) -> None:
        """Wait for enough observers. With fewer, the whole measurement would soon be repeated."""
        need = defaults.ENOUGH_OBSERVERS
        for _ in range(defaults.SETTLES):
            await trio.sleep(defaults.SETTLE_S)
            if len({ip for _, ip in self._peers.places() if can_observe(ip)}) >= need:
                return

    def _pause(self) -> float:
        """Return the time to the next measurement, in seconds. It is short if a peer could have
        dialled back but was busy, as when many nodes join at once. Over IPv6 there may be no such
        peer, so it does not count."""
        known = self.reachability
        unknown = known.observers > 0 and any(
            each.answer is Answer.UNKNOWN and ":" not in each.place[0] for each in known.dialled
        )
        return defaults.AGAIN_S if unknown else defaults.MEASURE_S - defaults.MEASURE_GAP_S

    async def _watch_addresses(self) -> None:
        """Measure again if an interface comes or goes, because there may be another NAT."""
        before = self._host.interfaces()
        while True:
            await trio.sleep(defaults.INTERFACES_S)
            if (now := self._host.interfaces()) != before:
                before = now
                self._views.clear()
                self._news.set()

    async def _watch_port(self) -> None:
        """Ask one observer after the other where it sees the port. If it is elsewhere now, ask
        others too, because one alone is not trusted."""
        while True:
            await trio.sleep(defaults.LOOK_S)
            there, known = self.observers(), self.reachability.udp_place
            if self._looker is None or not there or known is None:
                continue
            self._turn += 1
            place = there[self._turn % len(there)]
            with self._guard.around(place):
                await self._compare(self._looker, place, known)

    async def _compare(self, looker: Looker, observer: Place, known: Place) -> None:
        seen = await looker.look([observer])
        if seen[0] not in (None, known) and consensus(await self.look()) not in (None, known):
            self._news.set()

    async def _watch_links(self) -> None:
        """Measure again when a new peer comes, if there were too few observers."""
        while True:
            known = self.reachability
            too_few = known.udp.asked < defaults.ENOUGH_OBSERVERS
            await trio.sleep(defaults.SETTLE_S if too_few else defaults.LOOK_S)
            if self.measuring or known.measured_at is None or not too_few:
                continue  # a measurement with more peers would show nothing new
            if self._peers.places() - self._could_ask:
                self._news.set()

    async def _measure(self) -> None:
        now = self._host.now()
        if not self._bought or now >= self._bought_at + defaults.BOUGHT_S:
            self._bought.clear()
            self._bought_at = now
        udp_port = self._udp.port if self._udp is not None else None
        ports = Ports(self._endpoint.port, udp_port, self._mapped)
        measurement = Measurement(
            self._host,
            self._peers,
            self._awaited,
            ports=ports,
            guard=self._guard,
            bought=self._bought,
        )
        self._could_ask = self._peers.places()
        known = await self._peers.ask()
        kind = await measurement.classify(known)
        places = await self.look()
        now = self._host.now()
        own = [item.address for item in self._host.interfaces()]
        found = replace(  # results of dialling take longer; until then the previous ones stay
            self.reachability,
            udp=kind,
            udp_place=consensus(places),
            udp_places=tuple(places),
            tcp_mapping=self._views.mapping(ports.tcp, own, now),
            tcp_preserves=self._views.preserves(now),
            tcp_place=self._views.place(ports.tcp, now),
        )
        self._publish(found)
        self._publish(await measurement.complete(found, known))

    def _publish(self, found: Reachability) -> None:
        self.reachability = replace(found, measured_at=self._host.now())
        self.version += 1
        self._changed.unpark_all()
