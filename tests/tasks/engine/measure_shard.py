"""Prints the predicted and the resident bytes of a shard: `measure_shard.py PRECISION FOLDER`.

Runs in a process of its own, because earlier tests leave memory that the allocator reuses.
"""

import ctypes
import hashlib
import math
import sys
from pathlib import Path
from typing import Any

import torch

from shoal.tasks.engine.compute.torchcompute import TorchCompute
from shoal.tasks.engine.families import architecture, tensor_shapes, weight_bytes
from shoal.tasks.engine.families.shapes import stored_tensors
from shoal.tasks.engine.interface import LoadShard, Parts, TensorSource
from shoal.tasks.engine.layouts import INT4, INT8, fitting

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "max_position_embeddings": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_hidden_layers": 22,
    "vocab_size": 32_000,
}
CHUNK = 1 << 20
BYTES = {"I8": 1, "U8": 1, "F16": 2, "BF16": 2}
FILL = {"I8": b"\1", "U8": b"\x11", "F16": b"\0\x3c", "BF16": b"\x80\x3f"}


def source(role: str, dtype: str, shape: tuple[int, ...], folder: Path) -> TensorSource:
    """Return a tensor whose values are all equal, so that few chunk files are enough."""
    left, paths, digests = math.prod(shape) * BYTES[dtype], [], []
    while left:
        size = min(left, CHUNK)
        data = FILL[dtype] * (size // len(FILL[dtype]))
        digest = hashlib.sha256(data).digest()
        path = folder / digest.hex()
        if not path.exists():
            path.write_bytes(data)
        paths.append(str(path))
        digests.append(digest)
        left -= size
    return TensorSource((role,), dtype, shape, tuple(paths), tuple(digests))


def resident() -> int:
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main() -> None:
    precision, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    config, whole = dict(CONFIG), Parts(True, 0, CONFIG["num_hidden_layers"], True)
    if layout := {"int8": INT8, "int4": INT4}.get(precision):
        shapes = tensor_shapes(architecture(config), whole)
        config["quantization_config"] = fitting(shapes, layout).config()
    arch = architecture(config)
    tensors = tuple(
        source(role, dtype or "BF16", shape, folder)
        for role, (dtype, shape) in stored_tensors(arch, whole).items()
    )
    before = resident()
    shard = LoadShard("ab" * 32, whole, config, tensors, "bfloat16", 0)
    loaded = TorchCompute(arch, shard)
    print(weight_bytes(arch, whole, loaded.dtype), resident() - before)


if __name__ == "__main__":
    main()
