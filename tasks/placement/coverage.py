"""Counts the replicas of each layer of a model, and picks the range that one more node should hold.

Neighbouring layers with the same replicas form one segment, so the work grows with the number of
shard ends and not with the number of layers. All layers of a model need the same memory
(`engine/families/`).
"""

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate

from ...state.membership.record import ShardRecord
from ..defaults import KV_TOKENS_LEAST
from ..engine.families import Architecture, kv_token_bytes, weight_bytes
from ..engine.interface import DType, Parts

Span = tuple[int, int]
"""Layer range (start, stop); stop is exclusive."""


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Memory in bytes that any range of one model's layers needs, with KV for one short session."""

    layers: int
    layer: int
    first: int  # added if the range begins with layer 0
    last: int  # added if the range ends with the last layer
    everything: int

    @classmethod
    def of(cls, arch: Architecture, dtype: DType) -> "LayerSizes":
        """Compute the sizes for a model. Weights that the embedding and the head share count
        once."""
        tokens = min(arch.context, KV_TOKENS_LEAST)
        # Layers differ if their weights are in different layouts; the largest one counts for all.
        layers = range(arch.layers if arch.layouts.is_mixed else 1)
        inner = max(weight_bytes(arch, Parts(False, n, n + 1, False), dtype) for n in layers)
        layer = inner + kv_token_bytes(arch, 0, 1, dtype) * tokens
        first = weight_bytes(arch, Parts(True, 0, 0, False), dtype)
        last = weight_bytes(arch, Parts(False, 0, 0, True), dtype)
        both = weight_bytes(arch, Parts(True, 0, 0, True), dtype)  # shared weights count once
        return cls(arch.layers, layer, first, last, arch.layers * layer + both)

    @property
    def smallest(self) -> int:
        """Bytes of the shard with one layer that needs least."""
        some = {0, self.layers // 2, self.layers - 1}
        return min(self.of_span(layer, layer + 1) for layer in some)

    def of_span(self, start: int, stop: int) -> int:
        """Return the bytes that layers start:stop need.

        These include the embedding if the range begins with layer 0, and the head if it ends with
        the last layer.
        """
        if start == 0 and stop == self.layers:
            return self.everything
        ends = self.first * (start == 0) + self.last * (stop == self.layers)
        return self.layer * (stop - start) + ends

    def reach(self, start: int, most: int, memory: int) -> int:
        """Return the largest stop, at most `most`, such that start:stop fits in `memory` bytes.

        Returns `start` if not one layer fits.
        """
        stop = start + (memory - self.first * (start == 0)) // self.layer
        if stop >= self.layers and self.of_span(start, self.layers) > memory:
            stop = self.layers - 1
        return max(start, min(stop, most))

    def reach_back(self, stop: int, least: int, memory: int) -> int:
        """Return the smallest start, at least `least`, such that start:stop fits in `memory` bytes.

        Returns `stop` if not one layer fits.
        """
        start = stop - (memory - self.last * (stop == self.layers)) // self.layer
        if start <= 0 and self.of_span(0, stop) > memory:
            start = 1
        return min(stop, max(start, least))


class Coverage:
    """Segments of one model's layers with their replica counts. `steps` counts the work done."""

    def __init__(self, layers: int, shards: Iterable[ShardRecord]) -> None:
        """Count the replicas in `shards`.

        A shard counts for layer 0 only if it has the embedding, and for the last layer only if it
        has the head.
        """
        self.layers = layers
        self.steps = 0
        ends: Counter[int] = Counter()  # by layer: change of the replica count there
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
        self._edges = sorted(cuts | ends.keys())  # the start of each segment, and the last end
        self._cut = [edge in cuts for edge in self._edges]  # whether a chain can join shards there
        self._counts = list(accumulate(ends[edge] for edge in self._edges[:-1]))

    @classmethod
    def of_spans(cls, layers: int, spans: Iterable[Span]) -> "Coverage":
        """Create the coverage of shards with these layer ranges.

        A shard has the embedding if its range begins with layer 0, and the head if it ends with the
        last layer.
        """
        shards = (ShardRecord("", a == 0, a, b, b == layers, "", 0) for a, b in spans)
        return cls(layers, shards)

    def lacks(self, start: int, stop: int) -> bool:
        """Return whether no shard has any layer of start:stop."""
        return any(first <= start and stop <= last for first, last in self.holes())

    def replicas(self) -> list[int]:
        """Return, for each layer, the number of shards that have it."""
        found: list[int] = []
        for segment, count in enumerate(self._counts):
            found += [count] * (self._edges[segment + 1] - self._edges[segment])
        return found

    def holes(self) -> list[Span]:
        """Return the layer ranges that no shard has, in order."""
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
        """Count one more shard with start:stop.

        It has the embedding if the range begins with layer 0, and the head if it ends with the last
        layer.
        """
        first, last = self._edge(start), self._edge(stop)
        for segment in range(first, last):
            self._counts[segment] += 1

    def _edge(self, layer: int) -> int:
        """Return the index of the edge at `layer`, and record that a chain can join shards there.

        If there is no edge at that layer yet, the segment is split there.
        """
        at = bisect_left(self._edges, layer)
        if self._edges[at] != layer:
            self._edges.insert(at, layer)
            self._cut.insert(at, True)
            self._counts.insert(at, self._counts[at - 1])
        self._cut[at] = True
        return at

    def choose(self, sizes: LayerSizes, memory: int, turn: int = 0) -> Span | None:
        """Return the range that a node with `memory` bytes should hold, or None if not one layer
        fits.

        If the whole model fits, the range is the whole model. Otherwise it fills as much as
        possible of a hole. If there is no hole, it is the range whose layers have the fewest
        replicas. Ranges that begin and end where other shards do have priority. `turn` skips that
        many of the best choices.
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

    def _in_holes(self, sizes: LayerSizes, memory: int) -> list[Span]:
        """Return the ranges that fit into the holes, at the start and the end of each hole.

        A range in the middle of a hole would split the hole in two, so such ranges are returned
        only if no range fits at an end of any hole.
        """
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

    def _aligned(self, sizes: LayerSizes, memory: int) -> Iterator[Span]:
        """Yield, from each edge at which shards can be joined, the longest range that ends at such
        an edge.

        A shorter range is never better.
        """
        cuts = [edge for edge, cut in zip(self._edges, self._cut, strict=True) if cut]
        for start in cuts[:-1]:
            stop = cuts[bisect_right(cuts, sizes.reach(start, self.layers, memory)) - 1]
            if start < stop:
                yield start, stop

    def _loose(self, sizes: LayerSizes, memory: int) -> Iterator[Span]:
        """Yield, from each layer, the longest range that fits."""
        for start in range(self.layers):
            stop = sizes.reach(start, self.layers, memory)
            if start < stop:
                yield start, stop

    def _weighed(self, spans: Iterable[Span]) -> list[tuple[int, Span]]:
        """Return (lowest replica count of its layers, span) for each span.

        The starts and the stops of successive spans must not decrease.
        """
        found: list[tuple[int, Span]] = []
        edges, counts = self._edges, self._counts
        waiting: deque[int] = deque()  # segments with increasing counts: a sliding-window minimum
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
    """Return the span with the lowest rank, or the span that follows it by `turn` ranks
    (cyclic)."""
    if not turn:
        return min(ranked)[1]
    chosen = sorted(set(ranked))
    return chosen[turn % len(chosen)][1]
