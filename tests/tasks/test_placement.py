"""Which layers a node takes: all, else a hole, else the weakest; and what is missing where."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.state.record import Capacity, MemberRecord, ModelName, ShardRecord
from shoal.tasks.engine.families import Architecture, architecture
from shoal.tasks.engine.interface import Parts
from shoal.tasks.errors import NoFit
from shoal.tasks.placement import (
    Hole,
    choose_parts,
    holes_of,
    idle_members,
    missing_sentence,
    needed_bytes,
    parts_of,
    replicas,
    split_layers,
)
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


@pytest.fixture
def arch() -> Architecture:
    return MODEL


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
    capacity = Capacity(2, memory, engine, 1e9, 1e9)
    return MemberRecord(
        PeerId(peer), 1, capacity=capacity, shards=tuple(shards), models=tuple(models)
    )


def swarm(*records: MemberRecord) -> dict[PeerId, MemberRecord]:
    return {record.peer: record for record in records}


def room_for(arch: Architecture, layers: int) -> int:
    """Memory that holds so many inner layers, and less than one more."""
    return needed_bytes(arch, Parts(False, 1, 1 + layers, False), "float32")


def choose(
    arch: Architecture,
    members: dict[PeerId, MemberRecord],
    memory: int,
    ahead: Sequence[PeerId] = (),
    own: PeerId = OWN,
) -> tuple[int, int]:
    parts = choose_parts(members, own, ROOT, arch, "float32", memory, ahead)
    assert parts == parts_of(parts.start, parts.stop, LAYERS)
    assert needed_bytes(arch, parts, "float32") <= memory
    return parts.start, parts.stop


def test_one_that_can_hold_all_holds_all(arch: Architecture) -> None:
    assert choose(arch, swarm(member("a", shard(0, LAYERS))), GIB) == (0, LAYERS)


def test_a_hole_is_filled_to_its_ends(arch: Architecture) -> None:
    members = swarm(member("a", shard(0, 4)), member("b", shard(8, LAYERS)))
    assert choose(arch, members, room_for(arch, 6)) == (4, 8)


def test_as_much_of_a_hole_as_fits_and_from_its_beginning(arch: Architecture) -> None:
    assert choose(arch, swarm(member("a", shard(0, 4))), room_for(arch, 3)) == (4, 7)


def test_without_a_hole_the_weakest_layers_get_a_replica(arch: Architecture) -> None:
    members = swarm(
        member("a", shard(0, 4)), member("b", shard(4, 8)), member("c", shard(8, LAYERS)),
        member("d", shard(0, 4)), member("e", shard(8, LAYERS)),
    )  # fmt: skip
    assert choose(arch, members, room_for(arch, 5)) == (4, 8)


def test_its_own_shard_is_no_reason_against_itself(arch: Architecture) -> None:
    members = swarm(member("a", shard(0, 8)), member(OWN, shard(8, LAYERS)))
    assert choose(arch, members, room_for(arch, 6)) == (8, LAYERS)


def test_nothing_fits(arch: Architecture) -> None:
    with pytest.raises(NoFit) as caught:
        choose(arch, {}, 1000)
    assert "this node offers 1 MiB" in caught.value.message
    assert caught.value.hint is not None


def test_nodes_that_start_together_take_different_layers(arch: Architecture) -> None:
    memory = room_for(arch, 5)
    members = swarm(*(member(name, memory=memory) for name in "abc"))
    taken = [
        choose(arch, members, memory, idle_members(members, own), own)
        for own in (PeerId("a"), PeerId("b"), PeerId("c"))
    ]
    held = sorted(layer for span in taken for layer in range(*span))
    assert held == list(range(LAYERS))


def test_idle_ones_are_ordered_alike_everywhere() -> None:
    members = swarm(
        member("a"), member("b", memory=2 * GIB), member("c", engine=False),
        member("d", shard(0, 4)), member(OWN),
    )  # fmt: skip
    assert idle_members(members, OWN) == ["b", "a"]
    assert idle_members(members, PeerId("b")) == []


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_joining_one_by_one_covers_the_model(data: st.DataObject) -> None:
    members: dict[PeerId, MemberRecord] = {}
    for number in range(LAYERS):
        memory = room_for(MODEL, data.draw(st.integers(3, LAYERS)))
        peer = PeerId(f"peer{number}")
        start, stop = choose(MODEL, members, memory, own=peer)
        before = sum(hole.stop - hole.start for hole in holes_of(members, ROOT, LAYERS))
        members[peer] = member(peer, shard(start, stop))
        after = sum(hole.stop - hole.start for hole in holes_of(members, ROOT, LAYERS))
        assert after < before or after == 0
    assert not holes_of(members, ROOT, LAYERS)


def test_the_outer_layers_count_only_with_embedding_and_head() -> None:
    members = swarm(member("a", shard(0, LAYERS, bare=True)), member("b", shard(3, 5, OTHER)))
    assert replicas(members, ROOT, LAYERS) == [0, *[1] * (LAYERS - 2), 0]
    assert holes_of(members, ROOT, LAYERS) == [Hole(0, 1), Hole(LAYERS - 1, LAYERS)]


def test_a_shard_beyond_the_model_counts_nothing() -> None:
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


def test_more_nodes_than_layers_cannot_be() -> None:
    with pytest.raises(ValueError, match="cannot be split"):
        split_layers(2, 3)
