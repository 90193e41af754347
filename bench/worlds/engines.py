"""A model of 1.1 B parameters with random weights, and the engine's real worker that computes it.

The shape is TinyLlama's (22 layers of 2,048, vocabulary of 32,000), with a context of 8,192. All
layers have the same weights, so that the files take 220 MB; the worker still
loads each layer by itself.
"""

import hashlib
import random
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import torch
import trio

from shoal.tasks.engine.families import architecture, tensor_shapes
from shoal.tasks.engine.interface import (
    DEFAULT_TERMS,
    DType,
    EngineEvent,
    FailedEvent,
    Loaded,
    LoadShard,
    Parts,
    SessionTerms,
    Span,
    TensorSource,
    TokenEvent,
)
from shoal.tasks.engine.process import EngineProcess
from shoal.transport.host.real import RealHost

CONTEXT: Final = 8192
CHUNK: Final = 8 << 20  # bytes of a chunk file
SHAPES: Final = {
    "1.1B": (22, 2048, 5632, 32, 4, 32_000),
    "125M": (12, 768, 2048, 12, 4, 32_000),
    "tiny": (6, 256, 704, 8, 4, 2_048),
}  # layers, hidden, intermediate, heads, heads of keys, vocabulary


def config(shape: str) -> dict[str, object]:
    """The config.json of a model."""
    layers, hidden, intermediate, heads, kv_heads, vocabulary = SHAPES[shape]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
    }


def shard(
    folder: Path, shape: str, *, dtype: DType = "bfloat16", kv_bytes: int = 1 << 30
) -> LoadShard:
    """Write the weights of a model into a folder, and return the command that loads it whole."""
    settings = config(shape)
    arch = architecture(settings)
    parts = Parts(True, 0, arch.layers, True)
    rng = np.random.default_rng(7)
    written: dict[tuple[str, tuple[int, ...]], tuple[tuple[str, ...], tuple[bytes, ...]]] = {}
    tensors = []
    for role, size in tensor_shapes(arch, parts).items():
        kind = role.split(".", 3)[-1] if ".layers." in role else role
        if (kind, size) not in written:
            written[kind, size] = _write(folder, rng, size)
        paths, digests = written[kind, size]
        tensors.append(TensorSource((role,), "BF16", tuple(size), paths, digests))
    return LoadShard("ab" * 32, parts, settings, tuple(tensors), dtype, kv_bytes)


def _write(
    folder: Path, rng: np.random.Generator, size: Sequence[int]
) -> tuple[tuple[str, ...], tuple[bytes, ...]]:
    """Write one random tensor in bfloat16 as chunk files; return their paths and digests."""
    values = rng.standard_normal(size, dtype=np.float32) * 0.02
    if len(size) == 1:  # the weights of norms are near 1
        values += 1
    raw = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    paths, digests = [], []
    for at in range(0, len(raw), CHUNK):
        data = raw[at : at + CHUNK]
        digest = hashlib.sha256(data).digest()
        path = folder / digest.hex()
        path.write_bytes(data)
        paths.append(str(path))
        digests.append(digest)
    return tuple(paths), tuple(digests)


def write_tensor(folder: Path, roles: tuple[str, ...], tensor: torch.Tensor) -> TensorSource:
    """Write a tensor of a checkpoint as one chunk file."""
    raw = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    digest = hashlib.sha256(raw).digest()
    path = folder / digest.hex()
    path.write_bytes(raw)
    name = {torch.float32: "F32", torch.bfloat16: "BF16"}[tensor.dtype]
    return TensorSource(roles, name, tuple(tensor.shape), (str(path),), (digest,))


def prompt(size: int, seed: int, shape: str = "1.1B") -> tuple[int, ...]:
    """Random token ids."""
    rng = random.Random(seed)
    return tuple(rng.randrange(SHAPES[shape][-1]) for _ in range(size))


@dataclass(slots=True)
class Answer:
    """Tokens of one session, with the times at which they arrived (seconds, trio's clock)."""

    name: bytes
    began: float
    cached: int = 0
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    done: trio.Event = field(default_factory=trio.Event)

    @property
    def first_s(self) -> float:
        """Seconds from the request to the first token."""
        return self.times[0] - self.began


class Worker:
    """The engine of a daemon with one loaded model."""

    def __init__(self, engine: EngineProcess, loaded: Loaded) -> None:
        self.engine = engine
        self.loaded = loaded
        self._number = 0

    async def generate(
        self, tokens: Sequence[int], steps: int, *, terms: SessionTerms = DEFAULT_TERMS
    ) -> Answer:
        """Generate `steps` tokens after a prompt, in a session of its own."""
        answer = await self.start(tokens, steps, terms=terms)
        await answer.done.wait()
        await self.stop(answer)
        return answer

    async def start(
        self,
        tokens: Sequence[int],
        steps: int,
        *,
        terms: SessionTerms = DEFAULT_TERMS,
        count: Callable[[TokenEvent], None] = lambda event: None,
    ) -> Answer:
        """Begin to generate, and return the answer as it grows. `count` is called for each
        token."""
        self._number += 1
        answer = Answer(self._number.to_bytes(16), trio.current_time())

        def on_event(event: EngineEvent) -> None:
            if isinstance(event, FailedEvent):
                raise RuntimeError(f"{event.code}: {event.message}")
            assert isinstance(event, TokenEvent)
            answer.tokens.append(event.token)
            answer.times.append(trio.current_time())
            count(event)
            if event.final:
                answer.done.set()

        most = len(tokens) + steps
        answer.cached = await self.engine.open(answer.name, most, on_event, terms)
        start = min(answer.cached, (len(tokens) - 2) // 16 * 16)
        rest = tuple(tokens[start:])
        span = Span(answer.name, 1, start, len(rest), tokens=rest, want="token", steps=steps)
        self.engine.submit(span)
        return answer

    async def stop(self, answer: Answer) -> None:
        """Close the session of an answer."""
        await self.engine.close(answer.name)


@asynccontextmanager
async def worker(
    shape: str, *, threads: int, dtype: DType = "bfloat16", kv_bytes: int = 1 << 30
) -> AsyncIterator[Worker]:
    """Run a worker process with a model."""
    with tempfile.TemporaryDirectory() as folder:
        model = await trio.to_thread.run_sync(
            lambda: shard(Path(folder), shape, dtype=dtype, kv_bytes=kv_bytes)
        )
        async with trio.open_nursery() as nursery:
            engine = EngineProcess(RealHost(), threads=threads)
            await nursery.start(engine.run)
            loaded = await engine.load(model)
            yield Worker(engine, loaded)
            nursery.cancel_scope.cancel()
