"""Bandwidth shaper: enforces the owner's caps on the bytes that this node sends and receives. No
I/O.

It uses token buckets in the manner of HTB (hierarchical token bucket). The node's cap of a
direction is divided into shares, one for each traffic class. A class can always use its share. The
unused part of a share is lent to the other classes; of these, a more urgent class borrows first. A
class may also have a ceiling of its own. Bulk therefore never delays a call, and calls never starve
bulk.

The bytes counted are those exchanged with the kernel, including TLS. IP and TCP headers, about 3 %
of full packets, are not counted.

A writer calls `room` before it takes frames, and afterwards reports to `spend` what it has sent. If
the room is 0, it sleeps until `next_at`. A reader calls `spend` after each read, and waits until
`next_at` before the next one. Meanwhile the flow control of the connection slows the peer down.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from typing import Final

from ..rates import Rate, RateLimiter
from .frame import Priority

BURST_S: Final = 0.025
"""Largest burst after a silence, given as a time in seconds: as many bytes as the cap allows in
this time. The shares allow as much again."""
QUANTUM_S: Final = 0.005
"""Smallest amount of bytes for which a waiting writer is woken, and largest amount that it may send
at a time while others wait. It is given as a time in seconds: as many bytes as the writer's rate
allows in this time."""
PACKET_BYTES: Final = 1500
"""Lower bound of the amount that `QUANTUM_S` gives, in bytes, and of a cap, in bytes per second."""
HUNGRY_S: Final = 0.05
"""Time after the refusal of a traffic class during which no less urgent class may borrow, in
seconds."""
LATE_S: Final = 0.05
"""How late a waiting writer may retry before it loses its place in the queue, in seconds."""


class Flow(IntEnum):
    """Traffic class. The first three are those of `Priority`. A class with a lower number borrows
    first."""

    CONTROL = Priority.CONTROL
    ACTIVATION = Priority.ACTIVATION
    BULK = Priority.BULK
    RELAY = 3  # data that this node forwards for other peers as a relay


class TrafficDirection(IntEnum):
    """Direction of traffic, as seen from this node."""

    UP = 0
    DOWN = 1


SHARES: Final = {Flow.CONTROL: 0.3, Flow.ACTIVATION: 0.5, Flow.BULK: 0.15, Flow.RELAY: 0.05}
"""Guaranteed part of a node's cap for each traffic class. The unused part of a share is lent to the
other classes, so the shares matter only if all classes together need more than the cap. Their sum
is 1."""


@dataclass(frozen=True, slots=True)
class Cap:
    """Caps of one direction, in bytes per second: of the whole node and of each traffic class. None
    means unlimited."""

    node: float | None = None
    control: float | None = None
    activation: float | None = None
    bulk: float | None = None
    relay: float | None = None

    def __post_init__(self) -> None:
        for rate in (self.node, *self.ceilings):
            if rate is not None and not PACKET_BYTES <= rate < inf:
                raise ValueError(f"a cap is at least {PACKET_BYTES} bytes per second, not {rate}")

    @property
    def ceilings(self) -> tuple[float | None, ...]:
        """The ceilings of the traffic classes, in the order of `Flow`."""
        return self.control, self.activation, self.bulk, self.relay


@dataclass(frozen=True, slots=True)
class Caps:
    """Caps of a node in both directions."""

    up: Cap = Cap()
    down: Cap = Cap()


def _bucket(rate: float, now: float, least: float = PACKET_BYTES) -> RateLimiter:
    """Return a full bucket of bytes. `rate` is in bytes per second, and `least` is the smallest
    capacity of the bucket in bytes."""
    return RateLimiter(Rate(max(rate * BURST_S, least), rate), now)


class _WaitingWriters:
    """Queue of the writers of one traffic class that were refused, so that they take turns."""

    def __init__(self) -> None:
        self._asked: dict[Hashable, float] = {}

    def place(self, waiter: Hashable, now: float) -> int:
        """Return how many writers are ahead of `waiter`."""
        if not self._asked:
            return 0
        gone = [key for key, asked in self._asked.items() if asked < now - LATE_S]
        for key in gone:
            del self._asked[key]
        for place, key in enumerate(self._asked):
            if key == waiter:
                return place
        return len(self._asked)

    def add(self, waiter: Hashable, until: float) -> None:
        """Append a writer that was refused and that should retry at `until`."""
        self._asked[waiter] = until

    def remove(self, waiter: Hashable) -> None:
        self._asked.pop(waiter, None)

    @property
    def several(self) -> bool:
        return bool(self._asked)


class _Class:
    """One traffic class in one direction."""

    def __init__(self, flow: Flow, cap: Cap, now: float) -> None:
        ceiling = cap.ceilings[flow]
        rates = [rate for rate in (cap.node, ceiling) if rate is not None]
        self.quantum = max(PACKET_BYTES, min(rates) * QUANTUM_S) if rates else inf
        self.ceiling = None if ceiling is None else _bucket(ceiling, now)
        self.share: RateLimiter | None = None
        if cap.node is not None:
            self.share = _bucket(cap.node * SHARES[flow], now, self.quantum)
        self.waiting = _WaitingWriters()
        self.hungry = -inf  # when it was last refused, unless its own ceiling was the reason


class _Side:
    """The caps of one direction of a node."""

    def __init__(self, cap: Cap, now: float) -> None:
        self.node = None if cap.node is None else _bucket(cap.node, now)
        self.classes = tuple(_Class(flow, cap, now) for flow in Flow)

    def tokens(self, flow: Flow, now: float) -> float:
        """Return how many bytes all writers of a traffic class together may send or read now."""
        mine = self.classes[flow]
        tokens = inf if mine.ceiling is None else mine.ceiling.level(now)
        if self.node is not None and mine.share is not None:
            lent = self.node.level(now) if self._may_borrow(flow, now) else 0.0
            tokens = min(tokens, max(mine.share.level(now), lent))
        return tokens

    def _may_borrow(self, flow: Flow, now: float) -> bool:
        return all(other.hungry < now - HUNGRY_S for other in self.classes[:flow])

    def spend(self, flow: Flow, size: int, now: float) -> None:
        mine = self.classes[flow]
        if mine.ceiling is not None:
            mine.ceiling.spend(now, size)
        if self.node is not None and mine.share is not None:
            if not self.node.has(now, size):  # what was borrowed is not charged to the share
                mine.share.spend(now, size)
            self.node.spend(now, size)

    def refuse(self, flow: Flow, now: float) -> None:
        """Record that a traffic class has data to send but too few tokens. For a while, less urgent
        classes may then not borrow. This does not apply if only the class's own ceiling is used
        up."""
        mine = self.classes[flow]
        if mine.ceiling is None or mine.ceiling.has(now, mine.quantum):
            mine.hungry = now

    def when(self, flow: Flow, tokens: float, now: float) -> float:
        """Return the time at which a traffic class may spend this many tokens if no other class
        spends any before."""
        mine = self.classes[flow]
        at = now if mine.ceiling is None else mine.ceiling.when(now, tokens)
        if self.node is not None and mine.share is not None:
            borrowed = self.node.when(now, tokens)
            if not self._may_borrow(flow, now):
                borrowed = max(borrowed, max(c.hungry for c in self.classes[:flow]) + HUNGRY_S)
            at = max(at, min(mine.share.when(now, tokens), borrowed))
        return at


class Shaper:
    """Enforces the caps of a node on all its links. In all methods, `waiter` identifies the
    writer or reader of one path."""

    def __init__(self, caps: Caps, now: float) -> None:
        self.change(caps, now)

    def change(self, caps: Caps, now: float) -> None:
        """Replace the caps."""
        self.caps = caps
        self.capped = (caps.up != Cap(), caps.down != Cap())
        """Whether each direction has any cap."""
        self._sides = (_Side(caps.up, now), _Side(caps.down, now))

    def room(
        self, direction: TrafficDirection, flow: Flow, waiter: Hashable, now: float, most: int
    ) -> int:
        """Return how many bytes of a traffic class may pass now, at most `most`. If it returns 0,
        call `next_at` for the time at which to retry."""
        side = self._sides[direction]
        mine = side.classes[flow]
        if mine.quantum == inf:
            return most
        place = mine.waiting.place(waiter, now)
        tokens = side.tokens(flow, now) - place * mine.quantum
        if tokens < min(mine.quantum, most):
            side.refuse(flow, now)
            return 0
        mine.waiting.remove(waiter)
        return int(min(tokens, most, mine.quantum if mine.waiting.several else inf))

    def spend(self, direction: TrafficDirection, flow: Flow, size: int, now: float) -> None:
        """Charge bytes that have passed. If they are more than `room` allowed, later calls of
        `room` allow less."""
        self._sides[direction].spend(flow, size, now)

    def next_at(
        self, direction: TrafficDirection, flow: Flow, waiter: Hashable, now: float
    ) -> float:
        """Return the time at which `waiter` should retry. It keeps its place in the queue until
        shortly after that time."""
        side = self._sides[direction]
        mine = side.classes[flow]
        if mine.quantum == inf:
            return now
        place = mine.waiting.place(waiter, now)
        at = side.when(flow, (place + 1) * mine.quantum, now)
        if at > now:
            mine.waiting.add(waiter, at)
        return at

    def leave(self, waiter: Hashable) -> None:
        """Remove a writer from the queues, because it has nothing more to send or its path has
        closed."""
        for side in self._sides:
            for each in side.classes:
                each.waiting.remove(waiter)
