"""Requirements of a shard: its dtype, the bytes of its weights and KV, and its files. No I/O."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...dht.content.manifest import Manifest, weight_of
from ..defaults import FLOAT32_PARAMETERS, KV_CONTEXTS
from ..engine.defaults import STATE_SESSIONS, STATE_SLOTS
from ..engine.families import (
    DTYPE_BYTES,
    Architecture,
    kv_room,
    kv_token_bytes,
    state_bytes,
    weight_bytes,
)
from ..engine.interface import DType, LoadShard, Parts, TensorSource
from ..errors import NoFit
from .holes import needed_bytes

DTypeSetting = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class ShardProperties:
    """Properties of the loaded shard, which the stage needs to check messages."""

    root: str
    parts: Parts
    dtype: DType
    hidden: int  # number of values in one token's hidden state
    vocabulary: int  # number of token ids
    context: int  # the longest session, in tokens
    kv_tokens: int  # positions of KV reserved for all sessions together
    kv_heads: int = 0  # of the KV of one position; 0: it cannot be copied …
    head_dim: int = 0  # … and values of each
    drafts: bool = False  # whether windows of drafts can be taken back
    arch: Architecture | None = None

    @property
    def token_bytes(self) -> int:
        """Size in bytes of one token's hidden state."""
        return self.hidden * DTYPE_BYTES[self.dtype]


def choose_dtype(manifest: Manifest, setting: DTypeSetting) -> DType:
    """Return the dtype in which to compute a model.

    `auto` depends only on the model, so that all nodes agree. It means float32 for models below 100
    million parameters, where float32 costs little, and bfloat16 for others.
    """
    if setting != "auto":
        return setting
    # Two values in a byte: a quantised model is computed in the dtype of its original.
    packed = {"U8": 2}
    parameters = sum(
        math.prod(tensor.shape) * packed.get(tensor.dtype, 1)
        for tensor in manifest.tensors
        if weight_of(tensor.roles[0]) == tensor.roles[0]
    )
    return "float32" if parameters < FLOAT32_PARAMETERS else "bfloat16"


def kv_bytes(arch: Architecture, parts: Parts, dtype: DType, memory: int) -> int:
    """Return the bytes of KV to reserve: what `memory` bytes leave beside the weights.

    The result is limited to KV_CONTEXTS full contexts. Raises NoFit if not even a short session
    fits.
    """
    weights = weight_bytes(arch, parts, dtype)
    token = kv_token_bytes(arch, parts.start, parts.stop, dtype)
    state = state_bytes(arch, parts.start, parts.stop, dtype)
    least = needed_bytes(arch, parts, dtype)
    if memory < least:
        raise NoFit(
            f"layers {parts.start}:{parts.stop} need {-(-least // 2**20)} MiB of memory "
            f"and this node offers {memory // 2**20} MiB",
            hint="offer more with `--memory`, or take fewer layers with `--layers A:B`",
        )
    most = token * arch.context * KV_CONTEXTS + state * STATE_SLOTS * STATE_SESSIONS
    return min(memory - weights, most)


def shard_of(
    manifest: Manifest,
    arch: Architecture,
    parts: Parts,
    dtype: DType,
    memory: int,
    path_of: Callable[[str], Path],
) -> LoadShard:
    """Return the engine command that loads the shard `parts`, with KV for the rest of `memory`
    bytes.

    `path_of` returns the path of the file of a chunk. Raises NoFit if the weights and the KV of a
    short session exceed `memory`.
    """
    sources = tuple(
        TensorSource(
            roles=tensor.roles,
            dtype=tensor.dtype,
            shape=tensor.shape,
            chunks=tuple(str(path_of(digest)) for digest in tensor.chunks),
            digests=tuple(bytes.fromhex(digest) for digest in tensor.chunks),
        )
        for tensor in manifest.tensors_of(parts.embedding, parts.start, parts.stop, parts.head)
    )
    return LoadShard(
        root=manifest.root,
        parts=parts,
        config=manifest.config,
        tensors=sources,
        dtype=dtype,
        kv_bytes=kv_bytes(arch, parts, dtype, memory),
    )


def properties_of(shard: LoadShard, arch: Architecture) -> ShardProperties:
    """Return the properties of a loaded shard that the stage needs to check messages."""
    parts = shard.parts
    return ShardProperties(
        shard.root,
        parts,
        shard.dtype,
        arch.hidden,
        arch.vocab,
        arch.context,
        kv_room(arch, parts, shard.dtype, shard.kv_bytes).positions,
        0 if arch.recurrent else arch.kv_heads,
        arch.head_dim,
        not arch.recurrent,
        arch,
    )
