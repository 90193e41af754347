"""The chunks that this node's engine probably has cached, and can give to peers that know a name.

The engine evicts cached blocks without a message, so an entry is only where to look. No I/O.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ...dht.kv.chain import Chain, KvScope, chain_of
from ...transport.identity import PeerId
from ..defaults import CHUNKS_STORED
from ..engine.interface import NamedBlocks
from .naming import CHUNK, block_names, chunk_names

Layers = tuple[int, int]  # start, stop (exclusive)


@dataclass(frozen=True, slots=True)
class KvOrigin:
    """What determines the values of KV besides the tokens, and where the engine has them.

    `layers` are those of the shard that was loaded under the number `shard`. `owner` is the gateway
    that named the blocks, `adapter` the root of an adapter or "".
    """

    root: str
    dtype: str
    layers: Layers
    shard: int
    owner: PeerId
    adapter: str = ""

    def chain(self, names: bytes) -> Chain | None:
        """Return the chain of the full chunks among named blocks, or None if there is none."""
        return chain_of(KvScope(self.root, self.dtype, self.adapter), chunk_names(names))


class TagAnnouncer(Protocol):
    """The part of a `KvIndex` that the store uses."""

    def announce(self, chain: Chain, layers: Layers, *, publish: bool = ...) -> None: ...
    def withdraw(self, chain: Chain) -> None: ...


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk with the names of its blocks, of the chain `chain`. `start` is its first position."""

    origin: KvOrigin
    name: bytes
    start: int
    names: bytes
    chain: Chain

    def blocks(self, start: int, stop: int) -> NamedBlocks:
        """Return the blocks with the positions `start` to `stop` - 1 of the prompt, all in it."""
        names = block_names(self.names, start - self.start, stop - self.start)
        return NamedBlocks(self.origin.shard, self.origin.owner, names, self.origin.adapter)


class SharedChunks:
    """Chunks by tag, the latest CHUNKS_STORED.

    `wanted(root, layers)` returns whether another node may want KV of these layers. Only then are
    records of it published.
    """

    def __init__(self, index: TagAnnouncer, wanted: Callable[[str, Layers], bool]) -> None:
        self._index = index
        self.wanted = wanted
        self._chunks: OrderedDict[bytes, StoredChunk] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of chunks."""
        return len(self._chunks)

    def add(self, origin: KvOrigin, names: bytes) -> None:
        """Add the full chunks of a prompt whose blocks have these names, and announce them."""
        chain = origin.chain(names)
        if chain is None:
            return
        step = CHUNK
        for number, (tag, name) in enumerate(zip(chain.tags, chunk_names(names), strict=True)):
            start = number * step
            blocks = block_names(names, start, start + step)
            self._chunks[tag] = StoredChunk(origin, name, start, blocks, chain)
            self._chunks.move_to_end(tag)
        while len(self._chunks) > CHUNKS_STORED:
            self._chunks.popitem(last=False)
        wanted = self.wanted(origin.root, origin.layers)
        self._index.announce(chain, origin.layers, publish=wanted)

    def find(self, tag: bytes) -> StoredChunk | None:
        """Return a chunk by its tag, or None."""
        return self._chunks.get(tag)

    def forget(self, tag: bytes) -> None:
        """Remove a chunk that the engine has evicted, with the chain that it belongs to."""
        stored = self._chunks.pop(tag, None)
        if stored is not None:
            self._index.withdraw(stored.chain)
            for each in stored.chain.tags[stored.start // CHUNK :]:
                self._chunks.pop(each, None)
