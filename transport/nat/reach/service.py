"""Reachability service of a node.

Measures at which addresses peers can reach this node, and helps peers with their measurements.
"""

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
from .linkedpeers import LinkedPeers, PeerLinks
from .looking import Looker, StunPort
from .measuring import Mapped, Measurement, NodePorts
from .offers import can_observe, observers
from .reachability import DialBackResult, Dialled, Reachability
from .stun import MessageClass
from .tcpviews import TcpViews
from .volunteer import ReachVolunteer


class Reach:
    """Reachability service of one node.

    `reachability` is the latest result, and `version` counts the results. `udp` is the node's UDP
    port, or None if it has none. If `volunteer` is True, the service also answers STUN Binding
    requests and dials back for peers. `seen_at` returns the IP addresses at which this node sees a
    peer; it returns none if this node reaches the peer only through relays. Without `seen_at`, the
    service takes a peer's address from the status of its link.
    """

    def __init__(
        self,
        host: Host,
        endpoint: PeerLinks,
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
        self._volunteer = ReachVolunteer(host, endpoint, udp, dialler, guard)
        self._awaited = Awaited()
        self._looker = Looker(host, udp) if udp is not None else None
        self._views = TcpViews()
        self._mapped = Mapped()
        # Results of paid dial-backs by (transport, address), and when the first of them began.
        self._bought: dict[tuple[str, Place], Dialled] = {}
        self._bought_at = -inf
        # The linked peers at the latest measurement, each with its IP address.
        self._could_ask: frozenset[tuple[PeerId, str]] = frozenset()
        self._turn = 0  # selects the observer that `_watch_port` asks next
        self._changed = trio.lowlevel.ParkingLot()  # woken by each new result
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
        """Wait until there is a newer result than number `version`. Return the latest number."""
        await trio.lowlevel.checkpoint()
        while self.version <= version:
            await self._changed.park()
        return self.version

    def observed_tcp(
        self, observer: PeerId, observer_ip: str, place: Place, local_port: int
    ) -> None:
        """Record that the peer `observer` sees a TCP connection of this node come from `place`.

        This node has dialled the connection from its port `local_port` to `observer_ip`, and the
        peer reports `place` in its hello. A new measurement starts if most peers now see the listen
        port at another address than before.
        """
        now, port = self._host.now(), self._endpoint.port
        before = self._views.place(port, now)
        self._views.add(observer, observer_ip, place, local_port, now)
        after = self._views.place(port, now)
        if before is not None and after is not None and before != after:
            self._news.set()

    def dialback_arrived(self, first: bytes, source: Place) -> bool:
        """Return whether an accepted TCP connection is a dial-back that this node requested.

        `first` are its first bytes, at least 17. The caller closes the connection in any case.
        """
        return self._awaited.on_connection(first, source)

    def on_stun(self, data: bytes, source: Place, socket: Datagrams) -> bool:
        """Process a datagram that arrived at the UDP port and looks like STUN.

        Returns True if it was a Binding response or a dial-back that this service awaits, or a
        request that it answered. Otherwise the datagram may belong to hole punching.
        """
        message = stun.decode(data)
        if message is None or self._udp is None:
            return False
        if message.kind is MessageClass.SUCCESS and self._looker is not None:
            return self._looker.on_answer(message, source)
        if message.kind is MessageClass.INDICATION and message.nonce is not None:
            return self._awaited.on_nonce(message.nonce, source)
        answer = self._volunteer.answer(data, message, source)
        return answer is not None and self._udp.send(answer, source, socket)

    def port_mapped(self, mapped: Mapped) -> None:
        """Store the result of port mapping. If it is new, start a measurement that verifies it."""
        if mapped != self._mapped:
            self._mapped = mapped
            self._news.set()

    def observers(self) -> list[Place]:
        """Return the UDP addresses of linked peers that are known to answer Binding requests.

        The order alternates between networks, so that the first few belong to different operators.
        """
        return [each.places[0] for each in observers(self._peers.known())]

    async def look(self, count: int = defaults.LOOK_OBSERVERS) -> list[Place]:
        """Ask up to `count` observers where they see this node's UDP port now.

        Returns their replies in the order in which they were asked. Observers that do not reply
        are left out.
        """
        if self._looker is None:
            return []
        seen = await self._looker.look(self.observers()[:count])
        return [place for place in seen if place is not None]

    async def measure(self) -> Reachability:
        """Measure everything now, and return the result. Takes 2 to 20 s.

        If a measurement is already under way, waits for its result instead.
        """
        if not self._measuring.locked():
            self._bought.clear()
        return await self._measure_again()

    async def _measure_again(self) -> Reachability:
        """Measure like `measure`, but reuse recent results of paid dial-backs."""
        if self._measuring.locked():
            async with self._measuring:
                return self.reachability
        async with self._measuring:
            self._news = trio.Event()
            await self._measure()
            return self.reachability

    # Running.

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Help peers with their measurements, and repeat this node's own measurement.

        The first measurement begins soon after the first link is up. It is repeated every 30 min,
        and earlier if something that it depends on has changed. Runs until cancelled.
        """
        async with trio.open_nursery() as nursery:
            await nursery.start(self._volunteer.run)
            nursery.start_soon(self._watch_addresses)
            self._guard.start_repeated(nursery, "peers that see this node", self._watch_port)
            self._guard.start_repeated(nursery, "links to observers", self._watch_links)
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
        """Wait a few seconds for links to enough observers.

        With fewer observers, the whole measurement would soon be repeated.
        """
        need = defaults.ENOUGH_OBSERVERS
        for _ in range(defaults.SETTLES):
            await trio.sleep(defaults.SETTLE_S)
            if len({ip for _, ip in self._peers.places() if can_observe(ip)}) >= need:
                return

    def _pause(self) -> float:
        """Return the time in seconds after which to measure again even if nothing has changed.

        The time is short if there are observers, but some IPv4 address of this node was not dialled
        by any peer. The peers were probably busy, as happens when many nodes join at once. IPv6
        addresses do not count, because there may be no peer with IPv6.
        """
        known = self.reachability
        unknown = known.observers > 0 and any(
            each.answer is DialBackResult.UNKNOWN and ":" not in each.place[0]
            for each in known.dialled
        )
        return defaults.AGAIN_S if unknown else defaults.MEASURE_S - defaults.MEASURE_GAP_S

    async def _watch_addresses(self) -> None:
        """Start a measurement when this machine's addresses change.

        The node may then be behind another NAT, so earlier views of its TCP port are forgotten.
        """
        before = self._host.interfaces()
        while True:
            await trio.sleep(defaults.INTERFACES_S)
            if (now := self._host.interfaces()) != before:
                before = now
                self._views.clear()
                self._news.set()

    async def _watch_port(self) -> None:
        """Ask one observer per minute where it sees the UDP port, each time another observer."""
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
        """Start a measurement if the UDP port is no longer seen at the address `known`.

        If `observer` sees it elsewhere, others are asked too, because one observer may be wrong.
        """
        seen = await looker.look([observer])
        if seen[0] not in (None, known) and consensus(await self.look()) not in (None, known):
            self._news.set()

    async def _watch_links(self) -> None:
        """Start a measurement when a new peer is linked, if the last one had too few observers."""
        while True:
            known = self.reachability
            too_few = known.udp.asked < defaults.ENOUGH_OBSERVERS
            await trio.sleep(defaults.SETTLE_S if too_few else defaults.LOOK_S)
            if self.measuring or known.measured_at is None or not too_few:
                continue  # enough observers were asked, or a measurement is due anyway
            if self._peers.places() - self._could_ask:
                self._news.set()

    async def _measure(self) -> None:
        """Run one measurement. Publish the NAT's kind first, and the dial-backs later."""
        now = self._host.now()
        if not self._bought or now >= self._bought_at + defaults.BOUGHT_S:
            self._bought.clear()
            self._bought_at = now
        udp_port = self._udp.port if self._udp is not None else None
        ports = NodePorts(self._endpoint.port, udp_port, self._mapped)
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
        found = replace(  # dial-backs take longer; until then their previous results stay
            self.reachability,
            udp=kind,
            udp_place=consensus(places),
            udp_places=tuple(places),
            tcp_mapping=self._views.mapping(ports.tcp, own, now),
            tcp_preserves=self._views.preserves(now),
            tcp_place=self._views.place(ports.tcp, now),
        )
        self.publish(found)
        self.publish(await measurement.complete(found, known))

    def publish(self, found: Reachability) -> None:
        self.reachability = replace(found, measured_at=self._host.now())
        self.version += 1
        self._changed.unpark_all()
