"""Names of chunks, and proofs of knowing one. No I/O. Spec: docs/spec/kv.md.

A chunk is 256 positions, and its name is that of its last block (docs/spec/session.md). A peer that
knows the name may fetch the chunk. The name is not sent: the asker proves to one provider that it
knows it, so a provider learns no name that it does not have.
"""

from hashlib import blake2b, sha256
from typing import Final

from ...transport.identity import Identity, PeerId, verify
from ..engine.interface import NAME_BYTES
from ..engine.kv.blocks import BLOCK

CHUNK: Final = 256
"""Positions of a chunk."""
CHUNK_BLOCKS: Final = CHUNK // BLOCK
PROOF_BYTES: Final = 16
_DOMAIN: Final = "shoal/kv-part/1"


def chunk_names(names: bytes) -> list[bytes]:
    """Return the names of the full chunks, from those of the full blocks of a prompt."""
    step = CHUNK_BLOCKS * NAME_BYTES
    return [names[end - NAME_BYTES : end] for end in range(step, len(names) + 1, step)]


def block_names(names: bytes, start: int, stop: int) -> bytes:
    """Return the names of the blocks with the positions `start` to `stop` - 1."""
    return names[start // BLOCK * NAME_BYTES : stop // BLOCK * NAME_BYTES]


def proof_of(name: bytes, asker: PeerId, provider: PeerId) -> bytes:
    """Return the proof that the asker knows the name, which only this provider accepts from it."""
    both = f"{asker} {provider}".encode()
    return blake2b(both, digest_size=PROOF_BYTES, key=name, person=b"kv-ask").digest()


def sign_part(identity: Identity, tag: bytes, part: bytes | memoryview) -> bytes:
    """Return the provider's signature of a part of the chunk with this tag."""
    return identity.sign(_DOMAIN, tag + sha256(part).digest())


def is_signed(provider: PeerId, tag: bytes, part: bytes | memoryview, signature: bytes) -> bool:
    """Return whether the provider has signed exactly this content for the chunk with this tag."""
    return verify(provider, _DOMAIN, tag + sha256(part).digest(), signature)
