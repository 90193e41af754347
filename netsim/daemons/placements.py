"""Swarms that place the layers of a model: the daemons' own decisions over a modelled gossip.

Each node decides with the real `Placing`. Records reach other nodes after a delay, a new node is
known after another, and each node notices a death at another time. Whole daemons do the same in
`tests/netsim/daemons/test_placement.py`; here a swarm takes milliseconds.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Final

from ...state.membership.record import Rank
from ...tasks.placement.coverage import Sizes, Span
from ...tasks.placement.placing import Placing
from ...tasks.placement.plan import Place, has_chain
from ...transport.identity import PeerId

GOSSIP: Final = (0.02, 1.5)  # seconds until what a node says has reached another
MEETING: Final = (0.2, 2.0)  # seconds until nodes know each other, and a new one begins to choose
DEATH: Final = (1.0, 6.0)  # seconds until it is noticed
LOADING: Final = (0.5, 5.0)  # seconds
PAUSE: Final = (0.0, 60.0)  # seconds between two starts, restarts or deaths
QUIET: Final = 120.0  # seconds after the last one
LAYER: Final = 1000  # bytes of one layer


@dataclass(slots=True)
class Node:
    """One life after the other of a node."""

    peer: PeerId
    memory: int
    jitter: float
    life: int = 0
    up: bool = False
    moves: int = 0
    placing: Placing | None = None
    said: Place | None = None
    serves: Span | None = None
    loading: bool = False
    wake: float = inf
    known: dict[PeerId, Place] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The longest hole of one swarm, in seconds, and the most moves of one node."""

    hole_s: float
    moves: int
    events: int


def suffices(sizes: Sizes, memories: Sequence[int]) -> bool:
    """Whether memories, in bytes, cover all layers: one alone, or one with the embedding and one
    with the head, and all others between them. Not the way in which a plan is made."""
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


class Placements:
    """One swarm of a seed. Without `standing`, a node that holds layers never looks again."""

    def __init__(self, seed: int, *, standing: bool = True) -> None:
        self._standing = standing
        self.luck = Random(seed)
        layers = self.luck.randint(2, 32)
        first, last = (self.luck.randrange(4 * LAYER) for _ in range(2))
        self.sizes = Sizes(layers, LAYER, first, last, layers * LAYER + max(first, last))
        count = self.luck.randint(2, 12)
        most = layers * LAYER * self.luck.uniform(0.9, 2.5) / count
        self.nodes = [
            Node(
                PeerId(f"peer{self.luck.randrange(10**6):06}-{number}"),
                int(self.luck.uniform(0.2, 1.8) * most) + LAYER,
                self.luck.random(),
            )
            for number in range(count)
        ]
        self.now = 0.0
        self.hole_since: float | None = None
        self.worst = 0.0
        self.events = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._enough: dict[tuple[int, ...], bool] = {}

    def run(self) -> Outcome:
        """Start all, then restart or kill some, then let it settle."""
        due = 0.0
        for node in self.nodes:
            due += self._pause()
            self._at(due, lambda node=node: self._start(node))  # type: ignore[misc]
        for _ in range(self.luck.randint(0, 3)):
            due += self._pause()
            self._at(due, self._trouble)
        end = due + QUIET
        while self._queue and self._queue[0][0] <= end:
            self.now, _, action = heapq.heappop(self._queue)
            action()
            self._look_for_hole()
        self.now = end
        self._look_for_hole()
        return Outcome(self.worst, max(node.moves for node in self.nodes), self.events)

    def _pause(self) -> float:
        """Many at once, some far apart."""
        return self.luck.choice((0.0, 1.0, 3.0, self.luck.uniform(*PAUSE)))

    def _at(self, when: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (when, self._count, action))

    def _look_for_hole(self) -> None:
        if self.hole_since is not None:
            self.worst = max(self.worst, self.now - self.hole_since)
        served = [node.serves for node in self.nodes if node.serves is not None]
        if has_chain(self.sizes.layers, served) or not self._suffices():
            self.hole_since = None
        elif self.hole_since is None:
            self.hole_since = self.now

    def _suffices(self) -> bool:
        """Whether the memory of those that are up covers all layers in some assignment."""
        up = tuple(node.memory for node in self.nodes if node.up)
        if up not in self._enough:
            self._enough[up] = suffices(self.sizes, up)
        return self._enough[up]

    # What happens to nodes.

    def _trouble(self) -> None:
        """One or all of those that are up restart, or one dies."""
        up = [node for node in self.nodes if node.up]
        kind = self.luck.choice(("death", "restart", "all"))
        for node in up if kind == "all" else up and [self.luck.choice(up)]:
            self._stop(node)
            if kind != "death":
                back = self.now + self.luck.choice((0.5, 1.0, 3.0, self.luck.uniform(*PAUSE)))
                self._at(back, lambda node=node: self._start(node))  # type: ignore[misc]

    def _start(self, node: Node) -> None:
        self.events += 1
        node.life += 1
        node.up, node.loading, node.serves = True, False, None
        node.placing, node.known = Placing(node.peer, node.memory, node.jitter), {}
        for other in self.nodes:
            if other.up and other is not node:
                self._later(node, MEETING, lambda other=other: self._hear(node, other))  # type: ignore[misc]
        self._later(node, MEETING, lambda: self._say(node, None, Rank.SEEKS))
        self._later(node, (MEETING[1], MEETING[1] + 0.5), lambda: self._look(node))

    def _stop(self, node: Node) -> None:
        self.events += 1
        node.up, node.serves, life = False, None, node.life
        node.said = None
        for other in self.nodes:
            if other is not node:

                def forget(other: Node = other) -> None:
                    if node.life == life and other.known.pop(node.peer, None) is not None:
                        self._look(other)

                self._later(other, DEATH, forget)

    def _later(self, node: Node, span: tuple[float, float], action: Callable[[], None]) -> None:
        """In some seconds, where the node still has this life."""
        life = node.life

        def act() -> None:
            if node.up and node.life == life:
                action()

        self._at(self.now + self.luck.uniform(*span), act)

    # What they say and do.

    def _say(self, node: Node, span: Span | None, rank: Rank) -> None:
        place = Place(node.peer, node.memory, span, rank)
        if place == node.said:
            return
        node.said = place
        for other in self.nodes:
            if other is not node and other.up:
                self._later(other, GOSSIP, lambda other=other: self._hear(other, node))  # type: ignore[misc]

    def _hear(self, node: Node, other: Node) -> None:
        """The latest that the other says; a record that is older never comes after."""
        if other.up and other.said is not None and node.known.get(other.peer) != other.said:
            node.known[other.peer] = other.said
            self._look(node)

    def _look(self, node: Node) -> None:
        if node.loading or not node.up or node.said is None or node.placing is None:
            return
        if node.serves is not None and not self._standing:
            return
        others = [node.known[peer] for peer in sorted(node.known)]
        step = node.placing.look(self.now, self.sizes, others)
        self._say(node, step.span, step.rank)
        if step.load:
            assert step.span is not None
            self._load(node, step.span)
        elif step.wake < inf:
            self._wake(node, step.wake)

    def _wake(self, node: Node, when: float) -> None:
        life = node.life
        self._at(when, lambda: self._look(node) if node.life == life else None)

    def _load(self, node: Node, span: Span) -> None:
        node.moves += node.serves is not None
        node.loading, node.serves = True, None

        def loaded() -> None:
            node.loading, node.serves = False, span
            self._look(node)

        self._later(node, LOADING, loaded)
