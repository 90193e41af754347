"""Line of requests at one engine: which of them run, and which wait. No I/O.

The owner's own requests go first, then those of members, then those of other peers. Among equals,
the peer with the fewest running requests goes first, then the one that has used the engine least.
One peer never takes the last free place, so that another peer does not wait for its answers to end.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

import trio

from ...transport.identity import PeerId
from . import defaults
from .errors import ShareError


class PeerStanding(IntEnum):
    """Standing of a peer. Requests of the lowest value go first."""

    OWN = 0
    MEMBER = 1
    STRANGER = 2


@dataclass(eq=False, slots=True)
class Ticket:
    """A request in the line. `called` is set when it may run."""

    peer: PeerId
    standing: PeerStanding
    number: int
    began: float = 0.0  # when it was called
    called: trio.Event = field(default_factory=trio.Event)


class EngineLine:
    """Line of requests at one engine, of which at most `at_once` run."""

    def __init__(self, at_once: int = defaults.AT_ONCE) -> None:
        self.at_once = at_once
        self.answered = 0
        self._waiting: list[Ticket] = []
        self._running: list[Ticket] = []
        self.spent: OrderedDict[PeerId, tuple[float, float]] = OrderedDict()  # seconds, at
        self._number = 0

    @property
    def running(self) -> int:
        """Number of requests that the engine answers now."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return len(self._waiting)

    def join(self, peer: PeerId, standing: PeerStanding, now: float) -> Ticket:
        """Return the ticket of a new request. Raises ShareError `busy` if the line is too long."""
        everyone = [*self._waiting, *self._running]
        strange = sum(each.standing is PeerStanding.STRANGER for each in everyone)
        if standing is PeerStanding.STRANGER and strange >= defaults.STRANGERS:
            raise _busy("it answers too many requests of peers that are not members")
        if standing is not PeerStanding.OWN:
            if len(self._waiting) >= defaults.WAITING:
                raise _busy("too many requests wait for it")
            if sum(each.peer == peer for each in everyone) >= defaults.PER_PEER:
                raise _busy(f"it answers {defaults.PER_PEER} requests of this node at most")
        self._number += 1
        ticket = Ticket(peer, standing, self._number)
        self._waiting.append(ticket)
        self._call(now)
        return ticket

    def leave(self, ticket: Ticket, now: float) -> float:
        """Remove a request that has ended or gave up. Return the seconds for which it ran."""
        if ticket in self._waiting:
            self._waiting.remove(ticket)
            return 0.0
        self._running.remove(ticket)
        self.answered += 1
        seconds = max(0.0, now - ticket.began)
        self.spent[ticket.peer] = self._used(ticket.peer, now) + seconds, now
        self.spent.move_to_end(ticket.peer)
        if len(self.spent) > defaults.SPENT_PEERS:
            self.spent.popitem(last=False)
        self._call(now)
        return seconds

    def ahead(self, peer: PeerId, standing: PeerStanding) -> int:
        """Return how many requests would go before a new one of this peer."""
        return sum(each.standing <= standing and each.peer != peer for each in self._waiting)

    def _call(self, now: float) -> None:
        """Call waiting requests while there are places."""
        while len(self._running) < self.at_once:
            ready = min(self._ready(), key=lambda each: self._rank(each, now), default=None)
            if ready is None:
                return
            self._waiting.remove(ready)
            self._running.append(ready)
            ready.began = now
            ready.called.set()

    def _ready(self) -> Iterator[Ticket]:
        """Yield the waiting requests whose peer may have one more place."""
        most = max(1, self.at_once - 1)
        for each in self._waiting:
            if each.standing is PeerStanding.OWN or self._places(each.peer) < most:
                yield each

    def _rank(self, ticket: Ticket, now: float) -> tuple[int, int, int, int]:
        used = round(self._used(ticket.peer, now))
        return ticket.standing, self._places(ticket.peer), used, ticket.number

    def _places(self, peer: PeerId) -> int:
        return sum(each.peer == peer for each in self._running)

    def _used(self, peer: PeerId, now: float) -> float:
        """Return the seconds that a peer has used, of which older ones count less."""
        seconds, at = self.spent.get(peer, (0.0, now))
        return float(seconds * 0.5 ** ((now - at) / defaults.SPENT_HALF))


def _busy(why: str) -> ShareError:
    return ShareError("busy", f"the shared engine is busy: {why}", hint="try again in a minute")
