"""Client of relays: makes this node reachable by reservations at relays, and dials circuits.

While `reachable` is False, it holds reservations at a few near relays in different networks. One of
them listens on TCP 443, for peers whose network allows no other outbound connections. It renews a
reservation after half of its life, and replaces a relay at once when the link to that relay is
lost. `dial` works whether this node is reachable or not.
"""

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import trio

from ..address import Address
from ..dial.endpoint import Endpoint
from ..errors import CallRefused, DialFailed, LinkClosed
from ..host.seam import Host
from ..identity import PeerId, parse_peer_id
from ..lane.frame import Priority
from ..link.calls import Call, Refusal, Reply
from ..link.link import Link
from ..link.serving import IncomingStream
from ..rates import Rate, Rates
from .choice import KnownRelays, RelayCandidate
from .circuit import CircuitByteStream
from .defaults import (
    ANSWER_S,
    ARRIVALS,
    ARRIVING,
    ARRIVING_PER_RELAY,
    ARRIVING_PER_SOURCE,
    BETTER,
    GATHER_S,
    IMPROVE_S,
    SPARE,
    TTL_S,
    UNASKED,
    UNASKED_PER_RELAY,
    WANTED,
    WINDOW_BYTES,
)
from .survey import Survey
from .vouch import Vouched, is_relayed, read_vouched

OnSeen = Callable[[PeerId, Vouched | None, PeerId | None], None]
"""Called with a peer, the address at which a relay sees that peer, and the relay."""
OnCircuit = Callable[[CircuitByteStream, PeerId, PeerId, Vouched | None], None]
"""Called with an incoming circuit: its byte stream, the claimed opener (TLS will authenticate that
peer), the relay, and the address at which the relay sees the opener."""


@dataclass(slots=True)
class HeldReservation:
    """A reservation of this node.

    `rtt` is the round trip to the relay in seconds. `seen` is the address at which the relay sees
    this node. `renew` and `expires` are times on the host's clock.
    """

    relay: PeerId
    rtt: float
    seen: Vouched | None
    renew: float
    expires: float


