"""What the worker process adds to a token over the same forward in a bare loop.

Both sides run the same `Model` on random weights, greedy, one thread, interleaved round by round:
the bare loop calls forward, logits and argmax in this process; the engine's loop streams its tokens
through the worker's socket and the event loop. Two shapes: the embedded model's, at most 0.2 ms
more, and 125M parameters, at least 0.95 of the bare loop's tokens a second.
"""

import argparse
import hashlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch
import trio

from shoal.tasks.engine import families
from shoal.tasks.engine.interface import (
    EngineEvent,
    LoadShard,
    Parts,
    Span,
    TensorSource,
    TokenEvent,
)
from shoal.tasks.engine.kv import KV, Budget
from shoal.tasks.engine.llama import Model
from shoal.tasks.engine.process import EngineProcess
from shoal.transport.host import RealHost

CHUNK = 1 << 20
PROMPT = tuple(range(1, 17))
SHAPES: dict[str, dict[str, int]] = {
    "tiny": {"hidden": 256, "layers": 6, "heads": 8, "kv": 4, "ffn": 704, "vocab": 2048},
    "125m": {"hidden": 768, "layers": 12, "heads": 12, "kv": 4, "ffn": 2560, "vocab": 32000},
}


def config(shape: dict[str, int]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": shape["hidden"],
        "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["heads"],
        "num_key_value_heads": shape["kv"],
        "intermediate_size": shape["ffn"],
        "vocab_size": shape["vocab"],
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
    }


def random_shard(values: dict[str, Any], folder: Path) -> LoadShard:
    """A whole model of random weights as chunk files."""
    generator = torch.Generator().manual_seed(1)
    whole = Parts(True, 0, values["num_hidden_layers"], True)
    shapes = families.tensor_shapes(families.architecture(values), whole)
    tensors = tuple(write_tensor(role, shape, folder, generator) for role, shape in shapes.items())
    return LoadShard("0" * 64, whole, values, tensors, "bfloat16", 1 << 27)


def write_tensor(
    role: str, shape: tuple[int, ...], folder: Path, generator: torch.Generator
) -> TensorSource:
    values = (
        torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=generator) * 0.02
    )
    raw = values.bfloat16().view(-1).view(torch.uint8).numpy().tobytes()
    pieces = [raw[at : at + CHUNK] for at in range(0, len(raw), CHUNK)]
    digests = tuple(hashlib.sha256(piece).digest() for piece in pieces)
    paths = tuple(folder / f"{role}.{index}" for index in range(len(pieces)))
    for path, piece in zip(paths, pieces, strict=True):
        path.write_bytes(piece)
    return TensorSource((role,), "BF16", shape, tuple(map(str, paths)), digests)


class Bare:
    """The forward in a loop, and nothing else."""

    def __init__(self, shard: LoadShard) -> None:
        self.arch = families.architecture(shard.config)
        self.model = Model(self.arch, shard)
        self.shard = shard

    def seconds(self, steps: int) -> tuple[float, list[int]]:
        """Seconds a token after the first, and the tokens."""
        kv = KV("", self.arch, self.shard.parts, self.shard.dtype, 1024, Budget(1 << 30))
        source, start, tokens = torch.tensor(PROMPT), 0, []
        began = 0.0
        with torch.inference_mode():
            for _ in range(steps):
                hidden = self.model.forward(self.model.embed(source), kv, start)
                tokens.append(int(self.model.logits(hidden[-1:])[0].argmax()))
                start += len(source)
                source = torch.tensor(tokens[-1:])
                began = began or time.perf_counter()
        return (time.perf_counter() - began) / (steps - 1), tokens


async def engine_seconds(engine: EngineProcess, steps: int) -> tuple[float, list[int]]:
    """The same through the worker, timed by the arrival of the first and the last token."""
    session, events, done = b"bench".ljust(16, b"."), list[tuple[float, int]](), trio.Event()

    def on_event(event: EngineEvent) -> None:
        if not isinstance(event, TokenEvent):
            sys.exit(f"the engine failed: {event}")
        events.append((time.perf_counter(), event.token))
        if event.final:
            done.set()

    await engine.open(session, 1024, on_event)
    engine.submit(Span(session, 0, 0, len(PROMPT), tokens=PROMPT, want="token", steps=steps))
    await done.wait()
    await engine.close(session)
    return (events[-1][0] - events[0][0]) / (steps - 1), [token for _, token in events]


async def measure(shape: str, steps: int, rounds: int) -> dict[str, float]:
    """Milliseconds a token of both sides in their best rounds; other work here only adds.

    Processor times, means over all rounds, tell what wall times are worth on a busy machine.
    """
    bare_ms, engine_ms, cpu = [], [], [0.0, 0.0]
    with tempfile.TemporaryDirectory() as folder:
        shard = random_shard(config(SHAPES[shape]), Path(folder))
        bare = Bare(shard)
        engine = EngineProcess(RealHost(), threads=1)
        async with trio.open_nursery() as nursery:
            await nursery.start(engine.run)
            await engine.load(shard)
            worker = psutil.Process(engine.pid)
            for turn in range(rounds + 1):
                marks = [time.process_time()]
                bare_s, expected = bare.seconds(steps)
                marks += [time.process_time(), sum(worker.cpu_times()[:2])]
                engine_s, tokens = await engine_seconds(engine, steps)
                marks.append(sum(worker.cpu_times()[:2]))
                if tokens != expected:
                    sys.exit("the two sides chose different tokens")
                if turn:  # the first round warms up
                    bare_ms.append(bare_s * 1e3)
                    engine_ms.append(engine_s * 1e3)
                    cpu = [cpu[0] + marks[1] - marks[0], cpu[1] + marks[3] - marks[2]]
            nursery.cancel_scope.cancel()
    cpu_ms = [total * 1e3 / rounds / steps for total in cpu]
    return {
        "bare_ms": min(bare_ms),
        "engine_ms": min(engine_ms),
        "bare_cpu_ms": cpu_ms[0],
        "worker_cpu_ms": cpu_ms[1],
    }


async def main(quick: bool) -> None:
    torch.set_num_threads(1)
    rounds = 12 if quick else 40
    tiny = await measure("tiny", 150, rounds)
    large = await measure("125m", 24, rounds)
    added = tiny["engine_ms"] - tiny["bare_ms"]
    ratio = large["bare_ms"] / large["engine_ms"]
    result = {
        "name": "engine_overhead",
        "value": {"tiny_added_ms": round(added, 4), "125m_ratio": round(ratio, 4)},
        "goal": {"tiny_added_ms": 0.2, "125m_ratio": 0.95},
        "ok": added <= 0.2 and ratio >= 0.95,
        "tiny": {key: round(value, 4) for key, value in tiny.items()},
        "125m": {key: round(value, 3) for key, value in large.items()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under 50 seconds")
    trio.run(main, parser.parse_args().quick)
