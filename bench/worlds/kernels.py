"""Our native kernels and llama.cpp on the same shape: 1.1 B parameters, random weights, one thread.

`Ours` computes steps as a worker does: all layers in one call, then the head. `Theirs` runs
llama.cpp's `llama-batched-bench`, built once from its source package for this machine and cached.
Times are CPU times, which other programs do not lengthen: of llama.cpp, that of a longer run less
that of a shorter one. Scales are one for each 32 weights on both sides.
"""

import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import torch
from worlds.engines import SHAPES, config

from shoal.tasks.engine.compute.kv import KvMemory
from shoal.tasks.engine.compute.layers import AttentionPart
from shoal.tasks.engine.compute.native import choice
from shoal.tasks.engine.compute.native.library import Kernels
from shoal.tasks.engine.compute.native.steps import NativeSteps
from shoal.tasks.engine.compute.products import Linear, linear_of, linear_of_quantised
from shoal.tasks.engine.compute.rotary import Rotary
from shoal.tasks.engine.families import architecture
from shoal.tasks.engine.interface import Parts
from shoal.tasks.engine.kv.blocks import BlockPool, BlockTable
from shoal.tasks.engine.shard import Piece

PACKAGE: Final = "llama-cpp-python==0.3.36"
PROGRAM: Final = "SHOAL_LLAMA_BENCH"
"""Environment variable with the path of a `llama-batched-bench` that is built already."""
LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, WORDS = SHAPES["1.1B"]
CONTEXT: Final = 32  # positions before a decode step
_OPTIONS: Final = (
    "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DGGML_OPENMP=OFF", "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_TOOLS=ON", "-DLLAMA_BUILD_SERVER=OFF",
)  # fmt: skip
_TYPES: Final = {"bf16": (30, 1, 2), "int8": (8, 32, 34), "int4": (2, 32, 18)}
"""By kind: GGUF's type of tensor, weights of a block, bytes of a block."""


class _Attention(AttentionPart):
    """The part of a layer with attention, as far as the kernels read it."""

    def __init__(self, qkv: Linear, output: Linear) -> None:
        self.qkv, self.output = qkv, output
        self.query_norm = self.key_norm = None
        self.window = 0


@dataclass(frozen=True)
class _Dense:
    """The feed-forward part of a layer, as far as the kernels read it."""

    gate_up: Linear
    down: Linear


@dataclass(frozen=True)
class _Weight:
    weight: torch.Tensor


@dataclass(frozen=True)
class _Layer:
    input_norm: _Weight
    mlp_norm: _Weight
    mixer: _Attention
    mlp: _Dense


def matrix(kind: str, outputs: int, inputs: int) -> Linear:
    """Return the product with a random matrix."""
    shape, groups = (outputs, inputs), (outputs, inputs // 32)
    if kind == "bf16":
        return linear_of((torch.randn(shape) * 0.02).bfloat16(), None)
    scale = torch.full(groups, 2e-4 if kind == "int8" else 3e-3).half()
    if kind == "int8":
        q = torch.randint(-127, 128, shape, dtype=torch.int8)
        return linear_of_quantised("int8", q, scale, None, None)
    q = torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8)
    return linear_of_quantised("int4", q, scale, scale * -8, None)


