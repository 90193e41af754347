"""Tests of replica counts and of the sentences about missing layers."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.state.membership.record import (
    Aim,
    Capacity,
    MemberRecord,
    ModelName,
    Rank,
    ShardRecord,
)
from shoal.tasks.engine.families import architecture
from shoal.tasks.placement.holes import Hole, holes_of, missing_sentence, replicas, split_layers
from shoal.transport.identity import PeerId

ROOT = "ab" * 32
OTHER = "cd" * 32
LAYERS = 12
OWN = PeerId("own")
GIB = 2**30


MODEL = architecture(
    {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": LAYERS,
        "max_position_embeddings": 1024,
        "vocab_size": 100,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
    }
)


def shard(start: int, stop: int, root: str = ROOT, *, bare: bool = False) -> ShardRecord:
    head, embedding = stop == LAYERS and not bare, start == 0 and not bare
    return ShardRecord(root, embedding, start, stop, head, "float32", 1000)


def member(
    peer: str,
    *shards: ShardRecord,
    memory: int = GIB,
    engine: bool = True,
    models: Sequence[ModelName] = (),
) -> MemberRecord:
    capacity = Capacity(2, memory, engine)
    return MemberRecord(
        PeerId(peer), 1, capacity=capacity, shards=tuple(shards), models=tuple(models)
    )


def swarm(*records: MemberRecord) -> dict[PeerId, MemberRecord]:
    return {record.peer: record for record in records}


def test_the_outer_layers_count_only_with_embedding_and_head() -> None:
    members = swarm(member("a", shard(0, LAYERS, bare=True)), member("b", shard(3, 5, OTHER)))
    assert replicas(members, ROOT, LAYERS) == [0, *[1] * (LAYERS - 2), 0]
    assert holes_of(members, ROOT, LAYERS) == [Hole(0, 1), Hole(LAYERS - 1, LAYERS)]


def test_a_shard_beyond_the_model_is_ignored() -> None:
    assert replicas(swarm(member("a", shard(0, 13))), ROOT, LAYERS) == [0] * LAYERS


def test_the_sentence_names_layers_memory_and_nodes() -> None:
    names = [ModelName("big", ROOT, LAYERS, 12 * GIB)]
    members = swarm(
        member("a", shard(0, 4), models=names), member("b", engine=False), member("c", memory=2**20)
    )
    holes = holes_of(members, ROOT, LAYERS)
    assert missing_sentence(members, ROOT, LAYERS, holes) == (
        "layers 4:12 of `big` (12 layers) are served by no node that answers: "
        "they take about 8.0 GiB of memory; a offers 1.0 GiB and serves layers 0:4, "
        "c offers 1 MiB and serves nothing yet, b has no engine"
    )
    seeks, loads = Aim(ROOT, 0, 0, Rank.SEEKS), Aim(ROOT, 4, 12, Rank.CLAIMS)
    soon = swarm(*(replace(member(each.rank.name), aims=(each,)) for each in (seeks, loads)))
    sentence = missing_sentence(soon, ROOT, LAYERS, holes)
    assert "CLAIMS offers 1.0 GiB and will serve layers 4:12, SEEKS offers 1.0 GiB and" in sentence
    assert sentence.endswith("and will serve some")
    many = swarm(*(member(str(number)) for number in range(20)))
    assert "12 more nodes are known" in missing_sentence(many, ROOT, LAYERS, holes)
    assert "no node is known" in missing_sentence({}, ROOT, LAYERS, holes)


@given(layers=st.integers(1, 200), data=st.data())
def test_a_split_is_even_and_whole(layers: int, data: st.DataObject) -> None:
    nodes = data.draw(st.integers(1, layers))
    spans = split_layers(layers, nodes)
    assert [layer for span in spans for layer in range(*span)] == list(range(layers))
    sizes = {stop - start for start, stop in spans}
    assert max(sizes) - min(sizes) <= 1
    assert len(spans) == nodes


def test_more_nodes_than_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be split"):
        split_layers(2, 3)
