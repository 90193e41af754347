"""Ranges are chosen as a plain search over all of them does, in a bounded number of steps."""

from collections.abc import Iterator
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.state.membership.record import Capacity, MemberRecord, ShardRecord
from shoal.tasks.engine.families import Architecture, architecture
from shoal.tasks.engine.interface import DType
from shoal.tasks.placement.coverage import Coverage, LayerSizes, Span
from shoal.tasks.placement.holes import needed_bytes, parts_of
from shoal.transport.identity import PeerId

ROOT = "ab" * 32


def model(layers: int, *, tied: bool = False, vocabulary: int = 100) -> Architecture:
    return architecture(
        {
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_attention_heads": 4,
            "num_hidden_layers": layers,
            "max_position_embeddings": 1024,
            "vocab_size": vocabulary,
            "rms_norm_eps": 1e-5,
            "hidden_act": "silu",
            "tie_word_embeddings": tied,
        }
    )


def shard(start: int, stop: int, *, embedding: bool = True, head: bool = True) -> ShardRecord:
    return ShardRecord(ROOT, embedding and start == 0, start, stop, head, "float32", 100)


def member(peer: str, memory: int, *shards: ShardRecord) -> MemberRecord:
    return MemberRecord(PeerId(peer), 1, capacity=Capacity(2, memory, True), shards=shards)


class Searched:
    """The rule by looking at every range: what `Coverage` must agree with."""

    def __init__(self, arch: Architecture, dtype: DType, shards: list[ShardRecord]) -> None:
        self.layers = arch.layers
        self.size = {
            span: needed_bytes(arch, parts_of(*span, arch.layers), dtype)
            for span in combinations(range(arch.layers + 1), 2)
        }
        self.counts = [0] * self.layers
        self.cuts = {0, self.layers}
        for each in shards:
            if each.stop <= self.layers:
                without = (each.start == 0 and not each.embedding, each.stop == self.layers)
                self.add(each.start, each.stop, without[0], without[1] and not each.head)

    def add(self, start: int, stop: int, first: bool = False, last: bool = False) -> None:
        self.cuts |= {start, stop}
        for layer in range(start + first, stop - last):
            self.counts[layer] += 1

    def choose(self, memory: int) -> Span | None:
        fits = [span for span, size in self.size.items() if size <= memory]
        if (0, self.layers) in fits:
            return 0, self.layers
        for spans in (self._at_ends(fits), self._inside(fits)):
            if found := list(spans):
                return max(found, key=lambda span: (span[1] - span[0], -span[0]))
        aligned = [span for span in fits if self.cuts.issuperset(span)]
        return min(
            aligned or fits,
            key=lambda span: (min(self.counts[slice(*span)]), span[0] - span[1], span[0]),
            default=None,
        )

    def _inside(self, fits: list[Span]) -> Iterator[Span]:
        return (span for span in fits if not any(self.counts[slice(*span)]))

    def _at_ends(self, fits: list[Span]) -> Iterator[Span]:
        for start, stop in self._inside(fits):
            if start == 0 or stop == self.layers or self.counts[start - 1] or self.counts[stop]:
                yield start, stop


@st.composite
def swarms(draw: st.DrawFn) -> tuple[Architecture, DType, list[MemberRecord], int]:
    arch = model(
        draw(st.integers(1, 10)),
        tied=draw(st.booleans()),
        vocabulary=draw(st.sampled_from([10, 100, 3000])),
    )
    dtype: DType = draw(st.sampled_from(["float32", "bfloat16"]))
    layer = LayerSizes.of(arch, dtype).layer
    memory = st.integers(layer // 2, layer * (arch.layers + 3))
    ends = st.integers(0, arch.layers + 1)
    members = []
    for number in range(draw(st.integers(0, 6))):
        spans = draw(st.lists(st.tuples(ends, ends), max_size=2))
        shards = [
            shard(min(span), max(span), embedding=draw(st.booleans()), head=draw(st.booleans()))
            for span in spans
        ]
        members.append(member(f"peer{number}", draw(memory), *shards))
    return arch, dtype, members, draw(memory)


@settings(deadline=None, max_examples=150)
@given(swarms())
def test_the_choice_is_that_of_a_search_over_all_ranges(
    swarm: tuple[Architecture, DType, list[MemberRecord], int],
) -> None:
    arch, dtype, members, memory = swarm
    shards = [each for record in members for each in record.shards]
    searched, coverage = Searched(arch, dtype, shards), Coverage(arch.layers, shards)
    for record in members:
        if taken := searched.choose(record.capacity.memory_bytes):
            searched.add(*taken)
        taken = coverage.choose(LayerSizes.of(arch, dtype), record.capacity.memory_bytes)
        if taken is not None:
            coverage.add(*taken)
    assert coverage.choose(LayerSizes.of(arch, dtype), memory) == searched.choose(memory)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 12), st.booleans(), st.sampled_from(["float32", "bfloat16"]))
def test_sizes_are_those_of_the_tensors(layers: int, tied: bool, dtype: DType) -> None:
    arch = model(layers, tied=tied)
    sizes = LayerSizes.of(arch, dtype)
    for start, stop in combinations(range(layers + 1), 2):
        exact = needed_bytes(arch, parts_of(start, stop, layers), dtype)
        assert sizes.of_span(start, stop) == exact
