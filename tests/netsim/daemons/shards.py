"""Shards of an invented model, and its chunk files on a simulated disk."""

import hashlib
from pathlib import Path
from random import Random

from shoal.netsim.clock import Events
from shoal.netsim.daemons.files import DiskFiles
from shoal.netsim.disk.disk import Disk
from shoal.netsim.disk.mount import Mount
from shoal.tasks.engine.families import architecture, tensor_shapes
from shoal.tasks.engine.interface import DType, LoadShard, Parts, TensorSource

LAYERS, VOCABULARY, HIDDEN, CONTEXT = 6, 500, 16, 300
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": 24,
    "max_position_embeddings": CONTEXT,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCABULARY,
}
WHOLE = Parts(True, 0, LAYERS, True)
CHUNK = b"weights" * 10


def parts_of(start: int, stop: int) -> Parts:
    return Parts(start == 0, start, stop, stop == LAYERS)


def disk_files() -> DiskFiles:
    return DiskFiles(Mount(Disk(Events(), Random(1))))


def shard(
    files: DiskFiles, parts: Parts = WHOLE, *, dtype: DType = "float32", root: str = "ab" * 32
) -> LoadShard:
    """Return a shard in which every tensor has the same chunk."""
    files.make_folder(Path("/chunks"))
    files.write(Path("/chunks/one"), CHUNK)
    digest = hashlib.sha256(CHUNK).digest()
    tensors = tuple(
        TensorSource((role,), "F32", shape, ("/chunks/one",), (digest,))
        for role, shape in tensor_shapes(architecture(CONFIG), parts).items()
    )
    return LoadShard(root, parts, CONFIG, tensors, dtype, 1 << 22)
