"""How often each layer of a model is served, and which range one more node should take.

Layers that are served alike stand together as one segment, so the work grows with the ends of
shards and not with layers. All layers of a model take the same memory (`engine/families.py`).
"""

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from ..state.record import ShardRecord
from .defaults import KV_TOKENS_LEAST
from .engine.families import Architecture, kv_token_bytes, weight_bytes
from .engine.interface import DType, Parts

Span = tuple[int, int]
"""Layers start:stop, stop exclusive."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Memory of any range of one model's layers, with room for one short session: bytes."""

    layers: int
    layer: int
    first: int  # more for the range that begins with layer 0
    last: int  # more for the one that ends with the last layer
    everything: int

    @classmethod
    def of(cls, arch: Architecture, dtype: DType) -> "Sizes":
        """Raises nothing; adds up no tensor twice."""
        tokens = min(arch.context, KV_TOKENS_LEAST)
        inner = weight_bytes(arch, Parts(False, 0, 1, False), dtype)
        layer = inner + kv_token_bytes(arch, 0, 1, dtype) * tokens
        first = weight_bytes(arch, Parts(True, 0, 0, False), dtype)
        last = weight_bytes(arch, Parts(False, 0, 0, True), dtype)
        both = weight_bytes(arch, Parts(True, 0, 0, True), dtype)  # tied weights count once
        return cls(arch.layers, layer, first, last, arch.layers * layer + both)

    def of_span(self, start: int, stop: int) -> int:
        """Bytes of start:stop, with the embedding and the head where they belong."""
        if start == 0 and stop == self.layers:
            return self.everything
        ends = self.first * (start == 0) + self.last * (stop == self.layers)
        return self.layer * (stop - start) + ends

    def reach(self, start: int, most: int, memory: int) -> int:
        """The largest stop up to `most` with which start:stop fits; `start` where none does."""
        stop = start + (memory - self.first * (start == 0)) // self.layer
        if stop >= self.layers and self.of_span(start, self.layers) > memory:
            stop = self.layers - 1
        return max(start, min(stop, most))

    def reach_back(self, stop: int, least: int, memory: int) -> int:
        """The smallest start down to `least` with which start:stop fits; `stop` where none does."""
        start = stop - (memory - self.last * (stop == self.layers)) // self.layer
        if start <= 0 and self.of_span(0, stop) > memory:
            start = 1
        return min(stop, max(start, least))


