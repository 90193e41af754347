"""Tags of KV chunks.

A chunk is the KV of 256 positions. Its name is a keyed hash over all tokens up to its end, made by
the gateway of the session (docs/spec/session.md). Peers that know a name may fetch the chunk, so a
name is never published. A chunk's *tag* is a hash over its name and over what else determines the
values: the model, the precision and the adapter. It shows that a peer has the chunk, but nothing
about the name or the tokens. Spec: docs/spec/kv.md.

In `dht/kv`, a *chain* is the sequence of a prompt's tags, not the stages of a session.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from .. import defaults
from ..errors import DhtError
from ..records.key import Key
from ..records.record import KvBody, kv_key

_CHUNK: Final = "shoal/kv-chunk/2"
_SCHEME: Final = "2"  # `salt` of the records: the version of the names


@dataclass(frozen=True, slots=True)
class KvScope:
    """Everything besides the tokens that determines the values of KV.

    `root` is the model, and `adapter` the root of an adapter, "" for none.
    """

    root: str
    precision: str
    adapter: str = ""

    def tag(self, name: bytes) -> bytes:
        """Return the tag of a chunk, 32 bytes."""
        texts = _CHUNK, self.root, self.precision, self.adapter
        return _hash(*(text.encode() for text in texts), name)


@dataclass(frozen=True, slots=True)
class Chain:
    """Tags of the full KV chunks of a prompt, in order, 32 bytes each. There is at least one."""

    scope: KvScope
    tags: tuple[bytes, ...] = field(repr=False)

    @property
    def first(self) -> str:
        """Tag of the first chunk, in hex."""
        return self.tags[0].hex()

    @property
    def tip(self) -> str:
        """Tag of the last chunk, in hex."""
        return self.tags[-1].hex()

    @property
    def key(self) -> Key:
        """Key of the records about all chains that have the same first chunk."""
        scope = self.scope
        return kv_key(scope.root, scope.precision, scope.adapter, _SCHEME, self.first)

    def __len__(self) -> int:
        """Return the number of chunks."""
        return len(self.tags)

    def body(self, layers: tuple[int, int]) -> KvBody:
        """Return the record of a provider that has these layers (start, stop) of all chunks."""
        scope = self.scope
        return KvBody(
            root=scope.root,
            precision=scope.precision,
            adapter=scope.adapter,
            salt=_SCHEME,
            first=self.first,
            tip=self.tip,
            blocks=len(self.tags),
            layers=layers,
        )


def chain_of(scope: KvScope, names: Sequence[bytes]) -> Chain | None:
    """Return the chain of a prompt's chunk names, or None if there are none.

    Raises DhtError `too-long` if there are too many chunks.
    """
    if len(names) > defaults.KV_CHAIN:
        raise DhtError("too-long", f"a chain has at most {defaults.KV_CHAIN} chunks")
    return Chain(scope, tuple(map(scope.tag, names))) if names else None


def _hash(*parts: bytes) -> bytes:
    """Return the SHA-256 over the parts, each preceded by its length."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(4) + part)
    return digest.digest()
