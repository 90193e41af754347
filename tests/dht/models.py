"""Small Hugging Face folders, made by hand: a safetensors file is a length, JSON, and bytes."""

import errno
import json
import math
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

from shoal.dht.content.chunkstore import ChunkStore
from shoal.dht.content.library import Library
from shoal.transport.host.real import RealHost
from shoal.transport.host.realfiles import RealFiles

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Weights = dict[str, tuple[str, list[int], bytes]]
ITEM = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8, "U8": 1}

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8,
    "num_hidden_layers": 3,
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-05,
    "_name_or_path": "somewhere/on/my/disk",
    "transformers_version": "4.57.0",
}


def tensor(shape: list[int], seed: object, dtype: str = "BF16") -> tuple[str, list[int], bytes]:
    size = math.prod(shape) * ITEM[dtype]
    return dtype, shape, random.Random(repr(seed)).randbytes(size)


def weights(layers: int = 3, *, tied: bool = False, hidden: int = 8, seed: int = 0) -> Weights:
    """Return the parameters of a Llama model; `hidden` determines the number of chunks."""
    shapes = {"model.embed_tokens.weight": [32, hidden], "model.norm.weight": [hidden]}
    if not tied:
        shapes["lm_head.weight"] = [32, hidden]
    for layer in range(layers):
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"model.layers.{layer}.{name}.weight"] = [hidden]
        for part in "qkvo":
            shapes[f"model.layers.{layer}.self_attn.{part}_proj.weight"] = [hidden, hidden]
        for part in ("gate", "up", "down"):
            shapes[f"model.layers.{layer}.mlp.{part}_proj.weight"] = [hidden, hidden]
    return {name: tensor(shape, (seed, name)) for name, shape in shapes.items()}


def header_of(tensors: Weights) -> dict[str, Any]:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, shape, data) in tensors.items():
        end = offset + len(data)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    return header


def safetensors(tensors: Weights, header: Mapping[str, Any] | None = None) -> bytes:
    text = json.dumps(header_of(tensors) if header is None else header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values())


def write_folder(
    folder: Path,
    tensors: Weights | None = None,
    *,
    shards: int = 1,
    config: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """Write a valid model folder; `changes` override keys of `CONFIG`."""
    tensors = weights() if tensors is None else tensors
    folder.mkdir(parents=True, exist_ok=True)
    full = {**(CONFIG if config is None else config), **changes}
    (folder / "config.json").write_text(json.dumps(full, indent=2))
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": {}}))
    if shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors(tensors))
    else:
        _write_shards(folder, tensors, shards)
    return folder


def _write_shards(folder: Path, tensors: Weights, shards: int) -> None:
    names, index = list(tensors), {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in reversed(names[number::shards])}
        (folder / file).write_bytes(safetensors(part))
        index.update(dict.fromkeys(part, file))
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 1}, "weight_map": index})
    )


class FakeFiles(RealFiles):
    """Real files whose nth write fails, whose disk has a limited size, and which count writes."""

    def __init__(self) -> None:
        self.fail_at: int | None = None
        self.fail_with = errno.ENOSPC
        self.free: int | None = None
        self.unreadable: Callable[[Path], bool] = lambda path: False
        self.writes: list[Path] = []
        self.largest_read = 0

    def write(self, path: Path, data: bytes | memoryview, *, mode: int = 0o600) -> None:
        if self.fail_at is not None and len(self.writes) >= self.fail_at:
            raise OSError(self.fail_with, "No space left on device")
        temporary = path.with_name(f".{path.name}.0123abcd.tmp")  # as RealFiles, without syncing
        try:
            temporary.write_bytes(data)
            temporary.rename(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        self.writes.append(path)

    def stage(self, path: Path, data: bytes | memoryview, *, mode: int = 0o600) -> None:
        if self.fail_at is not None and len(self.writes) >= self.fail_at:
            raise OSError(self.fail_with, "No space left on device")
        super().stage(path, data, mode=mode)
        self.writes.append(path)

    def settle(self, moves: Sequence[tuple[Path, Path]]) -> None:
        for staged, path in moves:  # as RealFiles, without syncing
            path.parent.mkdir(mode=0o700, exist_ok=True)
            with suppress(FileNotFoundError):
                staged.rename(path)

    def free_space(self, path: Path) -> int:
        return super().free_space(path) if self.free is None else self.free

    def read(self, path: Path, *, limit: int) -> bytes:
        if self.unreadable(path):
            raise PermissionError(errno.EACCES, "Permission denied")
        return super().read(path, limit=limit)

    def read_range(self, path: Path, offset: int, size: int) -> bytes:
        if self.unreadable(path):
            raise PermissionError(errno.EACCES, "Permission denied")
        self.largest_read = max(self.largest_read, size)
        return super().read_range(path, offset, size)


class FakeHost(RealHost):
    """Real host with `FakeFiles`.

    `inline` runs offloaded work at once, for virtual time; `seed` makes its entropy reproducible.
    """

    def __init__(self, *, inline: bool = False, seed: int | None = None) -> None:
        super().__init__()
        self.fake_files = FakeFiles()
        self._inline = inline
        self._numbers = None if seed is None else random.Random(seed)

    def entropy(self, size: int) -> bytes:
        return super().entropy(size) if self._numbers is None else self._numbers.randbytes(size)

    @property
    def files(self) -> FakeFiles:
        return self.fake_files

    async def offload(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        if self._inline:
            return work(*args)
        return await super().offload(work, *args)


def open_store(host: FakeHost, folder: Path, *, reserve: int = 0) -> ChunkStore:
    store = ChunkStore(host, folder, reserve=reserve)
    store.open()
    return store


async def open_library(folder: Path, host: FakeHost | None = None) -> Library:
    library = Library(host or FakeHost(inline=True), folder)
    await library.open()
    return library
