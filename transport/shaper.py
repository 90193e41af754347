"""How many bytes may leave or be read now, under the owner's bandwidth caps. No I/O.

Token buckets after HTB (hierarchical token bucket): the node's cap of a direction is divided into
shares by class. A class always gets its share; what a class does not use is lent to the others, and
a higher class borrows first. A class may have a ceiling of its own besides. So a call is never
delayed by bulk, and bulk is never shut out.

Bytes are those handed to the kernel or taken from it, TLS included; IP and TCP headers, some 3 %
of full packets, are not seen from here.

A writer asks `room` before it takes frames, tells `spend` what it has sent, and sleeps until
`next_at` where the room was 0. A reader tells `spend` after each read and waits until `next_at`
before the next, so that the connection's own flow control slows the peer.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import IntEnum
from math import inf
from typing import Final

from .frame import Priority

BURST_S: Final = 0.025
"""What may pass at once after silence, in seconds of the cap; as much again from the shares."""
QUANTUM_S: Final = 0.005
"""What makes it worth waking a writer, in seconds of its rate; what it gets while others wait."""
PACKET_BYTES: Final = 1500
"""Less than this no writer is woken for."""
HUNGRY_S: Final = 0.05
"""So long after a class was refused, no lower one borrows; in seconds."""
LATE_S: Final = 0.05
"""Who was told when to ask and has not, so much later, loses its place; in seconds."""


class Flow(IntEnum):
    """What bytes are for; the first three are `Priority`. The lower number borrows first."""

    CONTROL = Priority.CONTROL
    ACTIVATION = Priority.ACTIVATION
    BULK = Priority.BULK
    RELAY = 3  # what is spliced for others


class Direction(IntEnum):
    """As seen from this node."""

    UP = 0
    DOWN = 1


SHARES: Final = {Flow.CONTROL: 0.3, Flow.ACTIVATION: 0.5, Flow.BULK: 0.15, Flow.RELAY: 0.05}
"""Of a node's cap, what each class is sure of. A share nobody uses is lent, so these say who waits
when all want more than there is. They add up to 1."""


@dataclass(frozen=True, slots=True)
class Cap:
    """One direction, in bytes per second; None is without limit."""

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
        """By class, in the order of `Flow`."""
        return self.control, self.activation, self.bulk, self.relay


@dataclass(frozen=True, slots=True)
class Caps:
    """Both directions of a node."""

    up: Cap = Cap()
    down: Cap = Cap()


class _Bucket:
    """Tokens in bytes, filling at `rate` up to `burst`; negative after more was spent."""

    __slots__ = ("_at", "burst", "rate", "tokens")

    def __init__(self, rate: float, now: float, least: float = PACKET_BYTES) -> None:
        self.rate = rate
        self.burst = max(rate * BURST_S, least)
        self.tokens = self.burst
        self._at = now

    def fill(self, now: float) -> float:
        if now > self._at:
            self.tokens = min(self.burst, self.tokens + (now - self._at) * self.rate)
            self._at = now
        return self.tokens

    def when(self, tokens: float, now: float) -> float:
        """When there are so many, if nothing is spent."""
        return now + max(0.0, tokens - self.fill(now)) / self.rate


class _Waiting:
    """Who was refused and comes first: writers of one class take turns."""

    def __init__(self) -> None:
        self._asked: dict[Hashable, float] = {}

    def place(self, who: Hashable, now: float) -> int:
        """How many are ahead of `who`."""
        if not self._asked:
            return 0
        gone = [key for key, asked in self._asked.items() if asked < now - LATE_S]
        for key in gone:
            del self._asked[key]
        for place, key in enumerate(self._asked):
            if key == who:
                return place
        return len(self._asked)

    def add(self, who: Hashable, until: float) -> None:
        """Refused, and told to come again at `until`."""
        self._asked[who] = until

    def remove(self, who: Hashable) -> None:
        self._asked.pop(who, None)

    @property
    def several(self) -> bool:
        return bool(self._asked)


class _Class:
    """One class in one direction."""

    def __init__(self, flow: Flow, cap: Cap, now: float) -> None:
        ceiling = cap.ceilings[flow]
        rates = [rate for rate in (cap.node, ceiling) if rate is not None]
        self.quantum = max(PACKET_BYTES, min(rates) * QUANTUM_S) if rates else inf
        self.ceiling = None if ceiling is None else _Bucket(ceiling, now)
        self.share: _Bucket | None = None
        if cap.node is not None:
            self.share = _Bucket(cap.node * SHARES[flow], now, self.quantum)
        self.waiting = _Waiting()
        self.hungry = -inf  # when it was last refused for want of the node's tokens


class _Side:
    """One direction of a node."""

    def __init__(self, cap: Cap, now: float) -> None:
        self.node = None if cap.node is None else _Bucket(cap.node, now)
        self.classes = tuple(_Class(flow, cap, now) for flow in Flow)

    def tokens(self, flow: Flow, now: float) -> float:
        """What the class may send, whoever of it asks."""
        mine = self.classes[flow]
        tokens = inf if mine.ceiling is None else mine.ceiling.fill(now)
        if self.node is not None and mine.share is not None:
            lent = self.node.fill(now) if self._may_borrow(flow, now) else 0.0
            tokens = min(tokens, max(mine.share.fill(now), lent))
        return tokens

    def _may_borrow(self, flow: Flow, now: float) -> bool:
        return all(other.hungry < now - HUNGRY_S for other in self.classes[:flow])

    def spend(self, flow: Flow, size: int, now: float) -> None:
        mine = self.classes[flow]
        if mine.ceiling is not None:
            mine.ceiling.fill(now)
            mine.ceiling.tokens -= size
        if self.node is not None and mine.share is not None:
            mine.share.fill(now)
            if self.node.fill(now) < size:  # what was borrowed is not charged to the share
                mine.share.tokens -= size
            self.node.tokens -= size

    def refuse(self, flow: Flow, now: float) -> None:
        """The class wants more: where its ceiling is not the reason, lower ones borrow nothing."""
        mine = self.classes[flow]
        if mine.ceiling is None or mine.ceiling.tokens >= mine.quantum:
            mine.hungry = now

    def when(self, flow: Flow, tokens: float, now: float) -> float:
        """When the class may send so much, if nobody else sends."""
        mine = self.classes[flow]
        at = now if mine.ceiling is None else mine.ceiling.when(tokens, now)
        if self.node is not None and mine.share is not None:
            borrowed = self.node.when(tokens, now)
            if not self._may_borrow(flow, now):
                borrowed = max(borrowed, max(c.hungry for c in self.classes[:flow]) + HUNGRY_S)
            at = max(at, min(mine.share.when(tokens, now), borrowed))
        return at


class Shaper:
    """The caps of a node, over all its links. `who` is the one that writes or reads a path."""

    def __init__(self, caps: Caps, now: float) -> None:
        self.change(caps, now)

    def change(self, caps: Caps, now: float) -> None:
        """Other caps from now on."""
        self.caps = caps
        self.capped = (caps.up != Cap(), caps.down != Cap())
        """By direction: whether there is anything to ask for."""
        self._sides = (_Side(caps.up, now), _Side(caps.down, now))

    def room(self, direction: Direction, flow: Flow, who: Hashable, now: float, most: int) -> int:
        """Bytes of a class that may pass now, at most `most`; 0 where `next_at` says when."""
        side = self._sides[direction]
        mine = side.classes[flow]
        if mine.quantum == inf:
            return most
        place = mine.waiting.place(who, now)
        tokens = side.tokens(flow, now) - place * mine.quantum
        if tokens < min(mine.quantum, most):
            side.refuse(flow, now)
            return 0
        mine.waiting.remove(who)
        return int(min(tokens, most, mine.quantum if mine.waiting.several else inf))

    def spend(self, direction: Direction, flow: Flow, size: int, now: float) -> None:
        """So many bytes have passed; more than `room` said is owed."""
        self._sides[direction].spend(flow, size, now)

    def next_at(self, direction: Direction, flow: Flow, who: Hashable, now: float) -> float:
        """When `who` should ask again; until then it has a place among those who wait."""
        side = self._sides[direction]
        mine = side.classes[flow]
        if mine.quantum == inf:
            return now
        place = mine.waiting.place(who, now)
        at = side.when(flow, (place + 1) * mine.quantum, now)
        if at > now:
            mine.waiting.add(who, at)
        return at

    def leave(self, who: Hashable) -> None:
        """It has nothing to send any more, or its path is gone."""
        for side in self._sides:
            for each in side.classes:
                each.waiting.remove(who)
