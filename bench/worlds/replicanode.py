"""A light node of the swarm's state: replica, exchange and roster of `state/` on a light host.

The code of a daemon decides what is announced, requested and stored; only links, TLS and
the store are left out. A dial costs four round trips; messages travel as in `lightlane.py`.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Any, Final, TypeVar, cast

from shoal.netsim.errors import SimError
from shoal.netsim.light import Sends
from shoal.netsim.network.packet import Addr
from shoal.state import defaults
from shoal.state.errors import StateError
from shoal.state.feeds.archive import MemoryArchive
from shoal.state.feeds.entry import Entry, UncheckedEntry, open_entry
from shoal.state.membership.roster import Roster
from shoal.state.replication.exchange import FeedExchange
from shoal.state.replication.gossip import Unanswered
from shoal.state.replication.interest import Interest
from shoal.state.replication.replica import Replica
from shoal.transport.identity import Identity, PeerId
from shoal.transport.networks import Nearness

from .lightlane import LightLane
from .ringnode import DIAL_TRIPS, NOWHERE, Parcel, parcel

Found = TypeVar("Found")
_DIAL_AGAIN_S: Final = 1.0
_LOOK_S: Final = 1.0
_Steps = Coroutine["_Asked", bytes | None, None]


@dataclass(slots=True)
class _Asked:
    """Call that a coroutine waits for."""

    peer: PeerId
    method: str
    payload: bytes

    def __await__(self) -> Generator["_Asked", bytes | None, bytes]:
        answer = yield self
        if answer is None:
            raise Unanswered
        return answer


@dataclass(slots=True)
class _Dial:
    peer: PeerId
    until: float
    trip: int = 0


class ReplicaNode:
    """One node; a `Core` of netsim.light. `where` gives the address of each peer."""

    def __init__(
        self,
        identity: Identity,
        random: Random,
        where: dict[PeerId, Addr],
        names: dict[Addr, PeerId],
        *,
        archive: MemoryArchive | None = None,
        replica: Callable[..., Replica] = Replica,
        interest: Interest | None = None,
        most_links: int = defaults.MEMBER_LINKS,
    ) -> None:
        self.identity = identity
        self.peer = identity.peer
        self.archive = archive or MemoryArchive()
        self.replica = replica(identity.peer, self.archive, interest=interest, own_entries=self)
        self.exchange = FeedExchange(self.replica, self, random.randrange)
        self.roster = Roster(identity.peer)
        self.lane = LightLane(self._came, self._unheard)
        self.wake_at = inf
        self.time = 0.0  # to be set by a caller from outside
        self.links: dict[PeerId, float] = {}  # by peer: since when
        self.blamed: list[tuple[PeerId, str]] = []
        self._most_links = most_links
        self._random = random
        self._where = where
        self._names = names
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self._calls: dict[int, tuple[PeerId, _Steps]] = {}
        self._dials: dict[int, _Dial] = {}
        self._pumping = inf
        self._stirred = False  # the exchange may have something to do
        self._look_at = inf

    # The interface `OwnEntries`: a node knows what it has written, unless a subclass restarts.

    begun = False

    def takes(self, entry: Entry) -> bool:
        """Return whether to admit an entry of this node's own feeds that a peer sent."""
        return False

    def face(self, peer: PeerId) -> FeedExchange:
        """Return the exchange that a peer talks to; an honest node has only one."""
        return self.exchange

    def faces(self) -> list[FeedExchange]:
        return [self.exchange]

    # As a core.

    def on_datagram(self, now: float, data: bytes, source: Addr) -> Sends:
        self.time = now
        assert isinstance(data, Parcel)
        kind = data.message[0]
        if kind == "dial":
            self._dialled(data.message, source)
        elif kind == "dialled":
            self._answered_dial(data.message, source)
        elif kind == "reset":
            self._unheard(source)
        else:
            self._stirred = False
            self.lane.take(now, data.message, source)
            if not self._stirred:  # most are acknowledgements
                return self._sent()
        return self._flush()

    def on_time(self, now: float) -> Sends:
        self.time = now
        self._stirred = False
        while self._timers and self._timers[0][0] <= now:
            heappop(self._timers)[2]()
            self._stirred = True
        if self.lane.due() <= now:
            self.lane.tick(now)
        return self._flush() if self._stirred else self._sent()

    def take(self) -> list[tuple[bytes, Addr]]:
        """Return what has to be sent after a call from outside."""
        return self._flush()

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._serial += 1
        heappush(self._timers, (when, self._serial, action))

    def _flush(self) -> list[tuple[bytes, Addr]]:
        self._pump()
        return self._sent()

    def _sent(self) -> list[tuple[bytes, Addr]]:
        timer = self._timers[0][0] if self._timers else inf
        self.wake_at = min(timer, self.lane.due())
        out, self.lane.out = self.lane.out, []
        return out

    # As a Network of the exchange.

    def now(self) -> float:
        return self.time

    def post(self, peer: PeerId, method: str, payload: bytes, *, later: bool = False) -> None:
        if peer in self.links:
            message = ("post", method, payload)
            self.lane.send(self.time, self._where[peer], len(payload), message)

    async def call(self, peer: PeerId, method: str, payload: bytes) -> bytes:
        return await _Asked(peer, method, payload)

    def blame(self, peer: PeerId, error: StateError) -> None:
        self.blamed.append((peer, error.code))
        self.roster.put_off(peer)
        self.lose(peer)

    async def pause(self) -> None:
        """Do nothing: no other task runs on a light host."""

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        yield

    # Links.

    def begin(self) -> None:
        """Start comparing with peers at intervals, and dialing."""
        self.at(self.time + self._random.random() * defaults.GOSSIP_ROUND, self._round)
        self.look()

    def link(self, peer: PeerId, *, dialled: bool = True) -> None:
        """Establish a link from now on; the side that dialled compares at once."""
        if peer in self.links:
            return
        self.links[peer] = self.time
        self.roster.linked(peer, Nearness.PUBLIC)
        face = self.face(peer)
        face.link_up(peer)
        self.start(face.replica.linked(peer))
        if dialled:
            self.start(face.compare(peer))

    def lose(self, peer: PeerId) -> None:
        """End a link."""
        if self.links.pop(peer, None) is None:
            return
        self.lane.forget(self._where[peer])
        self.roster.unlinked(peer, self.time)
        face = self.face(peer)
        face.link_lost(peer)
        for number in [number for number, (to, _) in self._calls.items() if to == peer]:
            self._step(self._calls.pop(number)[1], None)
        self.start(face.replica.unlinked(peer))
        self.look()

    def _unheard(self, address: Addr) -> None:
        self._stirred = True
        self.lose(self._names[address])

    def look(self) -> None:
        """Dial the peers that are due."""
        room = min(self._most_links - len(self.links), defaults.DIALS) - len(self._dials)
        lost = min(defaults.LOST_LINKS - len(self.links), defaults.DIALS) - len(self._dials)
        for peer, _ in self.roster.next_dials(self.time, room, lost):
            self._serial += 1
            self._dials[self._serial] = _Dial(peer, self.time + defaults.DIAL_TIMEOUT)
            self._dial(self._serial)
        due = max(self.roster.next_due(), self.time + _LOOK_S)
        if due < self._look_at or self._look_at <= self.time:
            self._look_at = due
            if due < inf:
                self.at(due, self.look)

    def _dial(self, number: int) -> None:
        dial = self._dials.get(number)
        if dial is None:
            return
        if self.time >= dial.until or dial.peer in self.links:
            self._end_dial(number)
            return
        to = self._where.get(dial.peer, NOWHERE)
        self.lane.out.append((parcel(300, ("dial", number, dial.trip)), to))
        trip = dial.trip
        self.at(self.time + _DIAL_AGAIN_S, lambda: self._dial_again(number, trip))

    def _dial_again(self, number: int, trip: int) -> None:
        dial = self._dials.get(number)
        if dial is not None and dial.trip == trip:
            self._dial(number)

    def _end_dial(self, number: int) -> None:
        dial = self._dials.pop(number)
        self.roster.dialled(dial.peer, self.time, self._jitter)
        self.look()

    def _jitter(self, seconds: float) -> float:
        return seconds * (0.75 + self._random.random() / 2)

    def _dialled(self, message: tuple[Any, ...], source: Addr) -> None:
        _, number, trip = message
        self.lane.out.append((parcel(300, ("dialled", number, trip)), source))
        if trip == DIAL_TRIPS - 1:
            self.link(self._names[source], dialled=False)

    def _answered_dial(self, message: tuple[Any, ...], source: Addr) -> None:
        _, number, trip = message
        dial = self._dials.get(number)
        if dial is None or dial.trip != trip:
            return
        dial.trip += 1
        if dial.trip < DIAL_TRIPS:
            self._dial(number)
        else:
            self.link(dial.peer)
            self._end_dial(number)

    # Messages.

    def _came(self, message: tuple[Any, ...], source: Addr) -> None:
        self._stirred = True
        peer = self._names[source]
        if message[0] == "answer":
            if (waiting := self._calls.pop(message[1], None)) is not None:
                self._step(waiting[1], message[2])
        elif peer not in self.links:
            self.lane.out.append((parcel(60, ("reset",)), source))
        elif message[0] == "post":
            self.face(peer).heard(peer, message[2])
        else:
            self.start(self._answer(peer, source, *message[1:]))

    async def _answer(
        self, peer: PeerId, source: Addr, number: int, method: str, payload: bytes
    ) -> None:
        try:
            answer: bytes | None = await self.serve(peer, method, payload)
        except StateError:
            answer = None
        size = 0 if answer is None else len(answer)
        self.lane.send(self.time, source, size, ("answer", number, answer))

    async def serve(self, peer: PeerId, method: str, payload: bytes) -> bytes | None:
        """Return the reply to a peer's call; None if it is refused."""
        return await self.face(peer).answer(peer, method, payload)

    # Tasks.

    def start(self, steps: _Steps | Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until it waits for a peer; continue when that peer has replied."""
        self._step(steps, None)

    def _step(self, steps: _Steps | Coroutine[Any, Any, None], answer: bytes | None) -> None:
        try:
            asked = steps.send(answer)
        except StopIteration:
            return
        if asked.peer not in self.links:
            self._step(steps, None)
            return
        self._serial += 1
        number = self._serial
        self._calls[number] = asked.peer, steps
        message = ("call", number, asked.method, asked.payload)
        self.lane.send(self.time, self._where[asked.peer], len(asked.payload), message)
        self.at(self.time + defaults.FEED_PULL_TIMEOUT, lambda: self._late(number))

    def _late(self, number: int) -> None:
        if (waiting := self._calls.pop(number, None)) is not None:
            self._step(waiting[1], None)

    def write(self, entries: list[Entry]) -> None:
        """Write entries of its own feeds."""
        self.start(self.exchange.write(entries))

    def _round(self) -> None:
        for face in self.faces():
            if face.round_at() <= self.time and (peer := face.next_round()) is not None:
                self.start(face.compare(peer))
        self.at(self.time + self._jitter(defaults.GOSSIP_ROUND), self._round)

    def _pump(self) -> None:
        """Do what the exchange has due now, and set a timer for what is due later."""
        for face in self.faces():
            face.tell()
            for pull in face.next_pulls():
                self.start(face.pull(pull))
            for peer in face.due_rechecks():
                self.start(face.compare(peer))
        due = min(face.due_at() for face in self.faces())
        if due < self._pumping or self._pumping <= self.time:
            self._pumping = due
            if due < inf:
                self.at(max(due, self.time), self._nothing)

    def _nothing(self) -> None:
        """Do nothing here: `_flush` pumps."""


def at_once(steps: Coroutine[Any, Any, Found]) -> Found:
    """Return the result of a coroutine that waits for no peer. Raises SimError if it waits."""
    try:
        steps.send(None)
    except StopIteration as ended:
        return cast(Found, ended.value)
    raise SimError("expected a coroutine that returns at once, but it waits for a peer")


@lru_cache(200_000)
def opened_once(sealed: bytes) -> Entry:
    """Open an entry, checking its signature only the first time these bytes arrive in this process.
    Otherwise a thousand nodes would do little else than check signatures.
    """
    return open_entry(sealed)


class SharedReplica(Replica):
    """Replica whose entries are opened once for all nodes of a process."""

    @staticmethod
    def checked(parsed: UncheckedEntry) -> Entry:
        return opened_once(parsed.entry.sealed)