class RelayClient:
    """Holder of `wanted` reservations at relays, and dialer of circuits.

    `reach(address, timeout)` makes a direct path to a relay within `timeout` seconds, or raises
    DialFailed. If it is None, relays are dialled only over TCP.
    """

    def __init__(
        self,
        host: Host,
        endpoint: Endpoint,
        *,
        wanted: int = WANTED,
        reach: Callable[[Address, float], Awaitable[Link]] | None = None,
    ) -> None:
        self._host = host
        self._endpoint = endpoint
        self._wanted = wanted
        self.everywhere = False
        """Whether peers reach this node on TCP 443 too, and therefore from nearly any network."""
        self._reachable = False
        self._choice = KnownRelays()
        self._survey = Survey(host, endpoint, self._choice, reach=reach)
        self.reservations: dict[PeerId, HeldReservation] = {}
        self._asking: set[PeerId] = set()  # relays with a reservation request in progress
        self._running = False
        self._arriving: Counter[PeerId] = Counter()  # open incoming circuits by relay
        self._unasked: Counter[PeerId] = Counter()  # those of relays without a reservation
        self._sources: Counter[str] = Counter()  # open incoming circuits by claimed opener
        self._arrivals = Rates(Rate(*ARRIVALS))
        self._improve = 0.0  # time at which to look for nearer relays
        self._news = trio.Event()
        self._on_change: list[Callable[[], None]] = []
        self._on_circuit: list[OnCircuit] = []
        self._on_seen: list[OnSeen] = []
        self._circuits: WeakKeyDictionary[CircuitByteStream, PeerId] = WeakKeyDictionary()
        endpoint.handle("relay.lends", self._on_lends)
        endpoint.handle("relay.seen", self._seen_elsewhere)
        endpoint.handle_stream("relay.accept", self._on_accept)
        endpoint.on_link_lost(self._on_link_lost)
        endpoint.on_link_quiet(self._on_link_quiet)
        endpoint.on_link_back(self._on_link_back)

    # State and callbacks.

    @property
    def reachable(self) -> bool:
        """Whether peers reach this node without relays. False until it is set."""
        return self._reachable

    @reachable.setter
    def reachable(self, reachable: bool) -> None:
        if reachable != self._reachable:
            self._reachable = reachable
            self._news.set()

    @property
    def relays(self) -> list[HeldReservation]:
        """The reservations that are held now, the nearest relay first."""
        return sorted(self.reservations.values(), key=lambda held: held.rtt)

    @property
    def known(self) -> list[RelayCandidate]:
        """Nodes that have answered as relays, whether this node has a reservation there or not."""
        return self._choice.answered()

    def addresses(self) -> list[Address]:
        """Return the addresses of this node through its relays, for publication.

        The nearest relay comes first. For each relay there is its first address, and the one on TCP
        443.
        """
        found: dict[Address, None] = {}
        for held in self.relays:
            candidate = self._choice.find(held.relay)
            if candidate is None:
                continue
            for address in (candidate.addresses[0], candidate.everywhere):
                if address is not None:
                    found[address.through(self._endpoint.peer)] = None
        return list(found)

    def address(self, relay: PeerId) -> Address | None:
        """Return the first known address of a relay, or None."""
        candidate = self._choice.find(relay)
        return candidate.addresses[0] if candidate is not None else None

    def offer(self, relays: Sequence[tuple[PeerId, Address]]) -> None:
        """Add nodes that have said that they relay. A node may occur several times, with an address
        each."""
        for peer, _ in relays:
            self._choice.lends(peer, True)
        self.met(relays)

    def met(self, peers: Sequence[tuple[PeerId, Address]]) -> None:
        """Add addresses of linked nodes. Each node states itself whether it relays."""
        news = [
            self._choice.offer(peer, address)
            for peer, address in peers
            if peer != self._endpoint.peer
        ]
        if any(news):
            self._news.set()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Register `callback()`, called whenever `addresses` has changed."""
        self._on_change.append(callback)

    def on_circuit(self, callback: OnCircuit) -> None:
        """Register `callback(byte_stream, source, relay, seen)`, called for every incoming circuit.

        The callback must close `byte_stream` in the end. This side is the TLS server on
        it.
        """
        self._on_circuit.append(callback)

    def on_seen(self, callback: OnSeen) -> None:
        """Register `callback(peer, seen, relay)`, called when a relay sees a peer at another
        address.

        The peer is the other end of a circuit of this node. The address may replace the earlier one
        or be an additional one.
        """
        self._on_seen.append(callback)

    def _on_lends(self, call: Call) -> Reply:
        """Handle `relay.lends`, in which a peer states its rate as a relay; 0 if it does not
        relay."""
        rate = call.header.get("rate")
        self._choice.lends(call.peer, type(rate) is int and rate > 0)
        if call.peer in self.reservations and not rate:
            self._drop(call.peer)
        self._news.set()
        return Reply()

    def _seen_elsewhere(self, call: Call) -> Reply | Refusal:
        """Handle `relay.seen`: store another address at which the relay of a circuit sees the
        circuit's other end. Refuse the call if the caller is not the relay of such a circuit."""
        peer, link = call.header.get("peer"), self._endpoint.link(call.peer)
        circuits = list(self._circuits.items())
        known = [
            other
            for byte_stream, other in circuits
            if (byte_stream.relay, other) == (call.peer, peer)
        ]
        if link is None or not known:
            return Refusal("no-circuit", "no such circuit")
        seen = read_vouched(call.header.get("seen"), link.address[0])
        for callback in self._on_seen:
            callback(known[0], seen, call.peer)
        return Reply()

    # Dialling.

    async def dial(
        self,
        relay: Address,
        peer: PeerId,
        *,
        timeout: float,
        priority: Priority = Priority.ACTIVATION,
    ) -> CircuitByteStream:
        """Open a circuit to `peer` through the relay at an address.

        Returns before the relay has replied, so that a handshake can be sent at once. If the relay
        then refuses, the byte stream's `failure` is the code. Raises DialFailed with the codes of
        `Endpoint.dial`, with `relayed` if the relay is itself reached through another one, and with
        `busy` or `self`.
        """
        if peer == self._endpoint.peer:
            raise DialFailed("self", "cannot open a circuit to this node itself")
        link = await self._survey.link_at(relay, timeout)
        if is_relayed(link):
            raise DialFailed("relayed", f"`{relay}` is itself reached through a relay")
        try:
            stream = await link.open_stream("relay.connect", {"peer": peer}, priority=priority)
        except (CallRefused, LinkClosed) as error:
            raise DialFailed(error.code, f"`{relay}`: {error.message}") from None
        stream.narrow(WINDOW_BYTES)
        stream.carry_link()
        byte_stream = CircuitByteStream(stream, link.peer, voucher=link.address[0])
        self._circuits[byte_stream] = peer
        return byte_stream

    # Arriving circuits.

    async def _on_accept(self, incoming: IncomingStream) -> None:
        """Accept a circuit from a relay.

        A relay at which this node has a reservation may bring many circuits, any other relay only a
        few. Circuits through other relays serve peers in networks that allow only web traffic. Such
        a peer reaches a public node only through a relay that the peer has chosen.
        """
        relay, stream = incoming.peer, incoming.stream
        stream.narrow(WINDOW_BYTES)
        stream.carry_link()
        link = self._endpoint.link(relay)
        asked = relay in self.reservations or relay in self._asking
        if link is None or not (asked or self._may_come_unasked(relay)):
            stream.reset("no-reservation")
            return
        source = incoming.header["peer"]
        if not isinstance(source, str) or parse_peer_id(source) == self._endpoint.peer:
            stream.reset("bad-request")
            return
        if not self._on_circuit or not self._may_arrive(relay, source):
            stream.reset("busy")
            return
        seen = read_vouched(incoming.header.get("seen"), link.address[0])
        byte_stream, opener = CircuitByteStream(stream, relay, seen=seen), PeerId(source)
        self._circuits[byte_stream] = opener
        self._arriving[relay] += 1
        self._sources[opener] += 1
        self._unasked[relay] += not asked
        try:
            guard = self._endpoint.guard
            guard.tell(
                relay, self._on_circuit, byte_stream, opener, relay, seen, end=byte_stream.close
            )
            await byte_stream.wait_closed()
        finally:
            self._arriving -= Counter((relay,))  # removes counts of 0
            self._sources -= Counter((opener,))
            self._unasked[relay] -= not asked
            self._unasked += Counter()

    def _may_come_unasked(self, relay: PeerId) -> bool:
        """Return whether a relay without a reservation may bring another circuit now."""
        few = self._unasked.total() < UNASKED and self._unasked[relay] < UNASKED_PER_RELAY
        return self._running and few

    def _may_arrive(self, relay: PeerId, source: str) -> bool:
        """Return whether limits allow another incoming circuit of a relay and a claimed opener."""
        return (
            self._arriving.total() < ARRIVING
            and self._arriving[relay] < ARRIVING_PER_RELAY
            and self._sources[source] < ARRIVING_PER_SOURCE
            and self._arrivals.take(relay, self._host.now())
        )

    # Reservations.

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Maintain the reservations until cancelled."""
        self._running = True
        task_status.started()
        try:
            while True:
                self._news = trio.Event()
                due = self._host.now() + GATHER_S
                with self._endpoint.guard.around("relays"):
                    due = await self._tend()
                with trio.move_on_at(due):
                    await self._news.wait()
        finally:
            self._running = False
            self._release_all()

    async def _tend(self) -> float:
        """Renew due reservations, and find missing or nearer relays. Return the time of the next
        call."""
        if self._reachable:
            self._release_all(but=0 if self.everywhere else 1)
        await self._renew()
        if self._missing():
            await self._find()
        elif self.reservations and self._host.now() >= self._improve:
            await self._improve_one()
        return self._next_due()

    @property
    def _goal(self) -> int:
        """Number of reservations to hold.

        A node that peers reach directly needs only one, at a relay on TCP 443.
        """
        if not self._reachable:
            return self._wanted
        return int(not self.everywhere and (bool(self.reservations) or self._may_find_443()))

    def _missing(self) -> int:
        """Return how many more reservations are needed. A missing relay on TCP 443 counts as
        one."""
        goal = self._goal
        missing = max(0, goal - len(self.reservations))
        lacking = self._choice.lacks_443(self.reservations) and self._may_find_443()
        return missing or int(lacking and 0 < goal == len(self.reservations))

    def _next_due(self) -> float:
        """Return the time at which `_tend` must run next."""
        now = self._host.now()
        times = [held.renew for held in self.reservations.values()]
        if self._goal == 0:
            return min(times, default=math.inf)
        if len(self.reservations) < self._goal:
            times.append(max(self._choice.next_try(self.reservations), now + GATHER_S))
        else:
            times.append(self._improve)
        return min(times)

    def _may_find_443(self) -> bool:
        """Return whether a further relay on TCP 443 may be tried now."""
        return self._choice.offers_443(self.reservations, self._host.now())

    async def _renew(self) -> None:
        """Renew the reservations that are due, all at the same time."""
        due = [held for held in self.reservations.values() if held.renew <= self._host.now()]
        async with trio.open_nursery() as nursery:
            for held in due:
                self._endpoint.guard.start(nursery, held.relay, self._renew_one, held)

    async def _renew_one(self, held: HeldReservation) -> None:
        """Renew a reservation, or drop it if that fails."""
        link = self._endpoint.link(held.relay)
        if link is None or not await self._reserve(link, held.rtt):
            self._drop(held.relay)

    async def _find(self) -> None:
        """Measure some relays, and reserve at the best of them."""
        measured = await self._measure(self._missing() + SPARE, hurry=not self._reachable)
        left = [each for each in measured if each.peer not in self.reservations]
        for candidate in self._choice.rank(left, self.reservations, self._missing()):
            # A reservation beyond the goal, or of a reachable node, is useful only on port 443.
            only_443 = self._reachable or len(self.reservations) >= self._goal
            if self._missing() and (candidate.everywhere or not only_443):
                await self._reserve_at(candidate)
        if len(self.reservations) > self._goal:
            self._give_up_the_farthest()

    async def _improve_one(self) -> None:
        """Measure further relays. If one is much nearer, it replaces the farthest."""
        self._improve = self._host.now() + IMPROVE_S
        farthest = self.relays[-1]
        others = [peer for peer in self.reservations if peer != farthest.relay]
        measured = await self._measure(SPARE)
        ranked = self._choice.rank(measured, others, 1)
        near = [each for each in ranked if (each.rtt or 0.0) < BETTER * farthest.rtt]
        only_443 = self._choice.lacks_443(others) and not self._choice.lacks_443(self.reservations)
        if only_443 and near and near[0].everywhere is None:
            return
        if near and await self._reserve_at(near[0]):
            self._give_up(farthest.relay)

    def _give_up_the_farthest(self) -> None:
        """Release the reservation at the farthest relay that is not needed for TCP 443."""
        for held in reversed(self.relays):
            others = [peer for peer in self.reservations if peer != held.relay]
            if not self._choice.lacks_443(others):
                self._give_up(held.relay)
                return

    async def _measure(self, count: int, *, hurry: bool = False) -> list[RelayCandidate]:
        """Measure up to `count` candidates, and return those that have answered as relays.

        If `hurry` is set and there is no reservation yet, reserve at once at the first relay that
        answers, because it is probably the nearest.
        """

        async def serve_at_once(candidate: RelayCandidate) -> None:
            if hurry and not self.reservations and not self._asking:
                await self._reserve_at(candidate)

        links = {link.peer: link for link in self._endpoint.links()}
        trying = self._choice.to_try(self.reservations, links, count, self._host.now())
        return await self._survey.measure(trying, serve_at_once)

    async def _reserve_at(self, candidate: RelayCandidate) -> bool:
        """Make a reservation at a candidate, and report it. Return whether it was granted."""
        link = self._endpoint.link(candidate.peer)
        if link is None or not await self._reserve(link, candidate.rtt or 0.0):
            return False
        self._changed()
        return True

    async def _reserve(self, link: Link, rtt: float) -> bool:
        """Make or renew a reservation. Return whether it was granted. `rtt` is in seconds."""
        self._asking.add(link.peer)
        try:
            reply = await link.call("relay.reserve", timeout=ANSWER_S)
        except (CallRefused, LinkClosed) as error:
            self._choice.failed(link.peer, error.code, self._host.now())
            return False
        finally:
            self._asking.discard(link.peer)
        if not link.alive:
            return False
        now, ttl = self._host.now(), _ttl(reply)
        seen = read_vouched(reply.header.get("seen"), link.address[0])
        self.reservations[link.peer] = HeldReservation(
            link.peer, rtt, seen, now + ttl / 2, now + ttl
        )
        link.keep()
        self._choice.worked(link.peer)
        return True

    # End of reservations.

    def _on_link_lost(self, link: Link, code: str) -> None:
        """Drop a relay whose link is lost. A link that was replaced does not count as a failure."""
        if link.peer in self.reservations:
            if code not in ("replaced", "peer-restarted"):
                self._choice.failed(link.peer, code, self._host.now())
            self._drop(link.peer)

    def _on_link_quiet(self, link: Link) -> None:
        """Drop a relay whose link is quiet, because no peer reaches this node through that relay
        now."""
        if link.peer in self.reservations:
            self._choice.failed(link.peer, "silent", self._host.now())
            self._drop(link.peer)

    def _on_link_back(self, link: Link) -> None:
        """Clear the failures of a relay: only its link was interrupted, and the relay is alive."""
        self._choice.worked(link.peer)
        self._news.set()

    def _drop(self, relay: PeerId) -> None:
        """Remove a reservation, and look for another relay."""
        if self.reservations.pop(relay, None) is not None:
            self._news.set()
            self._changed()

    def _give_up(self, relay: PeerId) -> None:
        """Release a reservation, and tell the relay."""
        link = self._endpoint.link(relay)
        if link is not None and link.alive:
            link.post("relay.release", priority=Priority.CONTROL)
        self._drop(relay)

    def _release_all(self, *, but: int = 0) -> None:
        """Release all reservations, except those at the `but` nearest relays on TCP 443."""
        kept = [each.relay for each in self.relays if not self._choice.lacks_443([each.relay])]
        for relay in list(self.reservations):
            if relay not in kept[:but]:
                self._give_up(relay)

    def _changed(self) -> None:
        """Call the callbacks, because `addresses` has changed."""
        for callback in self._on_change:
            callback()


def _ttl(reply: Reply) -> float:
    """Return the life of a granted reservation in seconds, within sensible limits."""
    header: Mapping[str, object] = reply.header
    value = header.get("ttl")
    shortest, longest = TTL_S
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return shortest
    return float(min(max(shortest, value), longest))
