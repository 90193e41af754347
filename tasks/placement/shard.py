"""Requirements of a shard: its dtype, the bytes of its weights and KV, and its files. No I/O."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ...dht.content.manifest import Manifest
from ..defaults import FLOAT32_PARAMETERS, KV_CONTEXTS
from ..engine.families import DTYPE_BYTES, Architecture, kv_token_bytes, weight_bytes
from ..engine.interface import DType, LoadShard, Parts, TensorSource
from ..errors import NoFit
from .holes import needed_bytes

DTypeSetting = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class Held:
    """Properties of the shard in the engine against which messages are checked."""

    root: str
    parts: Parts
    dtype: DType
    hidden: int  # values of one token's hidden state
    vocabulary: int  # token ids
    context: int  # tokens
    kv_tokens: int  # positions of KV reserved for all sessions together

    @property
    def token_bytes(self) -> int:
        return self.hidden * DTYPE_BYTES[self.dtype]


def choose_dtype(manifest: Manifest, setting: DTypeSetting) -> DType:
    """Return the dtype to compute in. `auto` depends only on the model, so all nodes agree:
    float32 below 100 million parameters, where it costs little, else bfloat16."""
    if setting != "auto":
        return setting
    parameters = sum(math.prod(tensor.shape) for tensor in manifest.tensors)
    return "float32" if parameters < FLOAT32_PARAMETERS else "bfloat16"


def kv_bytes(arch: Architecture, parts: Parts, dtype: DType, memory: int) -> int:
    """Return the KV bytes that fit in `memory` beside the weights, up to KV_CONTEXTS contexts.

    Raises NoFit if not even a short session fits.
    """
    weights = weight_bytes(arch, parts, dtype)
    token = kv_token_bytes(arch, parts.start, parts.stop, dtype)
    least = needed_bytes(arch, parts, dtype)
    if memory < least:
        raise NoFit(
            f"layers {parts.start}:{parts.stop} need {-(-least // 2**20)} MiB of memory "
            f"and this node offers {memory // 2**20} MiB",
            hint="offer more with `--memory`, or take fewer layers with `--layers A:B`",
        )
    return min(memory - weights, token * arch.context * KV_CONTEXTS)


def shard_of(
    manifest: Manifest,
    arch: Architecture,
    parts: Parts,
    dtype: DType,
    memory: int,
    path_of: Callable[[str], Path],
) -> LoadShard:
    """Return the load command for the engine. Raises NoFit."""
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


def held_of(shard: LoadShard, arch: Architecture) -> Held:
    """Return the properties of a loaded shard against which the stage checks messages."""
    parts = shard.parts
    position = kv_token_bytes(arch, parts.start, parts.stop, shard.dtype)
    return Held(
        shard.root,
        parts,
        shard.dtype,
        arch.hidden,
        arch.vocab,
        arch.context,
        shard.kv_bytes // position,
    )
