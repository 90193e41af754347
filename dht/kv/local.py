"""Chains whose KV this node has: their chunks, and the records to publish. No I/O.

Chains with a common prefix share chunks. The number of chains and the number of chunks are limited.
If a limit is exceeded, the least recently used chains are evicted.
"""

from collections import OrderedDict
from dataclasses import dataclass

from .. import defaults
from ..records.key import Key
from ..records.record import KvBody
from .chain import Chain
from .search import SHORT

Layers = tuple[int, int]  # start, stop (exclusive)


@dataclass(slots=True)
class _Chunk:
    """A chunk of one or several chains."""

    tag: bytes
    layers: dict[Layers, int]  # layer range -> number of chains with this chunk and range


class LocalChains:
    """Index of the chains of this node.

    `chunks` is the sum of the lengths of all chains. A chunk that several chains share counts once
    for each.
    """

    def __init__(self, *, chains: int = defaults.KV_CHAINS, chunks: int = defaults.KV_CHUNKS):
        self.chunks = 0
        self._limits = chains, chunks
        self._chains: OrderedDict[bytes, tuple[Chain, Layers]] = OrderedDict()  # by last use
        self._by_key: dict[Key, OrderedDict[bytes, None]] = {}
        self._chunks: dict[bytes, _Chunk] = {}

    def __len__(self) -> int:
        """Return the number of chains."""
        return len(self._chains)

    def add(self, chain: Chain, layers: Layers) -> set[Key]:
        """Add a chain with its layers, or mark it as just used.

        Evicts others if a limit is exceeded. Returns the keys whose records may have changed.
        """
        changed = self.remove(chain)
        tip = chain.tags[-1]
        self._chains[tip] = chain, layers
        self._by_key.setdefault(chain.key, OrderedDict())[tip] = None
        self.chunks += len(chain)
        for tag in chain.tags:
            chunk = self._chunks.get(tag[:SHORT])
            if chunk is None:
                self._chunks[tag[:SHORT]] = _Chunk(tag, {layers: 1})
            elif chunk.tag == tag:
                chunk.layers[layers] = chunk.layers.get(layers, 0) + 1
        changed.add(chain.key)
        return changed | self._evict()

    def remove(self, chain: Chain) -> set[Key]:
        """Remove a chain, but not the chunks that other chains share.

        Returns the keys whose records may have changed.
        """
        found = self._chains.pop(chain.tags[-1], None)
        if found is None:
            return set()
        chain, layers = found
        tips = self._by_key[chain.key]
        del tips[chain.tags[-1]]
        if not tips:
            del self._by_key[chain.key]
        self.chunks -= len(chain)
        for tag in chain.tags:
            chunk = self._chunks.get(tag[:SHORT])
            if chunk is not None and chunk.tag == tag:
                chunk.layers[layers] -= 1
                if not chunk.layers[layers]:
                    del chunk.layers[layers]
                if not chunk.layers:
                    del self._chunks[tag[:SHORT]]
        return {chain.key}

    def _evict(self) -> set[Key]:
        """Remove the least recently used chains beyond the limits, and return the changed keys."""
        chains, chunks = self._limits
        changed: set[Key] = set()
        while len(self._chains) > chains or self.chunks > chunks:
            chain, _ = next(iter(self._chains.values()))
            changed |= self.remove(chain)
        return changed

    def tag(self, short: bytes, layers: Layers) -> bytes | None:
        """Return the full tag of a chunk whose tag begins with `short`.

        Returns None if this node does not have the chunk with all these layers.
        """
        chunk = self._chunks.get(short)
        if chunk is None or not any(_covers(here, layers) for here in chunk.layers):
            return None
        return chunk.tag

    def held(self, chain: Chain, layers: Layers) -> int:
        """Return how many leading chunks of a chain this node has with all these layers."""
        for count, tag in enumerate(chain.tags):
            if self.tag(tag[:SHORT], layers) != tag:
                return count
        return len(chain)

    def bodies(self, key: Key) -> list[KvBody]:
        """Return the records to publish under a key, for the chains that were used last.

        Chains that another chain contains are left out.
        """
        found: list[KvBody] = []
        for tip in reversed(self._by_key.get(key, ())):
            chain, layers = self._chains[tip]
            if not self._is_contained(tip, layers):
                found.append(chain.body(layers))
            if len(found) == defaults.SLOTS[KvBody.kind]:
                break
        return found

    def _is_contained(self, tip: bytes, layers: Layers) -> bool:
        """Return whether another chain contains this one, with at least the same layers.

        That is so if another chain has the last chunk of this one.
        """
        chunk = self._chunks[tip[:SHORT]]
        there = sum(count for here, count in chunk.layers.items() if _covers(here, layers))
        return there > 1  # the chain itself counts once


def _covers(here: Layers, layers: Layers) -> bool:
    """Return whether the layers `here` include all of `layers`."""
    return here[0] <= layers[0] and layers[1] <= here[1]
