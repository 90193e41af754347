"""Hole punching between pairs of a population (`punching.py`), compared with field measurements.

The measure is that of arXiv 2510.27500: NATed peers without a forwarded port, of which 70 % +- 7.1
% succeed.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from shoal.netsim.population import latency
from shoal.netsim.population.mix import DEFAULT, Draw, Population, build, draw, load
from shoal.netsim.world import World

from .punching import RELAY_PORT, Peer, Relay

PUBLISHED: Final = (0.70, 0.071)
"""Success of DCUtR over 4.4 million attempts, and its spread."""
RELAYS: Final = 8
GIVE_UP_S: Final = 30.0


@dataclass
class Punched:
    """For each two classes: how many pairs tried and succeeded."""

    tried: Counter[tuple[str, str]] = field(default_factory=Counter)
    succeeded: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        return self.succeeded.total() / self.tried.total()

    def by_class(self) -> dict[str, tuple[int, int]]:
        """Return (succeeded, tried) by class; a pair counts for both of its classes."""
        found: dict[str, tuple[int, int]] = {}
        for pair, tried in self.tried.items():
            for kind in set(pair):
                done, all_ = found.get(kind, (0, 0))
                found[kind] = done + self.succeeded[pair], all_ + tried
        return dict(sorted(found.items()))

    def table(self) -> str:
        """Return one line per class."""
        lines = (
            f"{kind:20} {done:5} of {tried:5}  {100 * done / tried:5.1f} %"
            for kind, (done, tried) in self.by_class().items()
        )
        return "\n".join(lines)


def punch(pairs: int, *, population: str | Population = DEFAULT, seed: int = 0) -> Punched:
    """Draw pairs of NATed volunteers without a forward, and let each pair punch once."""
    people = load(population) if isinstance(population, str) else population
    world = World(seed, latency=latency.matrix())
    rows = len(latency.matrix())
    addresses = [
        world.light(f"relay{n}", Relay(), site=n * rows // RELAYS, port=RELAY_PORT).address
        for n in range(RELAYS)
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


def _natted(people: Population, world: World, name: str) -> Draw:
    random = world.streams.get(name, "population")
    while True:
        drawn = draw(people, random, latency.matrix())
        if drawn.kind.nat and not drawn.kind.forward:
            return drawn
