"""Hole punching in its simplest form over pairs of a population: does it go as in life?

The procedure is that of DCUtR (libp2p): both know a relay, which has seen their outer endpoints,
tells each the other's, and times that so that both start at once; then probes cross. The measure is
that of arXiv 2510.27500: NATed peers without a forwarded port, success 70 % +- 7.1 %.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Final

from ..light import Sends
from ..packet import Addr
from ..world import World
from . import latency
from .mix import DEFAULT, Draw, Population, build, draw, load

PUBLISHED: Final = (0.70, 0.071)
"""Success of DCUtR over 4.4 million attempts, and its spread."""
RELAY_PORT: Final = 3478
RETRY_S: Final = 1.0
TRIES: Final = 10
PROBES: Final = 10
PROBE_EVERY_S: Final = 0.2
GIVE_UP_S: Final = 30.0


class Relay:
    """Sees where each peer of a pair comes from, and how far away it is; introduces them."""

    def __init__(self) -> None:
        self.wake_at = inf
        self._asked: dict[bytes, tuple[float, Addr]] = {}
        self._ready: dict[bytes, dict[bytes, tuple[Addr, float]]] = {}
        self._due: list[tuple[float, bytes, Addr]] = []

    def on_datagram(self, now: float, data: bytes, source: Addr) -> Sends:
        word, pair, side = data.split(b" ")
        key = pair + side
        if word == b"hello":
            self._asked[key] = now, source
            return [(b"seen", source)]
        asked = self._asked.get(key)
        if asked is None or asked[1] != source:
            return []
        both = self._ready.setdefault(pair, {})
        if side not in both:
            both[side] = source, now - asked[0]
            if len(both) == 2:
                self._introduce(now, list(both.values()))
        return []

    def _introduce(self, now: float, both: list[tuple[Addr, float]]) -> None:
        """The farther one is told first, so that both hear it at the same time; then again, as
        a datagram may be lost."""
        slowest = max(trip for _, trip in both)
        for (to, trip), (other, _) in zip(both, reversed(both), strict=True):
            told = f"peer {other[0]} {other[1]}".encode()
            self._due.append((now + (slowest - trip) / 2, told, to))
        self._due.sort()
        self.wake_at = self._due[0][0]

    def on_time(self, now: float) -> Sends:
        due = [item for item in self._due if item[0] <= now]
        self._due = self._due[len(due) :]
        self.wake_at = self._due[0][0] if self._due else inf
        return [(told, to) for _, told, to in due]


class Peer:
    """One side of a pair: asks the relay, then probes until it hears the other."""

    def __init__(self, relay: Addr, pair: int, side: str) -> None:
        self.heard = False
        self.wake_at = 0.0
        self._relay = relay
        self._who = f"{pair} {side}".encode()
        self._target: Addr | None = None
        self._left = TRIES

    def on_datagram(self, now: float, data: bytes, source: Addr) -> Sends:
        if source == self._relay:
            return self._from_relay(now, data)
        if data == b"probe":
            self.heard = True
            if self._target != source:  # the other's NAT chose another endpoint for us
                self._target, self._left = source, max(self._left, 3)
                self.wake_at = min(self.wake_at, now)
        return []

    def _from_relay(self, now: float, data: bytes) -> Sends:
        if self._target is not None:
            return []
        if data == b"seen":
            return [(b"ready " + self._who, self._relay)]
        _, ip, port = data.decode().split(" ")
        self._target, self._left, self.wake_at = (ip, int(port)), PROBES, now
        return []

    def on_time(self, now: float) -> Sends:
        if not self._left:
            self.wake_at = inf
            return []
        self._left -= 1
        if self._target is None:
            self.wake_at = now + RETRY_S
            return [(b"hello " + self._who, self._relay)]
        self.wake_at = now + PROBE_EVERY_S
        return [(b"probe", self._target)]


@dataclass
class Punched:
    """How many pairs of each two classes tried and succeeded."""

    tried: Counter[tuple[str, str]] = field(default_factory=Counter)
    succeeded: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        return self.succeeded.total() / self.tried.total()

    def by_class(self) -> dict[str, tuple[int, int]]:
        """Of each class: succeeded, tried; a pair counts for both of its classes."""
        found: dict[str, tuple[int, int]] = {}
        for pair, tried in self.tried.items():
            for kind in set(pair):
                done, all_ = found.get(kind, (0, 0))
                found[kind] = done + self.succeeded[pair], all_ + tried
        return dict(sorted(found.items()))

    def table(self) -> str:
        """A line a class."""
        lines = (
            f"{kind:20} {done:5} of {tried:5}  {100 * done / tried:5.1f} %"
            for kind, (done, tried) in self.by_class().items()
        )
        return "\n".join(lines)


def punch(pairs: int, *, population: str | Population = DEFAULT, seed: int = 0) -> Punched:
    """Draw pairs of NATed volunteers without a forward, and let each pair punch once."""
    people = load(population) if isinstance(population, str) else population
    world = World(seed, latency=latency.matrix())
    relays = [Relay() for _ in range(8)]
    addresses = [
        world.light(f"relay{n}", relay, site=row, port=RELAY_PORT).address
        for (n, relay), row in zip(
            enumerate(relays), _spread(len(latency.matrix()), 8), strict=True
        )
    ]
    found = Punched()
    tries: list[tuple[tuple[str, str], Peer, Peer]] = []
    for pair in range(pairs):
        kinds, peers = [], []
        for side in "ab":
            name = f"p{pair}{side}"
            drawn = _natted(people, world, name)
            peer = Peer(addresses[pair % len(addresses)], pair, side)
            build(world, name, drawn, peer)
            peers.append(peer)
            kinds.append(drawn.kind.name)
        tries.append(((min(kinds), max(kinds)), peers[0], peers[1]))
    world.advance(GIVE_UP_S)
    for classes, a, b in tries:
        found.tried[classes] += 1
        found.succeeded[classes] += a.heard and b.heard
    return found


def _spread(rows: int, count: int) -> Iterable[int]:
    return (n * rows // count for n in range(count))


def _natted(people: Population, world: World, name: str) -> Draw:
    random = world.streams.get(name, "population")
    while True:
        drawn = draw(people, random, latency.matrix())
        if drawn.kind.nat and not drawn.kind.forward:
            return drawn