class Ours:
    """A model of one kind of weights on our kernels."""

    def __init__(self, kind: str, sessions: int) -> None:
        self.kernels = _kernels()
        arch = architecture(config("1.1B"))
        norm, size = _Weight(torch.ones(HIDDEN, dtype=torch.bfloat16)), HIDDEN // HEADS
        layers: list[Any] = [
            _Layer(norm, norm,
                   _Attention(matrix(kind, HIDDEN + 2 * KV_HEADS * size, HIDDEN),
                              matrix(kind, HIDDEN, HIDDEN)),
                   _Dense(matrix(kind, 2 * INNER, HIDDEN), matrix(kind, HIDDEN, INNER)))
            for _ in range(LAYERS)
        ]  # fmt: skip
        self._head = matrix(kind, WORDS, HIDDEN)
        rotary = Rotary(arch.kinds[0].rope, arch.head_dim, arch.context, "bfloat16")
        self._steps = NativeSteps(self.kernels, arch, layers, rotary)
        blocks = 40 + 4 * sessions
        self._steps.bind(KvMemory(arch, Parts(False, 0, LAYERS, True), "bfloat16", blocks))
        pool = BlockPool(blocks)
        self._tables = [BlockTable(pool, 512 if not index else 48) for index in range(sessions)]
        for table in self._tables:
            table.prepare(0, table.tokens)

    def decode(self, sessions: int, steps: int) -> float:
        """Return the CPU seconds of a step of several sessions: the median of some."""
        pieces = [Piece(t, None, 0, 1, CONTEXT, True) for t in self._tables[:sessions]]
        return median(self._seconds(pieces, sessions) for _ in range(steps))

    def prefill(self, size: int) -> float:
        """Return the CPU seconds of a prompt."""
        return self._seconds([Piece(self._tables[0], None, 0, size, 0, False)], 1)

    def _seconds(self, pieces: Sequence[Piece], logits: int) -> float:
        rows = sum(piece.count for piece in pieces)
        x = torch.randn(rows, HIDDEN).bfloat16()
        began = time.process_time()
        self._head(self._steps.forward(x, pieces)[-logits:])
        return time.process_time() - began


def _kernels() -> Kernels:
    torch.set_num_threads(1)
    kernels = choice.kernels()
    if kernels is None:
        sys.exit("error: there are no native kernels\nhint: make setup, on a machine with g++")
    return kernels


