"""Names of KV blocks. A name covers all tokens up to the end of the block, and what computed them.

Each name is a hash over the previous one, so equal names mean equal prefixes. The hash chain
starts from a secret of the group that shares prefixes: an outsider cannot compute the name of a
prompt, and so cannot ask whether another member had it. Spec: docs/spec/kv.md.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ...transport.host.seam import Host
from .. import defaults
from ..errors import DhtError
from ..records.key import Key
from ..records.record import KvBody, kv_key

_CHAIN: Final = "shoal/kv-chain/1"
_GROUP: Final = "shoal/kv-group/1"
_TOKEN_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Peers that share prefixes: all that know `secret`, which has 16 to 64 random bytes."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        least, most = defaults.KV_SECRET
        if not least <= len(self.secret) <= most:
            raise DhtError("bad-group", f"a group's secret needs {least} to {most} bytes")

    @classmethod
    def alone(cls, host: Host) -> "KvGroup":
        """Create a group for a single requester that shares with no other."""
        return cls(host.entropy(defaults.KV_SECRET[1]))

    @property
    def tag(self) -> str:
        """Value of `salt` in the group's records: constant per group, and not reversible."""
        return _hash(_GROUP.encode(), self.secret).hex()[:32]


@dataclass(frozen=True, slots=True)
class KvScope:
    """All that determines KV, besides the tokens; `adapter` is a root or ""."""

    root: str
    precision: str
    group: KvGroup
    adapter: str = ""

    @property
    def seed(self) -> bytes:
        """Hash input before the first block of each chain."""
        texts = (_CHAIN, self.root, self.precision, self.adapter, str(defaults.KV_BLOCK))
        return _hash(*(text.encode() for text in texts), self.group.secret)


@dataclass(frozen=True, slots=True)
class Chain:
    """The whole blocks of a prompt, at least one, each by its name of 32 bytes."""

    scope: KvScope
    names: tuple[bytes, ...] = field(repr=False)

    @property
    def first(self) -> str:
        return self.names[0].hex()

    @property
    def tip(self) -> str:
        return self.names[-1].hex()

    @property
    def key(self) -> Key:
        """Key of the records about all chains with the same first block."""
        scope = self.scope
        return kv_key(scope.root, scope.precision, scope.adapter, scope.group.tag, self.first)

    def __len__(self) -> int:
        return len(self.names)

    def body(self, layers: tuple[int, int]) -> KvBody:
        """Build the record of a provider of these layers (start, stop) of all blocks."""
        scope = self.scope
        return KvBody(
            root=scope.root,
            precision=scope.precision,
            adapter=scope.adapter,
            salt=scope.group.tag,
            first=self.first,
            tip=self.tip,
            blocks=len(self.names),
            layers=layers,
        )

    def extended(self, tokens: Sequence[int]) -> "Chain":
        """Return the chain extended by the whole blocks of the tokens that follow it."""
        return Chain(self.scope, self.names + _names(self.names[-1], tokens, len(self.names)))


def chain_of(scope: KvScope, tokens: Sequence[int]) -> Chain | None:
    """Return the chain of a prompt's token ids, or None if they fill no block.

    Raises DhtError: `bad-tokens`, `too-long`.
    """
    names = _names(scope.seed, tokens, 0)
    return Chain(scope, names) if names else None


def _names(before: bytes, tokens: Sequence[int], there: int) -> tuple[bytes, ...]:
    block = defaults.KV_BLOCK
    count = len(tokens) // block
    if there + count > defaults.KV_CHAIN:
        raise DhtError("too-long", f"a chain has at most {defaults.KV_CHAIN} blocks")
    try:
        data = b"".join(token.to_bytes(_TOKEN_BYTES) for token in tokens[: count * block])
    except OverflowError:
        raise DhtError("bad-tokens", "a token id must be an integer from 0 to 2^32 - 1") from None
    size, names = block * _TOKEN_BYTES, []
    for start in range(0, len(data), size):
        before = _hash(_CHAIN.encode(), before, data[start : start + size])
        names.append(before)
    return tuple(names)


def _hash(*parts: bytes) -> bytes:
    """Return the SHA-256 over the parts, each with its length."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(4) + part)
    return digest.digest()
