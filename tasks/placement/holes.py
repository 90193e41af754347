"""Counts the replicas of layers, and describes missing layers in sentences. Pure functions.

The embedding belongs to layer 0 and the head to the last layer. `plan.py` decides which layers a
node holds.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...state.membership.record import MemberRecord, ModelName, ShardRecord
from ...transport import naming
from ...transport.identity import PeerId
from ..defaults import KV_TOKENS_LEAST, NAMED_NODES
from ..engine.defaults import STATE_SLOTS
from ..engine.families import Architecture, kv_token_bytes, state_bytes, weight_bytes
from ..engine.interface import DType, Parts
from ..errors import NoFit
from .coverage import Coverage, LayerSizes

Members = Mapping[PeerId, MemberRecord]


@dataclass(frozen=True, slots=True)
class Hole:
    """Layers start:stop that no node serves."""

    start: int
    stop: int  # exclusive


def split_layers(layers: int, nodes: int) -> list[tuple[int, int]]:
    """Return `nodes` contiguous ranges (start, stop) of nearly equal length.

    Raises ValueError unless 1 <= nodes <= layers.
    """
    if not 1 <= nodes <= layers:
        raise ValueError(f"{layers} layers cannot be split over {nodes} nodes")
    cuts = [layers * number // nodes for number in range(nodes + 1)]
    return list(pairwise(cuts))


def parts_of(start: int, stop: int, layers: int) -> Parts:
    """Return the shard with layers start:stop of a model with `layers` layers.

    It has the embedding if it begins with layer 0, and the head if it ends with the last layer.
    """
    return Parts(start == 0, start, stop, stop == layers)


def needed_bytes(arch: Architecture, parts: Parts, dtype: DType) -> int:
    """Return the least memory in bytes for a shard: its weights, and KV for KV_TOKENS_LEAST tokens,
    with the states of one session if it has recurrent layers."""
    kv = kv_token_bytes(arch, parts.start, parts.stop, dtype) * min(arch.context, KV_TOKENS_LEAST)
    states = STATE_SLOTS * state_bytes(arch, parts.start, parts.stop, dtype)
    # Half of the memory beside the weights is for states (`kv_room`), if there are both.
    beside = 2 * max(kv, states) if kv and states else kv + states
    return weight_bytes(arch, parts, dtype) + beside


def replicas(members: Members, root: str, layers: int) -> list[int]:
    """Return, for each layer, the number of members that serve it.

    A member counts for layer 0 only if it has the embedding, and for the last layer only if it has
    the head.
    """
    return Coverage(layers, _shards(members, root)).replicas()


def holes_of(members: Members, root: str, layers: int) -> list[Hole]:
    """Return the layer ranges that no member serves, in order."""
    return [Hole(*span) for span in Coverage(layers, _shards(members, root)).holes()]


def missing_sentence(members: Members, root: str, layers: int, holes: Sequence[Hole]) -> str:
    """Return a sentence that states the unserved layers, the memory for them, and what each node
    offers."""
    ranges = " and ".join(f"{hole.start}:{hole.stop}" for hole in holes[:8])
    model = _named(members, root)
    name = f"`{naming.shown(model.name)}`" if model else f"model {root[:16]}"
    sentence = f"layers {ranges} of {name} ({layers} layers) are served by no node that answers"
    if model:
        count = sum(hole.stop - hole.start for hole in holes)
        sentence += f": they take about {_size(model.weight_bytes * count // layers)} of memory"
    offers = _offers(members, root)
    return f"{sentence}; {offers}" if offers else f"{sentence}; no node is known"


def _shards(members: Members, root: str) -> Iterator[ShardRecord]:
    for record in members.values():
        for shard in record.shards:
            if shard.root == root:
                yield shard


def no_fit(sizes: LayerSizes, memory: int, way_out: str = "") -> NoFit:
    """Create the error for a node whose `memory` bytes do not suffice for a single layer.

    `way_out` completes the hint.
    """
    smallest = sizes.smallest
    more = f"offer more: `shoal node --memory {-(-smallest // 2**20)}MiB`"
    return NoFit(
        f"not one of the model's {sizes.layers} layers fits: the smallest shard takes "
        f"{_size(smallest)} of memory, all of it {_size(sizes.everything)}, "
        f"and this node offers {_size(memory)}",
        hint=f"{more}, {way_out}" if way_out else more,
    )


def _named(members: Members, root: str) -> ModelName | None:
    """Return the name and size of a model as a member states them, or None if no member names
    it."""
    names = (model for record in members.values() for model in record.models if model.root == root)
    return min(names, key=lambda model: model.name, default=None)


def _offers(members: Members, root: str) -> str:
    """Return text about what each node offers. The nodes that could help most come first."""
    ranked = sorted(
        members.values(),
        key=lambda record: (not record.capacity.engine, -record.capacity.memory_bytes, record.peer),
    )
    texts = [f"{record.peer} {_offer(record, root)}" for record in ranked[:NAMED_NODES]]
    if len(ranked) > NAMED_NODES:
        texts.append(f"{len(ranked) - NAMED_NODES} more nodes are known")
    return ", ".join(texts)


def _offer(record: MemberRecord, root: str) -> str:
    """Return a phrase about what one node offers and serves."""
    if not record.capacity.engine:
        return "has no engine"
    offer = f"offers {_size(record.capacity.memory_bytes)}"
    for shard in record.shards:
        what = "layers" if shard.root == root else "another model's layers"
        return f"{offer} and serves {what} {shard.start}:{shard.stop}"
    if (aim := record.aim_at(root)) is None:
        return f"{offer} and serves nothing yet"
    return f"{offer} and will serve " + (f"layers {aim.start}:{aim.stop}" if aim.stop else "some")


def _size(count: int) -> str:
    if count >= 2**30:
        return f"{count / 2**30:.1f} GiB"
    return f"{-(-count // 2**20)} MiB"
