"""Names of KV blocks.

The name of a block is a hash over the name of the previous block and the block's tokens. It
therefore identifies all tokens up to the end of the block, and equal names mean equal prefixes. The
first block of a prompt is hashed with a *seed*: a hash over the model and the secret of the group
that shares prefixes. A peer outside the group cannot compute the names of a prompt, and so cannot
find out whether a member had it. Spec: docs/spec/kv.md.

In `dht/kv`, a *chain* is the sequence of these names, not the stages of a session.
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
    """Peers that share KV prefixes: all that know `secret`, which has 16 to 64 random bytes."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Raise DhtError `bad-group` if the secret has the wrong length."""
        least, most = defaults.KV_SECRET
        if not least <= len(self.secret) <= most:
            raise DhtError("bad-group", f"a group's secret needs {least} to {most} bytes")

    @classmethod
    def alone(cls, host: Host) -> "KvGroup":
        """Create a group for a single requester, which shares prefixes with no other."""
        return cls(host.entropy(defaults.KV_SECRET[1]))

    @property
    def tag(self) -> str:
        """Public identifier of the group: `salt` in its records. It does not reveal the secret."""
        return _hash(_GROUP.encode(), self.secret).hex()[:32]


@dataclass(frozen=True, slots=True)
class KvScope:
    """Everything besides the tokens that determines the values of KV.

    `root` is the model, and `adapter` the root of an adapter, "" for none.
    """

    root: str
    precision: str
    group: KvGroup
    adapter: str = ""

    @property
    def seed(self) -> bytes:
        """Hash that takes the place of the previous name for the first block of a chain."""
        texts = (_CHAIN, self.root, self.precision, self.adapter, str(defaults.KV_BLOCK))
        return _hash(*(text.encode() for text in texts), self.group.secret)


@dataclass(frozen=True, slots=True)
class Chain:
    """Names of the full KV blocks of a prompt, in order, 32 bytes each. There is at least one."""

    scope: KvScope
    names: tuple[bytes, ...] = field(repr=False)

    @property
    def first(self) -> str:
        """Name of the first block, in hex."""
        return self.names[0].hex()

    @property
    def tip(self) -> str:
        """Name of the last block, in hex."""
        return self.names[-1].hex()

    @property
    def key(self) -> Key:
        """Key of the records about all chains that have the same first block."""
        scope = self.scope
        return kv_key(scope.root, scope.precision, scope.adapter, scope.group.tag, self.first)

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self.names)

    def body(self, layers: tuple[int, int]) -> KvBody:
        """Return the record of a provider that has these layers (start, stop) of all blocks."""
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
        """Return the chain extended by the full blocks of `tokens`, which follow its last block.

        Raises DhtError: `bad-tokens`, `too-long`.
        """
        return Chain(self.scope, self.names + _names(self.names[-1], tokens, len(self.names)))


def chain_of(scope: KvScope, tokens: Sequence[int]) -> Chain | None:
    """Return the chain of a prompt's token ids, or None if they do not fill a block.

    Raises DhtError: `bad-tokens` if a token id is not an unsigned 32-bit integer, `too-long` if
    there are too many blocks.
    """
    names = _names(scope.seed, tokens, 0)
    return Chain(scope, names) if names else None


def _names(before: bytes, tokens: Sequence[int], there: int) -> tuple[bytes, ...]:
    """Return the names of the full blocks of `tokens`.

    `before` is the name of the block before them, and `there` the number of blocks before them.
    Raises as `chain_of`.
    """
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
    """Return the SHA-256 over the parts, each preceded by its length."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(4) + part)
    return digest.digest()
