"""Where prefixes of prompts are cached. No I/O.

Stages keep the KV of prompts and answers under names (`inference/names.py`). A prompt that begins
like an earlier one is computed faster where that one was. Gateways remember which chain computed
which prefix. Prefixes that they do not remember go to replicas that a hash of the prefix chooses,
so that requests with a common prefix meet without any shared state (row 23 of the reading list:
DualMap, arXiv 2602.06502).
"""

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from ...transport.identity import PeerId
from ..engine.interface import NAME_BYTES
from ..engine.kv.blocks import BLOCK
from .defaults import (
    CHAINS_OF_ONE,
    HOT_DEPTH,
    HOT_NAMES,
    HOT_SHARE,
    HOT_WINDOW,
    KEY_POSITIONS,
    PROBE_NAMES,
    REMEMBERED,
)

Chain = tuple[PeerId, ...]
"""The peers of a chain, in layer order."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """Names of the beginnings of a prompt, the shortest first: each covers `every` positions more
    than the previous one.

    `head` has those of the first HOT_DEPTH times KEY_POSITIONS positions, which are never further
    apart: from them comes the key by which replicas are chosen.
    """

    every: int
    names: tuple[bytes, ...]
    head: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, names: bytes, most: int = PROBE_NAMES) -> "Prefix":
        """Return at most `most` of the concatenated names of a prompt's blocks.

        They are KEY_POSITIONS apart, or a multiple of that if the prompt is long.
        """
        each = KEY_POSITIONS // BLOCK
        blocks = len(names) // NAME_BYTES
        step = each * max(1, -(-(blocks // each) // most))
        found, head = (
            tuple(names[(n - 1) * NAME_BYTES : n * NAME_BYTES] for n in ends)
            for ends in (
                range(step, blocks + 1, step),
                range(each, min(blocks, HOT_DEPTH * each) + 1, each),
            )
        )
        return cls(step * BLOCK, found, head)

    @classmethod
    def split(cls, every: int, names: bytes) -> "Prefix":
        """Return the prefix that a probe describes."""
        starts = range(0, len(names) - NAME_BYTES + 1, NAME_BYTES)
        return cls(every, tuple(names[at : at + NAME_BYTES] for at in starts))

    def covers(self, key: bytes) -> int:
        """Return the positions of which the name `key` in `head` stands, 0 if it is not there."""
        return (self.head.index(key) + 1) * KEY_POSITIONS if key in self.head else 0

    @property
    def joined(self) -> bytes:
        """The names as a probe carries them."""
        return b"".join(self.names)


NO_PREFIX = Prefix(KEY_POSITIONS, ())


class PrefixMemory:
    """Memory of a gateway: which chains have computed which prefixes, the latest first.

    It has at most `most` names. The least recently used ones are forgotten first.
    """

    def __init__(self, most: int = REMEMBERED) -> None:
        self._chains: OrderedDict[bytes, tuple[Chain, ...]] = OrderedDict()
        self._most = most

    def note(self, prefix: Prefix, chain: Chain) -> None:
        """Record that a chain computes a prefix."""
        for name in reversed(prefix.names):  # the shortest one is forgotten last
            others = [each for each in self._chains.pop(name, ()) if each != chain]
            self._chains[name] = (chain, *others[: CHAINS_OF_ONE - 1])
        while len(self._chains) > self._most:
            self._chains.popitem(last=False)

    def find(self, prefix: Prefix) -> dict[Chain, int]:
        """Return the chains that have computed the longest parts of a prefix, with the number of
        positions, the longest first: at most CHAINS_OF_ONE."""
        found: dict[Chain, int] = {}
        for count in range(len(prefix.names), 0, -1):
            for chain in self._chains.get(prefix.names[count - 1], ()):
                found.setdefault(chain, count * prefix.every)
            if len(found) >= CHAINS_OF_ONE:
                break
        return dict(list(found.items())[:CHAINS_OF_ONE])


class CachedNames:
    """The prefixes that a shard of a stage probably has, by their gateways.

    The engine's worker knows exactly, but it answers only between two steps, which may be 0.5 s.
    Like its cache, this has as many names as fit the shard's memory, and forgets the least recently
    used ones.
    """

    def __init__(self, positions: int) -> None:
        self._most = max(1, positions // KEY_POSITIONS)
        self._names: OrderedDict[tuple[str, bytes], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._names)

    def note(self, gateway: str, names: bytes) -> None:
        """Record the concatenated names of the blocks of a prompt, or of a prompt and its
        answer."""
        every = KEY_POSITIONS // BLOCK * NAME_BYTES
        for end in range(len(names) // every * every, 0, -every):
            key = gateway, bytes(names[end - NAME_BYTES : end])
            self._names[key] = None
            self._names.move_to_end(key)
        while len(self._names) > self._most:
            self._names.popitem(last=False)

    def length(self, gateway: str, prefix: Prefix) -> int:
        """Return the number of positions of a prefix that are probably cached for a gateway."""
        for count in range(len(prefix.names), 0, -1):
            if (gateway, prefix.names[count - 1]) in self._names:
                return count * prefix.every
        return 0


class Hotness:
    """Counter of the prefixes of recent requests, to find the part that makes a request special.

    All requests with one system prompt begin alike. If that part decided where they go, all would
    go to the same replicas. So the key is the shortest prefix that is not common.
    """

    def __init__(self) -> None:
        self._counts: OrderedDict[bytes, float] = OrderedDict()
        self._total = 0.0
        self._since = 0

    def note(self, prefix: Prefix) -> None:
        """Count a request."""
        self._total += 1.0
        self._since += 1
        for name in prefix.head:
            self._counts[name] = self._counts.pop(name, 0.0) + 1.0
        while len(self._counts) > HOT_NAMES:
            self._counts.popitem(last=False)
        if self._since >= HOT_WINDOW:
            self._halve()

    def _halve(self) -> None:
        self._total, self._since = self._total / 2, 0
        halved = ((name, count / 2) for name, count in self._counts.items())
        self._counts = OrderedDict((name, count) for name, count in halved if count >= 0.5)

    def key(self, prefix: Prefix, replicas: int) -> bytes:
        """Return the shortest name of a prefix that at most HOT_SHARE / `replicas` of the requests
        have, or b"" if the prompt is too short to have a name."""
        most = max(1.0, self._total * HOT_SHARE / max(replicas, 1))
        for name in prefix.head:
            if self._counts.get(name, 0.0) <= most:
                return name
        return prefix.head[-1] if prefix.head else b""


def ranked(key: bytes, weights: Mapping[PeerId, float]) -> Sequence[PeerId]:
    """Return peers in the order of their hashes with a key (weighted rendezvous hashing).

    A peer with twice the weight comes first for twice as many keys. If a peer joins or leaves, only
    the keys that it has or had at the top move.
    """

    def place(peer: PeerId) -> float:
        digest = blake2b(peer.encode(), digest_size=8, key=key).digest()
        return -math.log((int.from_bytes(digest) + 1) / 2**64) / weights[peer]

    return sorted(weights, key=place)
