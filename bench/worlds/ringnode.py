"""A light node of the key space: the cores of `dht/` on a light host, without TLS and tasks.

It costs what a real one would in packets and round trips: four round trips for a link to a new
peer, messages split into packets, lost packets sent again. Signatures are those of real records.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush, nsmallest
from math import ceil, inf
from random import Random
from typing import Any, Final

from shoal.dht.defaults import K
from shoal.dht.kademlia.messages import Aged, Find, FindReply, StoreRequest
from shoal.dht.kademlia.recordstore import RecordStore
from shoal.dht.kademlia.table import Table
from shoal.dht.lookup.lookup import Lookup
from shoal.dht.lookup.query import LookupGoal, LookupSettings, Querier, Query
from shoal.dht.publishing.parcels import StoreQuery
from shoal.dht.publishing.walk import KnownNodes, Walk
from shoal.dht.records.contact import Contact
from shoal.dht.records.key import Key, point
from shoal.dht.records.record import Record, open_record
from shoal.netsim.light import Sends
from shoal.netsim.network.packet import Addr
from shoal.transport.identity import PeerId

WALL: Final = 1_800_000_000.0
"""Seconds since 1970 at the start of a simulation."""
PAYLOAD: Final = 1_350  # message bytes per packet, with the bytes that TLS and the lane add
DIAL_TRIPS: Final = 4
LINK_IDLE_S: Final = 60.0
RESEND_S: Final = (0.6, 1.8, 4.2)
"""Seconds after the last progress: first retransmission, second retransmission, failure."""
NOWHERE: Final = ("198.18.255.254", 4001)
"""An address that never replies."""
LIAR_KIN, GHOSTS_NEAR = 5, 200
"""Liars among the 20 contacts that a liar names; ghosts near a key, of which it draws others."""
SLACK: Final = 4.0
"""Records are stored up to this many times the radius of a region away."""

Done = Callable[[Any], None]


class Parcel(bytes):
    """Packet with a true size, whose content is not encoded."""

    message: Any


def parcel(size: int, message: Any) -> Parcel:
    made = Parcel(size)
    made.message = message
    return made


def found_size(found: FindReply) -> int:
    """Return the approximate size of a reply in bytes; encoding it would cost more than all
    else.
    """
    contacts = {contact for listed in found.nearest for contact in listed}
    return (
        64
        + sum(len(contact.packed) + 2 for contact in contacts)
        + 2 * sum(map(len, found.nearest))
        + sum(len(aged.sealed) + 8 for listed in found.records for aged in listed)
    )


@dataclass(slots=True)
class _Exchange:
    """One request: the dial if there is no link, then the message."""

    contact: Contact
    request: Find | StoreRequest
    done: Done  # called with the answer, or None
    trip: int  # of the dial; DIAL_TRIPS when there is a link
    size: int
    tries: int = 0
    parts: set[int] | None = None  # parts of the reply that have arrived


class RingNode:
    """One node; a `Core` of netsim.light. `where` gives the address of each peer."""

    def __init__(
        self,
        contact: Contact,
        random: Random,
        where: dict[PeerId, Addr],
        *,
        settings: LookupSettings | None = None,
        subnet_limits: bool = True,
        spread: bool = True,
    ) -> None:
        self.contact = contact
        self.settings = settings or LookupSettings()
        self.table = Table(
            contact.key, random.randbytes, subnet_limits=subnet_limits, spread=spread
        )
        self.store = RecordStore(contact.key, random.randbytes)
        self.links: dict[PeerId, float] = {}
        self.sent = {"find": 0, "store": 0}  # messages
        self.wake_at = inf
        self.now = 0.0  # to be set by a caller from outside
        self._random = random
        self._where = where
        self._out: list[tuple[bytes, Addr]] = []
        self._timers: list[tuple[float, int, Callable[[float], None]]] = []
        self._serial = 0
        self._exchanges: dict[int, _Exchange] = {}

    # As a core.

    def on_datagram(self, now: float, data: bytes, source: Addr) -> Sends:
        self.now = now
        assert isinstance(data, Parcel)
        kind, number, value = data.message
        if kind == "dial":
            self._out.append((parcel(300, ("dialled", number, value)), source))
        elif kind == "dialled":
            self._dialled(number, value)
        elif kind == "ask":
            self._asked(number, value, source)
        elif kind == "answer":
            self._answered(number, value)
        return self._flush()

    def on_time(self, now: float) -> Sends:
        self.now = now
        while self._timers and self._timers[0][0] <= now:
            heappop(self._timers)[2](now)
        return self._flush()

    def take(self) -> list[tuple[bytes, Addr]]:
        """Return what has to be sent after a call from outside."""
        return self._flush()

    def at(self, when: float, action: Callable[[float], None]) -> None:
        self._serial += 1
        heappush(self._timers, (when, self._serial, action))

    def _flush(self) -> list[tuple[bytes, Addr]]:
        self.wake_at = self._timers[0][0] if self._timers else inf
        out, self._out = self._out, []
        return out

    # Requests.

    def linked(self, peer: PeerId) -> bool:
        return self.now - self.links.get(peer, -inf) < LINK_IDLE_S

    def ask(self, contact: Contact, request: Find | StoreRequest, done: Done) -> None:
        """Send a request. `done` gets a Found or a list of codes, or None if the peer did not
        reply.
        """
        self._serial += 1
        records = request.records if isinstance(request, StoreRequest) else ()
        size = 220 + sum(len(aged.sealed) + 8 for aged in records)
        trip = DIAL_TRIPS if self.linked(contact.peer) else 0
        self.sent["store" if records else "find"] += 1
        self._exchanges[self._serial] = _Exchange(contact, request, done, trip, size)
        self._send(self._serial)

    def _send(self, number: int) -> None:
        one = self._exchanges[number]
        to = self._where.get(one.contact.peer, NOWHERE)
        if one.trip < DIAL_TRIPS:
            self._out.append((parcel(300, ("dial", number, one.trip)), to))
        else:
            self._in_parts(one.size, "ask", number, (one.request, self.contact), to)
        tries, trip = one.tries, one.trip
        delay = RESEND_S[tries] - (RESEND_S[tries - 1] if tries else 0.0)
        self.at(self.now + delay, lambda now: self._late(number, tries, trip))

    def _in_parts(self, size: int, kind: str, number: int, value: Any, to: Addr) -> None:
        count = ceil(size / PAYLOAD)
        for index in range(count):
            length = min(PAYLOAD, size - index * PAYLOAD) + 60
            self._out.append((parcel(length, (kind, number, (index, count, value))), to))

    def _late(self, number: int, tries: int, trip: int) -> None:
        one = self._exchanges.get(number)
        if one is None or (one.tries, one.trip) != (tries, trip):
            return
        one.tries += 1
        if one.tries < len(RESEND_S):
            self._send(number)
            return
        del self._exchanges[number]
        self.links.pop(one.contact.peer, None)
        self.table.failed(one.contact.peer, self.now)
        one.done(None)

    def _dialled(self, number: int, trip: int) -> None:
        one = self._exchanges.get(number)
        if one is None or one.trip != trip:
            return
        one.trip, one.tries = trip + 1, 0
        self._send(number)

    def _answered(self, number: int, value: tuple[int, int, Any]) -> None:
        index, count, answer = value
        one = self._exchanges.get(number)
        if one is None:
            return
        one.parts = (one.parts or set()) | {index}
        if len(one.parts) < count:
            return
        del self._exchanges[number]
        self.links[one.contact.peer] = self.now
        self.table.answered(one.contact, self.now)
        one.done(answer)

    # Serving.

    def _asked(self, number: int, value: tuple[int, int, Any], source: Addr) -> None:
        index, count, (request, asker) = value
        if index < count - 1:
            return  # the last part stands for all: the loss of an earlier one is ignored
        self.links[asker.peer] = self.now
        self.table.answered(asker, self.now)
        if isinstance(request, Find):
            found = self.find(request)
            self._in_parts(found_size(found), "answer", number, found, source)
        else:
            codes = self.keep(request, asker)
            self._in_parts(60 + 4 * len(codes), "answer", number, codes, source)

    def find(self, find: Find) -> FindReply:
        """Return its reply to a question."""
        records = self.store.find(find.keys, self.now, most=find.most, kinds=find.kinds)
        places = (*find.keys, *find.near)
        return FindReply(records, tuple(tuple(self.table.nearest(key)) for key in places))

    def keep(self, store: StoreRequest, sender: Contact) -> list[str]:
        """Store records that a peer sends; return a code for each."""
        self.store.radius = SLACK * self.table.radius()
        network = min(sender.networks, default="")
        return [
            self.store.put(
                open_record(aged.sealed),
                sender=sender.peer,
                network=network,
                age=float(aged.age),
                now=self.now,
                wall=WALL + self.now,
            )
            for aged in store.records
        ]

    # Tasks.

    def get(self, key: Key, ended: Callable[[Lookup, float], None], enough: int = 1) -> None:
        """Look a key up; `ended` is called with the look-up and the time."""
        self._drive(self._lookup(key, self.settings, enough), ended)

    def publish(self, records: Sequence[Record], ended: Callable[[Walk, float], None]) -> None:
        """Publish records in one walk."""
        walk = Walk(
            records,
            KnownNodes(self.table.nearest, self.table.radius()),
            self._querier(),
            settings=self.settings,
        )
        self._drive(walk, ended)

    def join(self, contacts: Sequence[Contact]) -> None:
        """Look up its own key through the given contacts, then a key in each bucket."""
        self._explore(self.contact.key, contacts)

    def refresh(self) -> None:
        """Look up a key in each bucket that has not been refreshed for long."""
        due = self.table.refresh_due(self.now)
        if due:
            self._explore(due[0], ())

    def _explore(self, key: Key, contacts: Sequence[Contact]) -> None:
        plain = replace(self.settings, random_order=False)

        def ended(lookup: Lookup, now: float) -> None:
            self.table.looked(key, now)
            self.table.sample(key, lookup.answerers())
            self.refresh()

        self._drive(self._lookup(key, plain, 0, contacts), ended)

    def _lookup(
        self, key: Key, settings: LookupSettings, enough: int, contacts: Sequence[Contact] = ()
    ) -> Lookup:
        return Lookup(
            LookupGoal((key,), self.table.radius(), enough),
            contacts or self.table.nearest(key),
            self._querier(),
            settings=settings,
        )

    def _querier(self) -> Querier:
        return Querier(self._random.randbytes, self.contact.peer, linked=self.linked)

    def _drive(self, task: Any, ended: Callable[[Any, float], None]) -> None:
        """Send the queries of `task` until it is done, then call `ended`."""
        over, armed = False, inf

        def woken(now: float) -> None:
            nonlocal armed
            if now >= armed:
                armed = inf
            go(now)

        def go(now: float) -> None:
            nonlocal over, armed
            if over:
                return
            for query in task.next(now):
                ask(query)
            if task.done:
                over = True
                ended(task, now)
                return
            wake = task.wake_at(now)
            if wake < armed:
                armed = wake
                self.at(wake, woken)

        def ask(query: Query | StoreQuery) -> None:
            request = query.find if isinstance(query, Query) else query.store

            def done(answer: Any) -> None:
                _tell(task, query, answer, self.now)
                go(self.now)

            self.ask(query.contact, request, done)

        go(self.now)


def _tell(task: Any, query: Query | StoreQuery, answer: Any, now: float) -> None:
    """Tell a task the result of its query."""
    if isinstance(query, StoreQuery):
        if answer is None:
            task.store_failed(query, now)
        else:
            task.stored(query, answer, now)
        return
    about = query if isinstance(task, Walk) else query.contact
    if answer is None:
        task.failed(about, now)
    else:
        task.answered(about, answer, now, WALL + now)


class Liar(RingNode):
    """Malicious node that claims to serve and to have everything that is looked up.

    It stores nothing but confirms every store. It names the liars nearest to what is asked, and
    ghosts: contacts near the key that do not exist, different ones each time.
    """

    kin: Sequence[Contact] = ()
    ghosts: Sequence[Contact] = ()
    """The liars, in the order of their keys."""
    forge: Callable[[Key], Sequence[bytes]] = staticmethod(lambda key: ())
    """Returns sealed records under a key, by authors that it made up."""

    def find(self, find: Find) -> FindReply:
        near = tuple(self._named(point(key)) for key in (*find.keys, *find.near))
        forged = tuple(self.forge(key)[: find.most] for key in find.keys)
        records = tuple(tuple(Aged(0, sealed) for sealed in each) for each in forged)
        return FindReply(records, near)

    def _named(self, at: int) -> tuple[Contact, ...]:
        kin = nsmallest(LIAR_KIN, self.kin, key=lambda one: one.point ^ at)
        index = bisect_left(self.ghosts, at, key=lambda one: one.point)
        around = self.ghosts[max(index - GHOSTS_NEAR // 2, 0) : index + GHOSTS_NEAR // 2]
        ghosts = self._random.sample(around, min(K - len(kin), len(around)))
        return tuple(sorted((*kin, *ghosts), key=lambda one: one.point ^ at))

    def keep(self, store: StoreRequest, sender: Contact) -> list[str]:
        return [""] * len(store.records)


__all__ = ["Aged", "Liar", "RingNode", "found_size"]
