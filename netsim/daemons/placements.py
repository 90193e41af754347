"""Fast simulation of how the nodes of a swarm choose the layers of a model that they serve.

Each node decides with the daemon's own `Placing`. The network is replaced by random delays: until a
node's record reaches another node, until two nodes meet, and until a node notices another one's
death. Simulating a swarm takes milliseconds. The tests in
`tests/netsim/daemons/test_placement.py` do the same with whole daemons.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from random import Random
from typing import Final

from ...state.membership.record import Rank
from ...tasks.costs.rates import UNKNOWN, DeviceRates, LinkRates
from ...tasks.costs.work import ShardWork
from ...tasks.placement.coverage import LayerSizes, Span
from ...tasks.placement.fleet import PlanModel, ordered, pair
from ...tasks.placement.improve import (
    BetterMove,
    PlanTerms,
    better_move,
    costs_of,
    divided,
)
from ...tasks.placement.placing import Placing
from ...tasks.placement.plan import Place, has_chain
from ...tasks.placement.predict import TokenRates, rate_of
from ...tasks.placement.speed import SpeedChoices
from ...transport.identity import PeerId

# Ranges of random delays, in seconds.
GOSSIP: Final = (0.02, 1.5)  # until a node's record has reached another node
MEETING: Final = (0.2, 2.0)  # until a new node and another know each other
DEATH: Final = (1.0, 6.0)  # until a node notices another one's death
LOADING: Final = (0.5, 5.0)  # until a node has loaded its layers
PAUSE: Final = (0.0, 60.0)  # between two starts, restarts or deaths

# Links within a region, or between two: round trips in seconds and byte/s.
_LINKS: Final = {
    True: ((0.001, 1e8), (0.01, 1e7)),
    False: ((0.05, 1e7), (0.12, 2e6)),
}

QUIET: Final = 120.0  # seconds from the last start, restart or death to the end
LAYER: Final = 1000  # bytes of one layer


@dataclass(slots=True)
class PlacementNode:
    """State of one node. `memory` is in bytes. `life` counts how often the node has started."""

    peer: PeerId
    memory: int
    jitter: float
    rates: DeviceRates = UNKNOWN
    life: int = 0
    up: bool = False
    moves: int = 0  # how often it has given up the layers that it served, to load others
    moved_at: float = 0.0  # the last time
    placing: Placing | None = None
    said: Place | None = None  # its latest record
    serves: Span | None = None  # the layers that it serves now
    loading: bool = False
    wake: float = inf
    known: dict[PeerId, Place] = field(default_factory=dict)  # records of others that it has


@dataclass(frozen=True, slots=True)
class PlacementOutcome:
    """Outcome of one swarm.

    `hole_s` is the longest time, in seconds, during which some layers were not served although the
    nodes had enough memory for all. `moves` is the maximum, over the nodes, of how often a node
    replaced the layers that it served. `events` is the number of starts and ends of nodes.
    """

    hole_s: float
    moves: int
    events: int


def suffices(sizes: LayerSizes, memories: Sequence[int]) -> bool:
    """Return whether nodes with these memories (in bytes) can hold all layers in some assignment.

    Either one node holds everything, or one node holds the embedding, another node the head, and
    all nodes together the layers. The function checks the plans of `Placing` and shares no code
    with `Placing`.
    """
    if any(sizes.everything <= memory for memory in memories):
        return True
    numbers = range(len(memories))
    first, inner, last = (
        [(memory - more) // sizes.layer for memory in memories]
        for more in (sizes.first, 0, sizes.last)
    )
    return any(
        a != b
        and first[a] > 0 < last[b]
        and first[a] + last[b] + sum(inner) - inner[a] - inner[b] >= sizes.layers
        for a in numbers
        for b in numbers
    )


class PlacementSwarm:
    """Simulation of one swarm. `seed` decides its nodes, its model and all delays.

    If `standing` is False, a node that serves layers never reconsiders its choice. If `speed` is
    False, nodes choose by memory alone. `quiet` is the number of seconds from the last event to the
    end.
    """

    def __init__(
        self, seed: int, *, standing: bool = True, speed: bool = True, quiet: float = QUIET
    ) -> None:
        self._standing = standing
        self._quiet = quiet
        self.luck = Random(seed)
        """Random numbers of this swarm, from its seed."""
        layers = self.luck.randint(2, 32)
        first, last = (self.luck.randrange(4 * LAYER) for _ in range(2))
        self.sizes = LayerSizes(layers, LAYER, first, last, layers * LAYER + max(first, last))
        count = self.luck.randint(2, 12)
        most = layers * LAYER * self.luck.uniform(0.9, 2.5) / count
        self.nodes = [
            PlacementNode(
                PeerId(f"peer{self.luck.randrange(10**6):06}-{number}"),
                int(self.luck.uniform(0.2, 1.8) * most) + LAYER,
                self.luck.random(),
            )
            for number in range(count)
        ]
        self.terms = self._drawn_terms(Random(f"speed {seed}")) if speed else None
        self.now = 0.0
        self.hole_since: float | None = None  # when the present hole began; None: no hole
        self.worst = 0.0  # length of the longest hole so far, in seconds
        self.events = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._enough: dict[tuple[int, ...], bool] = {}  # cached results of `suffices`
        # Cached predictions, the same at all nodes that know the same: of `divided` by peers and
        # memories, of `better_move` by peers, layers and ranks.
        self._divisions: dict[tuple[tuple[PeerId, int], ...], Mapping[PeerId, Span]] = {}
        self._moves: dict[tuple[tuple[PeerId, Span, Rank], ...], BetterMove | None] = {}

    def run(self) -> PlacementOutcome:
        """Start all nodes, then restart or kill some, then wait until the swarm has settled."""
        due = 0.0
        for node in self.nodes:
            due += self._pause()
            self._at(due, lambda node=node: self._start(node))  # type: ignore[misc]
        for _ in range(self.luck.randint(0, 3)):
            due += self._pause()
            self._at(due, self._trouble)
        end = due + self._quiet
        while self._queue and self._queue[0][0] <= end:
            self.now, _, action = heapq.heappop(self._queue)
            action()
            self._look_for_hole()
        self.now = end
        self._look_for_hole()
        return PlacementOutcome(self.worst, max(node.moves for node in self.nodes), self.events)

    def _drawn_terms(self, luck: Random) -> PlanTerms:
        """Draw the rates of all nodes and links. Half of the nodes are up to 30 times as fast as
        the slowest; the links lie within two regions, or between them.
        """
        for node in self.nodes:
            bandwidth = luck.choice((1.0, luck.uniform(1.0, 30.0))) * 1e10
            node.rates = DeviceRates(bandwidth, 20 * bandwidth, 10 * bandwidth)
        near = {node.peer: luck.random() < 0.5 for node in self.nodes}
        links = {
            pair(a.peer, b.peer): LinkRates(*luck.choice(_LINKS[near[a.peer] == near[b.peer]]))
            for a in self.nodes
            for b in self.nodes
            if a.peer < b.peer
        }
        layers = self.sizes.layers
        work = ShardWork(
            "bfloat16", layers, layers * 10**8, layers * 10**8, 0, 0.0, (), 0, 10**7, 10**7, 8192
        )
        steady = [node.peer for node in self.nodes]
        return PlanTerms(PlanModel(self.sizes, work, 0, 2048), links, steady=steady)

    def _divide(self, terms: PlanTerms, places: Sequence[Place]) -> Mapping[PeerId, Span]:
        key = tuple(sorted((place.peer, place.memory) for place in places))
        if key not in self._divisions:
            self._divisions[key] = divided(terms, places)
        return self._divisions[key]

    def _better(self, terms: PlanTerms, places: Sequence[Place]) -> BetterMove | None:
        key = tuple(sorted((place.peer, place.span, place.rank) for place in places if place.span))
        if key not in self._moves:
            self._moves[key] = better_move(terms, places)
        return self._moves[key]

    def rate(self) -> TokenRates:
        """Return the predicted rate of the layers that are served now."""
        assert self.terms is not None
        served = [node for node in self.nodes if node.serves is not None]
        places = [
            Place(node.peer, node.memory, node.serves, Rank.HOLDS, node.rates) for node in served
        ]
        costs = costs_of(self.terms, places)
        return rate_of(costs, ordered(costs, {n.peer: n.serves for n in served if n.serves}))

    def _pause(self) -> float:
        """Draw a pause in seconds. Most pauses are short, so that several events overlap."""
        return self.luck.choice((0.0, 1.0, 3.0, self.luck.uniform(*PAUSE)))

    def _at(self, when: float, action: Callable[[], None]) -> None:
        """Schedule an action at a virtual time in seconds."""
        self._count += 1
        heapq.heappush(self._queue, (when, self._count, action))

    def _look_for_hole(self) -> None:
        """Update the time during which some layers are not served although the nodes have enough
        memory for all.
        """
        if self.hole_since is not None:
            self.worst = max(self.worst, self.now - self.hole_since)
        served = [node.serves for node in self.nodes if node.serves is not None]
        if has_chain(self.sizes.layers, served) or not self._suffices():
            self.hole_since = None
        elif self.hole_since is None:
            self.hole_since = self.now

    def _suffices(self) -> bool:
        """Return whether the nodes that are up have enough memory for all layers."""
        up = tuple(node.memory for node in self.nodes if node.up)
        if up not in self._enough:
            self._enough[up] = suffices(self.sizes, up)
        return self._enough[up]

    # Starts, restarts and deaths of nodes.

    def _trouble(self) -> None:
        """Kill one running node, restart one running node, or restart all running nodes."""
        up = [node for node in self.nodes if node.up]
        kind = self.luck.choice(("death", "restart", "all"))
        for node in up if kind == "all" else up and [self.luck.choice(up)]:
            self._stop(node)
            if kind != "death":
                back = self.now + self.luck.choice((0.5, 1.0, 3.0, self.luck.uniform(*PAUSE)))
                self._at(back, lambda node=node: self._start(node))  # type: ignore[misc]

    def _start(self, node: PlacementNode) -> None:
        """Start a node. It meets the other nodes and chooses its layers after random delays."""
        self.events += 1
        node.life += 1
        node.up, node.loading, node.serves = True, False, None
        speed = SpeedChoices(self._divide, self._better)
        node.placing = Placing(node.peer, node.memory, node.jitter, speed=speed)
        node.known = {}
        for other in self.nodes:
            if other.up and other is not node:
                self._later(node, MEETING, lambda other=other: self._hear(node, other))  # type: ignore[misc]
        self._later(node, MEETING, lambda: self._say(node, None, Rank.SEEKS))
        self._later(node, (MEETING[1], MEETING[1] + 0.5), lambda: self._look(node))

    def _stop(self, node: PlacementNode) -> None:
        """Stop a node. Each other node removes the node's record after a random delay."""
        self.events += 1
        node.up, node.serves, life = False, None, node.life
        node.said = None
        for other in self.nodes:
            if other is not node:

                def forget(other: PlacementNode = other) -> None:
                    """Remove the dead node's record from `other`, unless the node has started
                    again.
                    """
                    if node.life == life and other.known.pop(node.peer, None) is not None:
                        self._look(other)

                self._later(other, DEATH, forget)

    def _later(
        self, node: PlacementNode, span: tuple[float, float], action: Callable[[], None]
    ) -> None:
        """Run `action` after a random delay in the range `span` (seconds), unless `node` has
        stopped or restarted by then.
        """
        life = node.life

        def act() -> None:
            """Run the action, unless the node has stopped or restarted."""
            if node.up and node.life == life:
                action()

        self._at(self.now + self.luck.uniform(*span), act)

    # Records and decisions of nodes.

    def _say(self, node: PlacementNode, span: Span | None, rank: Rank) -> None:
        """Publish a node's record if it has changed. It reaches each other node after a delay."""
        place = Place(node.peer, node.memory, span, rank, node.rates)
        if place == node.said:
            return
        node.said = place
        for other in self.nodes:
            if other is not node and other.up:
                self._later(other, GOSSIP, lambda other=other: self._hear(other, node))  # type: ignore[misc]

    def _hear(self, node: PlacementNode, other: PlacementNode) -> None:
        """Store the latest record of `other` at `node`.

        Older records cannot overwrite it, because only the latest record is ever delivered.
        """
        if other.up and other.said is not None and node.known.get(other.peer) != other.said:
            node.known[other.peer] = other.said
            self._look(node)

    def _look(self, node: PlacementNode) -> None:
        """Let a node choose its layers with `Placing`, publish its new record, and load the chosen
        layers if necessary.

        Do nothing while the node is loading.
        """
        if node.loading or not node.up or node.said is None or node.placing is None:
            return
        if node.serves is not None and not self._standing:
            return
        others = [node.known[peer] for peer in sorted(node.known)]
        terms = self.terms and replace(self.terms, rates=node.rates)
        step = node.placing.look(self.now, self.sizes, others, terms)
        self._say(node, step.span, step.rank)
        if step.load:
            assert step.span is not None
            self._load(node, step.span)
        elif step.wake < inf:
            self._wake(node, step.wake)

    def _wake(self, node: PlacementNode, when: float) -> None:
        """Let a node decide again at time `when`, unless it has restarted by then."""
        life = node.life
        self._at(when, lambda: self._look(node) if node.life == life else None)

    def _load(self, node: PlacementNode, span: Span) -> None:
        """Let a node drop its layers, if it has any, and load the layers of `span`."""
        if node.serves is not None:
            node.moves += 1
            node.moved_at = self.now
        node.loading, node.serves = True, None

        def loaded() -> None:
            """Serve the loaded layers."""
            node.loading, node.serves = False, span
            self._look(node)

        self._later(node, LOADING, loaded)
