"""LoRA adapters in the engine: their terms, and those that a worker has loaded. No I/O, no torch.

An adapter adds `scale * B A x` to the outputs of some projections `W x` of a model (Hu 2021). Its
tensors are stored layer by layer, in each layer module by module in the order of MODULES, and of
each module first A (rank x inputs), then B (outputs x rank). Spec: docs/spec/adapter.md.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, get_args

from msgspec import Meta

from ...transport.message import Root, Row
from ..defaults import MAX_LAYERS
from .defaults import ADAPTER_CHUNKS, ADAPTER_SHARE, ADAPTERS, MAX_RANK
from .errors import EngineError
from .families import Architecture
from .kv.blocks import BlockPool
from .scheduling.costs import AdapterCosts

Module = Literal[
    "q_proj",
    "k_proj",
    "v_proj",
    "qkv_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "gate_up_proj",
    "down_proj",
]
MODULES: Final[tuple[Module, ...]] = get_args(Module)
"""All modules that an adapter may change. A model has some of them (`module_shapes`)."""
SourceDType = Literal["F32", "F16", "BF16"]
SOURCE_BYTES: Final[Mapping[SourceDType, int]] = {"F32": 4, "F16": 2, "BF16": 2}


class AdapterTerms(Row, frozen=True):
    """What an adapter is, apart from its tensors.

    `dtype` is the safetensors name of the dtype of all tensors. `layers` have tensors for all of
    `modules`, the other layers for none. If `rslora`, the scale is alpha / sqrt(rank), else alpha /
    rank.
    """

    base: Root  # root of the model that it belongs to
    rank: Annotated[int, Meta(ge=1, le=MAX_RANK)]
    alpha: Annotated[float, Meta(gt=-1e6, lt=1e6)]
    rslora: bool
    dtype: SourceDType
    modules: Annotated[tuple[Module, ...], Meta(min_length=1, max_length=len(MODULES))]
    layers: Annotated[
        tuple[Annotated[int, Meta(ge=0, lt=MAX_LAYERS)], ...],
        Meta(min_length=1, max_length=MAX_LAYERS),
    ]

    @property
    def scale(self) -> float:
        """Factor of the product of A and B."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    def check(self) -> None:
        """Raise ValueError if modules or layers are repeated or not in order."""
        if list(self.modules) != [name for name in MODULES if name in self.modules]:
            raise ValueError("the modules are not in order")
        if list(self.layers) != sorted(set(self.layers)):
            raise ValueError("the layers are not in order")

    def values(self, arch: Architecture) -> int:
        """Return the number of values in one layer of the adapter.

        Raises EngineError `bad-adapter` if it changes modules that the model does not have.
        """
        if module := lacking(self.modules, arch):
            raise EngineError(
                "bad-adapter", f"the model has no `{module}` that an adapter could change"
            )
        shapes = map(module_shapes(arch).__getitem__, self.modules)
        return self.rank * sum(outputs + inputs for outputs, inputs in shapes)

    def layer_bytes(self, arch: Architecture) -> int:
        """Return the stored bytes of one layer of the adapter."""
        return self.values(arch) * SOURCE_BYTES[self.dtype]

    def place(self, start: int, stop: int) -> tuple[int, int]:
        """Return the number of its layers before layer `start`, and the number of those in
        start:stop."""
        before = sum(layer < start for layer in self.layers)
        return before, sum(start <= layer < stop for layer in self.layers)


class LoadAdapter(Row, frozen=True):
    """Command to load the part of an adapter that a shard needs.

    `chunks` are the paths of chunk files with the SHA-256 digests `digests`. Their content, from
    byte `skip` of the first one on, is the layers of the adapter that the shard has.
    """

    root: Root
    terms: AdapterTerms
    skip: Annotated[int, Meta(ge=0)]
    chunks: Annotated[tuple[str, ...], Meta(max_length=ADAPTER_CHUNKS)]
    digests: Annotated[tuple[bytes, ...], Meta(max_length=ADAPTER_CHUNKS)]

    def check(self) -> None:
        """Raise ValueError if the terms are inconsistent, or there is not one digest per chunk."""
        self.terms.check()
        if len(self.chunks) != len(self.digests):
            raise ValueError("an adapter needs one digest per chunk")