class Coverage:
    """The segments of one model by how many shards have them; `steps` counts the work done."""

    def __init__(self, layers: int, shards: Iterable[ShardRecord]) -> None:
        """Layer 0 counts only with the embedding, the last layer only with the head."""
        self.layers = layers
        self.steps = 0
        ends: Counter[int] = Counter()  # how many more have the layers from here on
        cuts = {0, layers}
        for shard in shards:
            if shard.stop > layers:
                continue
            cuts |= {shard.start, shard.stop}
            start = shard.start + (shard.start == 0 and not shard.embedding)
            stop = shard.stop - (shard.stop == layers and not shard.head)
            if start < stop:
                ends[start] += 1
                ends[stop] -= 1
        self._edges = sorted(cuts | ends.keys())  # where segments begin, and the last one's end
        self._cut = [edge in cuts for edge in self._edges]  # where a chain can join shards
        self._counts = list(accumulate(ends[edge] for edge in self._edges[:-1]))

    @classmethod
    def of_spans(cls, layers: int, spans: Iterable[Span]) -> "Coverage":
        """As of shards that have what belongs to their ends."""
        shards = (ShardRecord("", a == 0, a, b, b == layers, "", 0) for a, b in spans)
        return cls(layers, shards)

    def lacks(self, start: int, stop: int) -> bool:
        """Whether no shard has any layer of start:stop."""
        return any(first <= start and stop <= last for first, last in self.holes())

    def replicas(self) -> list[int]:
        """How many shards have each layer."""
        found: list[int] = []
        for segment, count in enumerate(self._counts):
            found += [count] * (self._edges[segment + 1] - self._edges[segment])
        return found

    def holes(self) -> list[Span]:
        """The ranges that no shard has, in order."""
        found: list[Span] = []
        for segment, count in enumerate(self._counts):
            if count:
                continue
            start, stop = self._edges[segment], self._edges[segment + 1]
            if found and found[-1][1] == start:
                start = found.pop()[0]
            found.append((start, stop))
        return found

    def add(self, start: int, stop: int) -> None:
        """One more shard has start:stop, with what belongs to its ends."""
        first, last = self._edge(start), self._edge(stop)
        for segment in range(first, last):
            self._counts[segment] += 1

    def _edge(self, layer: int) -> int:
        """The index of the edge at a layer, which is a cut from now on."""
        at = bisect_left(self._edges, layer)
        if self._edges[at] != layer:
            self._edges.insert(at, layer)
            self._cut.insert(at, True)
            self._counts.insert(at, self._counts[at - 1])
        self._cut[at] = True
        return at

    def choose(self, sizes: Sizes, memory: int, turn: int = 0) -> Span | None:
        """The range to take within `memory` bytes; None where not one layer fits.

        All if it fits. Else as much as fits of a hole, and without holes the aligned range whose
        layers have the fewest replicas. Another `turn` takes the next of these choices.
        """
        self.steps += len(self._edges)
        if sizes.everything <= memory:
            return 0, self.layers
        spans = self._in_holes(sizes, memory)
        if spans:
            return _picked([((span[0] - span[1], span[0]), span) for span in spans], turn)
        choices = self._weighed(self._aligned(sizes, memory))
        if not choices:
            self.steps += self.layers
            choices = self._weighed(self._loose(sizes, memory))
        if not choices:
            return None
        return _picked([((count, a - b, a), (a, b)) for count, (a, b) in choices], turn)

    def _in_holes(self, sizes: Sizes, memory: int) -> list[Span]:
        """What fits of each hole from its beginning and to its end: cut in its middle it would be
        two. From anywhere inside only where none of these fits."""
        holes = self.holes()
        ends = [(start, sizes.reach(start, stop, memory)) for start, stop in holes]
        ends += [(sizes.reach_back(stop, start, memory), stop) for start, stop in holes]
        if found := [(start, stop) for start, stop in ends if start < stop]:
            return found
        self.steps += sum(stop - start for start, stop in holes)
        inner = (
            (start, sizes.reach(start, stop, memory))
            for first, stop in holes
            for start in range(first, stop)
        )
        return [(start, stop) for start, stop in inner if start < stop]

    def _aligned(self, sizes: Sizes, memory: int) -> Iterator[Span]:
        """From each cut to the last cut that fits: a shorter range is never better."""
        cuts = [edge for edge, cut in zip(self._edges, self._cut, strict=True) if cut]
        for start in cuts[:-1]:
            stop = cuts[bisect_right(cuts, sizes.reach(start, self.layers, memory)) - 1]
            if start < stop:
                yield start, stop

    def _loose(self, sizes: Sizes, memory: int) -> Iterator[Span]:
        """From each layer as far as fits."""
        for start in range(self.layers):
            stop = sizes.reach(start, self.layers, memory)
            if start < stop:
                yield start, stop

    def _weighed(self, spans: Iterable[Span]) -> list[tuple[int, Span]]:
        """The fewest replicas in each of these spans, whose ends never go back."""
        found: list[tuple[int, Span]] = []
        edges, counts = self._edges, self._counts
        waiting: deque[int] = deque()  # segments whose counts grow from the left to the right
        segment = 0
        for start, stop in spans:
            while segment < len(counts) and edges[segment] < stop:
                while waiting and counts[waiting[-1]] >= counts[segment]:
                    waiting.pop()
                waiting.append(segment)
                segment += 1
            while edges[waiting[0] + 1] <= start:
                waiting.popleft()
            found.append((counts[waiting[0]], (start, stop)))
        return found


def _picked(ranked: list[tuple[tuple[int, ...], Span]], turn: int) -> Span:
    """Return the span of the lowest rank, or for another turn the next one."""
    if not turn:
        return min(ranked)[1]
    chosen = sorted(set(ranked))
    return chosen[turn % len(chosen)][1]
