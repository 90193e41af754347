"""Chains whose KV this node has: their blocks, and the records to publish. No I/O.

Chains with a common prefix share blocks. The number of chains and the number of blocks are limited.
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
class _Block:
    """A block of one or several chains."""

    name: bytes
    layers: dict[Layers, int]  # layer range -> number of chains with this block and range


class LocalChains:
    """Index of the chains of this node.

    `blocks` is the sum of the lengths of all chains. A block that several chains share counts once
    for each.
    """

    def __init__(self, *, chains: int = defaults.KV_CHAINS, blocks: int = defaults.KV_BLOCKS):
        self.blocks = 0
        self._limits = chains, blocks
        self._chains: OrderedDict[bytes, tuple[Chain, Layers]] = OrderedDict()  # by last use
        self._by_key: dict[Key, OrderedDict[bytes, None]] = {}
        self._blocks: dict[bytes, _Block] = {}

    def __len__(self) -> int:
        """Return the number of chains."""
        return len(self._chains)

    def add(self, chain: Chain, layers: Layers) -> set[Key]:
        """Add a chain with its layers, or mark it as just used.

        Evicts others if a limit is exceeded. Returns the keys whose records may have changed.
        """
        changed = self.remove(chain)
        tip = chain.names[-1]
        self._chains[tip] = chain, layers
        self._by_key.setdefault(chain.key, OrderedDict())[tip] = None
        self.blocks += len(chain)
        for name in chain.names:
            block = self._blocks.get(name[:SHORT])
            if block is None:
                self._blocks[name[:SHORT]] = _Block(name, {layers: 1})
            elif block.name == name:
                block.layers[layers] = block.layers.get(layers, 0) + 1
        changed.add(chain.key)
        return changed | self._evict()

    def remove(self, chain: Chain) -> set[Key]:
        """Remove a chain, but not the blocks that other chains share.

        Returns the keys whose records may have changed.
        """
        found = self._chains.pop(chain.names[-1], None)
        if found is None:
            return set()
        chain, layers = found
        tips = self._by_key[chain.key]
        del tips[chain.names[-1]]
        if not tips:
            del self._by_key[chain.key]
        self.blocks -= len(chain)
        for name in chain.names:
            block = self._blocks.get(name[:SHORT])
            if block is not None and block.name == name:
                block.layers[layers] -= 1
                if not block.layers[layers]:
                    del block.layers[layers]
                if not block.layers:
                    del self._blocks[name[:SHORT]]
        return {chain.key}

    def _evict(self) -> set[Key]:
        """Remove the least recently used chains beyond the limits, and return the changed keys."""
        chains, blocks = self._limits
        changed: set[Key] = set()
        while len(self._chains) > chains or self.blocks > blocks:
            chain, _ = next(iter(self._chains.values()))
            changed |= self.remove(chain)
        return changed

    def name(self, short: bytes, layers: Layers) -> bytes | None:
        """Return the full name of a block whose name begins with `short`.

        Returns None if this node does not have the block with all these layers.
        """
        block = self._blocks.get(short)
        if block is None or not any(_covers(here, layers) for here in block.layers):
            return None
        return block.name

    def held(self, chain: Chain, layers: Layers) -> int:
        """Return how many leading blocks of a chain this node has with all these layers."""
        for count, name in enumerate(chain.names):
            if self.name(name[:SHORT], layers) != name:
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

        That is so if another chain has the last block of this one.
        """
        block = self._blocks[tip[:SHORT]]
        there = sum(count for here, count in block.layers.items() if _covers(here, layers))
        return there > 1  # the chain itself counts once


def _covers(here: Layers, layers: Layers) -> bool:
    """Return whether the layers `here` include all of `layers`."""
    return here[0] <= layers[0] and layers[1] <= here[1]