class Theirs:
    """llama.cpp, with the model as a GGUF file."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._program = build()
        self._model = folder / f"{kind}.gguf"
        _write_model(self._model, kind)

    def decode(self, sessions: int, steps: int) -> float:
        """Return the CPU seconds of a step: that of `4 + steps` steps less that of 4."""
        prompt = CONTEXT - steps // 2 - 4
        longer = self._run(prompt, 4 + steps, sessions)
        return (longer - self._run(prompt, 4, sessions)) / steps

    def prefill(self, size: int) -> float:
        """Return the CPU seconds of a prompt of `size` tokens less those of one of 32."""
        return self._run(size, 1, 1) - self._run(32, 1, 1)

    def rate(self, prompt: int, tokens: int, sessions: int, threads: int) -> float:
        """Return the new tokens per second of all sessions together, elapsed."""
        said = self._output(prompt, tokens, sessions, threads)
        # | PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | T s | S t/s |
        rows = [line.split("|") for line in said.splitlines() if re.match(r"\|\s+\d", line)]
        return float(rows[-1][8])

    def _run(self, prompt: int, tokens: int, sessions: int) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._output(prompt, tokens, sessions, 1)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime

    def _output(self, prompt: int, tokens: int, sessions: int, threads: int) -> str:
        context, number = str(sessions * (prompt + tokens) + 64), str(threads)
        command = [str(self._program), "-m", str(self._model), "-t", number, "-tb", number,
                   "-c", context, "-npp", str(prompt), "-ntg", str(tokens),
                   "-npl", str(sessions)]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"llama-batched-bench failed: {done.stderr[-500:]}")
        return done.stdout


def build() -> Path:
    """Return the path of `llama-batched-bench`. Builds it if there is none, with cmake."""
    if named := os.environ.get(PROGRAM):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    target = Path(base) / "shoal-bench" / PACKAGE / "llama-batched-bench"
    if target.exists():
        return target
    with tempfile.TemporaryDirectory() as name:
        folder, made = Path(name), Path(name) / "build"
        get = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:"]
        subprocess.run([*get, PACKAGE, "-d", name], check=True, stdout=sys.stderr)
        with tarfile.open(next(folder.glob("*.tar.gz"))) as packed:
            packed.extractall(folder, filter="data")
        source = next(folder.glob("*/vendor/llama.cpp"))
        configure = ["cmake", "-S", str(source), "-B", str(made), *_OPTIONS]
        subprocess.run(configure, check=True, stdout=sys.stderr)
        make = ["cmake", "--build", str(made), "--target", "llama-batched-bench", "--parallel", "2"]
        subprocess.run(make, check=True, stdout=sys.stderr)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(made / "bin" / "llama-batched-bench", target)
    return target


def _write_model(path: Path, kind: str) -> None:
    """Write a GGUF file of the shape, without a tokenizer."""
    rng, size = np.random.default_rng(7), HIDDEN // HEADS
    known: dict[tuple[int, ...], bytes] = {}

    def values(*shape: int) -> tuple[int, bytes]:
        if len(shape) == 1:
            return 0, np.ones(shape, np.float32).tobytes()
        if shape not in known:
            known[shape] = _random(rng, kind, shape)
        return _TYPES[kind][0], known[shape]

    shapes = {"token_embd": (WORDS, HIDDEN), "output_norm": (HIDDEN,), "output": (WORDS, HIDDEN)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.{name}": shape
            for name, shape in {
                "attn_norm": (HIDDEN,), "attn_q": (HIDDEN, HIDDEN),
                "attn_k": (KV_HEADS * size, HIDDEN), "attn_v": (KV_HEADS * size, HIDDEN),
                "attn_output": (HIDDEN, HIDDEN), "ffn_norm": (HIDDEN,), "ffn_gate": (INNER, HIDDEN),
                "ffn_up": (INNER, HIDDEN), "ffn_down": (HIDDEN, INNER),
            }.items()
        }  # fmt: skip
    fields = _fields(size)
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(fields)))
        for name, text in fields.items():
            file.write(_text(name) + text)
        offset = 0
        for name, shape in shapes.items():
            number, data = values(*shape)
            head = struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], number, offset)
            file.write(_text(f"{name}.weight") + head)
            offset += -(-len(data) // 32) * 32
        for shape in shapes.values():
            file.write(b"\0" * (-file.tell() % 32))
            file.write(values(*shape)[1])


def _fields(size: int) -> dict[str, bytes]:
    numbers = {
        "context_length": 8192, "embedding_length": HIDDEN, "block_count": LAYERS,
        "feed_forward_length": INNER, "attention.head_count": HEADS, "vocab_size": WORDS,
        "attention.head_count_kv": KV_HEADS, "rope.dimension_count": size,
    }  # fmt: skip
    fields = {f"llama.{name}": struct.pack("<II", 4, value) for name, value in numbers.items()}
    fields["llama.attention.layer_norm_rms_epsilon"] = struct.pack("<If", 6, 1e-5)
    text = struct.pack("<I", 8)
    fields["general.architecture"] = text + _text("llama")
    fields["tokenizer.ggml.model"] = text + _text("no_vocab")
    return fields


def _random(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> bytes:
    _, weights, size = _TYPES[kind]
    blocks = int(np.prod(shape)) // weights
    if kind == "bf16":
        values = rng.standard_normal(blocks, dtype=np.float32) * 0.02
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    data = rng.integers(0, 256, (blocks, size), dtype=np.uint8)
    scale = np.array([2e-4 if kind == "int8" else 3e-3], np.float16)
    data[:, :2] = scale.view(np.uint8)
    return data.tobytes()


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def compare(kind: str, batches: Sequence[int], quick: bool) -> dict[str, Any]:
    """Measure decode steps of both sides in turns: by batch, the ratio of tokens per second."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = Ours(kind, max(batches)), Theirs(kind, Path(folder))
        for batch in batches:
            steps = max(4, (16 if quick else 40) // batch)
            mine, other = [ours.decode(batch, steps)], []
            for _ in range(1 if quick else 3):
                other.append(theirs.decode(batch, steps))
                mine.append(ours.decode(batch, steps))
            name = f"{kind}_{batch}"
            found[name] = round(median(other) / median(mine), 2)
            found[f"{name}_per_s"] = [round(batch / median(each), 2) for each in (mine, other)]
    return found | {"instructions": ours.kernels.name}