def module_shapes(arch: Architecture) -> dict[Module, tuple[int, int]]:
    """Return (outputs, inputs) of each projection that an adapter may change, in the order of
    MODULES.

    They are the modules that the family stores under these names, because `peft` names them so.
    Experts cannot be changed, nor any part of a model with recurrent layers.
    """
    if arch.recurrent:
        return {}
    queries, keys = arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
    hidden, wide, names = arch.hidden, arch.intermediate, arch.names
    sizes = {
        "q_proj": (queries, hidden),
        "k_proj": (keys, hidden),
        "v_proj": (keys, hidden),
        "qkv_proj": (queries + 2 * keys, hidden),
        "o_proj": (hidden, queries),
        "gate_proj": (wide, hidden),
        "up_proj": (wide, hidden),
        "gate_up_proj": (2 * wide, hidden),
        "down_proj": (hidden, wide),
    }
    dense = not any(kind.experts for kind in arch.kinds)
    every = (*names.qkv, names.output, *((*names.gate_up, names.down) if dense else ()))
    stored = {name.split(".")[-1] for name in every}
    return {module: sizes[module] for module in MODULES if module in stored}


def lacking(modules: Sequence[Module], arch: Architecture) -> Module | None:
    """Return the first of some modules that a model does not have, or None."""
    shapes = module_shapes(arch)
    return next((module for module in modules if module not in shapes), None)


@dataclass(slots=True, eq=False)
class LoadedAdapter:
    """An adapter in a worker's memory. `tensors` is what `Compute.adapt` returned."""

    root: str
    tensors: Any
    size: int  # bytes
    blocks: Sequence[int]  # KV blocks in whose place it is in memory
    costs: AdapterCosts = field(default_factory=lambda: AdapterCosts(0.0, 0.0))
    users: int = 0  # open sessions


@dataclass(slots=True)
class LoadedAdapters:
    """The adapters that a worker has loaded for its shard, least recently used first.

    They take memory from the KV of the shard: each one reserves as many blocks as it has bytes, so
    weights, KV and adapters together stay within the limit. Adapters without sessions are evicted
    when others, or sessions, need their memory.
    """

    pool: BlockPool
    block_bytes: int
    _loaded: OrderedDict[str, LoadedAdapter] = field(default_factory=OrderedDict)

    @property
    def size(self) -> int:
        """Bytes of all loaded adapters."""
        return sum(each.size for each in self._loaded.values())

    def __contains__(self, root: object) -> bool:
        return root in self._loaded

    def use(self, root: str, blocks: int) -> LoadedAdapter:
        """Return an adapter, and count one more session, which may grow to `blocks` blocks.

        Raises EngineError `no-adapter` if it is not loaded, and `no-memory` if such a session never
        fits beside it.
        """
        found = self._loaded.get(root)
        if found is None:
            raise EngineError("no-adapter", f"the adapter {root[:16]} is not loaded")
        if blocks > self.pool.total - len(found.blocks):
            self.pool.refuse(blocks)
        self._loaded.move_to_end(root)
        found.users += 1
        return found

    @staticmethod
    def release(adapter: LoadedAdapter | None) -> None:
        """Count one session less, if it has an adapter."""
        if adapter is not None:
            adapter.users -= 1

    def reserve(self, size: int) -> list[int]:
        """Reserve KV blocks for an adapter of `size` bytes, and evict others if necessary.

        Raises EngineError `no-memory` if sessions use too much, or if the adapter alone would take
        more than ADAPTER_SHARE of the KV memory.
        """
        blocks = -(-size // self.block_bytes) if self.block_bytes else 0
        most = int(self.pool.total * ADAPTER_SHARE)
        if blocks > most:
            raise EngineError(
                "no-memory",
                f"the adapter needs {size} bytes, {most * self.block_bytes} are there for adapters",
            )
        while len(self._loaded) >= ADAPTERS or self._blocks() + blocks > most:
            if not self._evict():
                raise EngineError("no-memory", "the adapters of open sessions take all memory")
        self.make_room(blocks)
        return self.pool.reserve(blocks)

    def add(self, adapter: LoadedAdapter) -> None:
        """Register a loaded adapter, for which `reserve` has reserved memory."""
        self._loaded[adapter.root] = adapter

    def make_room(self, blocks: int) -> None:
        """Evict adapters without sessions until `blocks` blocks can be promised, as far as
        possible."""
        while self.pool.total - self.pool.promised < blocks and self._evict():
            pass

    def _blocks(self) -> int:
        return sum(len(each.blocks) for each in self._loaded.values())

    def _evict(self) -> bool:
        """Evict the least recently used adapter without sessions. Return False if there is none."""
        for root, each in self._loaded.items():
            if not each.users:
                self.pool.give_back(each.blocks)
                del self._loaded[root]
                return True
        return False
