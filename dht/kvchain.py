"""Names of KV blocks: a block is named by all tokens up to its end, and by what computed them.

Each name is a hash over the one before it, so equal names mean equal prefixes, and what two chains
share is their beginning. The first link of every chain is a secret of the group that shares it:
outside of it nobody can name a prompt, and so nobody can ask whether another had it. Spec:
docs/spec/kv.md.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from ..transport.host import Host
from . import defaults
from .errors import DhtError
from .key import Key
from .record import KvBody, kv_key

_CHAIN: Final = "shoal/kv-chain/1"
_GROUP: Final = "shoal/kv-group/1"
_TOKEN_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Those who share prefixes with each other: all who know `secret`, 16 to 64 random bytes."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        least, most = defaults.KV_SECRET
        if not least <= len(self.secret) <= most:
            raise DhtError("bad-group", f"a group's secret has {least} to {most} bytes")

    @classmethod
    def alone(cls, host: Host) -> "KvGroup":
        """Of one requester, who shares with nobody."""
        return cls(host.entropy(defaults.KV_SECRET[1]))

    @property
    def tag(self) -> str:
        """What its records carry as `salt`: the same for all of it, and no way to the secret."""
        return _hash(_GROUP.encode(), self.secret).hex()[:32]


@dataclass(frozen=True, slots=True)
class KvScope:
    """What must be the same for KV to be the same, beside the tokens; `adapter`: a root or ""."""

    root: str
    precision: str
    group: KvGroup
    adapter: str = ""

    @property
    def seed(self) -> bytes:
        """What stands before the first block of each chain."""
        texts = (_CHAIN, self.root, self.precision, self.adapter, str(defaults.KV_BLOCK))
        return _hash(*(text.encode() for text in texts), self.group.secret)


@dataclass(frozen=True, slots=True)
class Chain:
    """The whole blocks of a prompt, each by its name of 32 bytes; at least one."""

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
        """Where records about every chain that begins like this one lie."""
        scope = self.scope
        return kv_key(scope.root, scope.precision, scope.adapter, scope.group.tag, self.first)

    def __len__(self) -> int:
        return len(self.names)

    def body(self, layers: tuple[int, int]) -> KvBody:
        """What a holder of these layers (start, stop) of all its blocks says."""
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
        """Longer by the whole blocks of the tokens that follow its last one."""
        return Chain(self.scope, self.names + _names(self.names[-1], tokens, len(self.names)))


def chain_of(scope: KvScope, tokens: Sequence[int]) -> Chain | None:
    """The chain of a prompt's token ids; None where it has no whole block.

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
        raise DhtError("bad-tokens", "a token id is a whole number below 2^32") from None
    size, names = block * _TOKEN_BYTES, []
    for start in range(0, len(data), size):
        before = _hash(_CHAIN.encode(), before, data[start : start + size])
        names.append(before)
    return tuple(names)


def _hash(*parts: bytes) -> bytes:
    """SHA-256; each part counts with its length."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(4) + part)
    return digest.digest()
