"""A model of 8 B weights on a graphics card in bfloat16, with random weights.

`value` is the share of the card's measured copy rate at which one session generates text: the bytes
of weights and KV that a token needs, divided by the time between its tokens; goal 0.8. `prefill` is
the share of the card's measured rate of matrix products at which a prompt of 4,096 tokens is
computed; goal 0.7. `over_transformers` divides the tokens per second of 64 sessions by those of
`generate` of transformers with the same weights' shape, both measured twice in turns; goal 4.

The engine's core computes, without its socket. Needs a card, Triton and 40 GB of its memory.
`--quick` is a model of 1.1 B weights.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

import torch
import transformers

from shoal.tasks.engine.compute import model
from shoal.tasks.engine.compute.device import ComputeDevice
from shoal.tasks.engine.compute.torchcompute import computing
from shoal.tasks.engine.devicecore import DeviceCore
from shoal.tasks.engine.families import architecture, tensor_shapes
from shoal.tasks.engine.interface import LoadShard, Parts, Span
from shoal.tasks.engine.messages import load_payload, span_frame
from shoal.tasks.engine.spans.answers import FrameOutput
from shoal.tasks.engine.wire import Buffer, Header

MEASURES = ("tasks/engine",)

GOALS: Final = {"value": 0.8, "prefill": 0.7, "over_transformers": 4.0}
CONFIG: Final = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}
QUICK: Final = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
}
BATCH: Final = 64
PROMPT: Final = 128
LONG: Final = 4096
ROOT: Final = "ab" * 32


class RandomWeights:
    """In place of `weights.Weights`: random tensors on the device, without files."""

    def __init__(self, tensors: object, shapes: Any, dtype: str, device: ComputeDevice) -> None:
        self._shapes, self._device = shapes, device

    def read(self, *roles: str) -> torch.Tensor:
        shapes = [self._shapes[role] for role in roles]
        shape = (sum(each[0] for each in shapes), *shapes[0][1:])
        made: torch.Tensor = torch.empty(shape, dtype=torch.bfloat16, device=self._device.torch)
        return made.fill_(1.0) if len(shape) == 1 else made.normal_(std=0.02)

    def read_optional(self, *roles: str) -> torch.Tensor | None:
        return self.read(*roles) if roles[0] in self._shapes else None


class Engine:
    """A core on the card, whose events have times."""

    def __init__(self, config: dict[str, Any], device: ComputeDevice, kv_bytes: int) -> None:
        self.tokens: dict[bytes, list[float]] = {}
        self.loaded: object = None
        self.core = DeviceCore(device, FrameOutput(self._emit), memory_bytes=0)
        parts = Parts(True, 0, config["num_hidden_layers"], True)
        shard = LoadShard(ROOT, parts, config, (), "bfloat16", kv_bytes)
        self.core.handle(("load", 1, 0), memoryview(bytearray(load_payload(shard))))
        self._sessions = 0

    def _emit(self, header: Header, payload: Buffer) -> None:
        if header[0] == "ok" and header[1] == 1:
            self.loaded = header[2]
        if header[0] in {"refused", "failed"}:
            raise RuntimeError(str(header))
        if header[0] == "token":
            name = header[1]
            assert isinstance(name, bytes)
            self.tokens.setdefault(name, []).append(time.perf_counter())

    def answer(self, count: int, prompt: int, new: int) -> list[list[float]]:
        """Return the times of all tokens of some sessions that begin together, from 0 on."""
        self.tokens = {}
        names = []
        began = time.perf_counter()
        for number in range(count):
            self._sessions += 1
            name = self._sessions.to_bytes(16, "big")
            rest = (False, b"", 0, None, "", False, False, True, None, "")
            self.core.handle(("open", 2, name, prompt + new, "gateway", *rest), memoryview(b""))
            ids = tuple((number * 7919 + at * 31) % 30_000 for at in range(prompt))
            span = Span(name, 0, 0, prompt, tokens=ids, want="token", steps=new)
            header, payload = span_frame(span)
            self.core.handle(tuple(header), memoryview(bytearray(payload)))
            names.append(name)
        while self.core.busy:
            self.core.step()
        for name in names:
            self.core.handle(("close", 3, name), memoryview(b""))
        return [[at - began for at in self.tokens[name]] for name in names]


def together(answers: list[list[float]]) -> float:
    """Return the tokens per second of all sessions while all of them generate."""
    since, until = max(times[0] for times in answers), min(times[-1] for times in answers)
    return sum(since < at <= until for times in answers for at in times) / (until - since)


def theirs(config: dict[str, Any], device: torch.device) -> Any:
    """Return a model of transformers with random weights."""
    settings = transformers.LlamaConfig(**config)
    with device:
        torch.set_default_dtype(torch.bfloat16)
        model = transformers.LlamaForCausalLM(settings).eval()
        torch.set_default_dtype(torch.float32)
    return model


def generated(model: Any, new: int, device: torch.device) -> float:
    """Return the tokens per second of a batch of transformers, without its prompts."""
    ids = torch.randint(0, 30_000, (BATCH, PROMPT), device=device)
    asked = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    times = []
    for count in (2, new):
        torch.accelerator.synchronize()
        began = time.perf_counter()
        model.generate(ids, max_new_tokens=count, min_new_tokens=count, **asked)
        torch.accelerator.synchronize()
        times.append(time.perf_counter() - began)
    return BATCH * (new - 2) / (times[1] - times[0])


def fastest(work: Callable[[], object], rounds: int = 5, calls: int = 10) -> float:
    """Return the seconds of one call, in the fastest of some rounds."""
    best = float("inf")
    for _ in range(rounds + 1):
        torch.accelerator.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            work()
        torch.accelerator.synchronize()
        best = min(best, (time.perf_counter() - began) / calls)
    return best


def copy_rate(device: torch.device) -> float:
    """Return the bytes per second that a copy reads and writes."""
    source = torch.ones(1 << 29, device=device)
    target = torch.empty_like(source)
    return float(2 * source.nbytes) / fastest(lambda: target.copy_(source))


def matrix_rate(device: torch.device) -> float:
    """Return the operations per second of a product of matrices of 8192 x 8192."""
    one = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    other = torch.randn_like(one)
    return float(2 * 8192**3) / fastest(lambda: one @ other)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="a model of 1.1 B weights")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit(
            "error: there is no graphics card, or this torch cannot use it\n"
            "hint: run it on a machine that has one"
        )
    config = {**CONFIG, **(QUICK if arguments.quick else {})}
    with computing():
        result = measured(config, 64 if arguments.quick else 128)
    result["ok"] = all(result[name] >= goal for name, goal in GOALS.items())
    print(json.dumps({"name": "gpu", "goal": GOALS["value"], **result}))
    return 0 if result["ok"] else 1


def measured(config: dict[str, Any], new: int) -> dict[str, Any]:
    device = ComputeDevice("cuda:0")
    copies, products = copy_rate(device.torch), matrix_rate(device.torch)
    print(f"copies {copies / 1e12:.2f} TB/s, products {products / 1e12:.0f} TFLOP/s")
    setattr(model, "Weights", RandomWeights)  # noqa: B010 (a stand-in of another type)
    engine = Engine(config, device, 12 << 30)
    arch = architecture(config)
    shapes = tensor_shapes(arch, Parts(False, 0, arch.layers, True))
    weights = sum(shape[0] * (shape[1] if len(shape) > 1 else 1) for shape in shapes.values())
    engine.answer(1, LONG, 8)  # compiles
    engine.answer(BATCH, PROMPT, 8)
    times = engine.answer(1, 512, new)[0]
    step = median(later - at for at, later in itertools.pairwise(times[8:]))
    kv = 2 * arch.layers * arch.kv_heads * arch.head_dim * 2 * (512 + new // 2)
    first = min(engine.answer(1, LONG, 1)[0][0] for _ in range(3))
    attended = 2 * LONG * LONG * arch.heads * arch.head_dim * arch.layers
    matrices = weights - arch.vocab * arch.hidden
    work = 2 * LONG * matrices + attended
    other = theirs(config, device.torch)
    ours, others = [], []
    for _ in range(2):
        ours.append(together(engine.answer(BATCH, PROMPT, new)))
        others.append(generated(other, new, device.torch))
    return {
        "value": round((2 * weights + kv) / step / copies, 3),
        "prefill": round(work / first / products, 3),
        "over_transformers": round(max(ours) / max(others), 2),
        "token_ms": round(step * 1e3, 3),
        "first_token_ms": round(first * 1e3, 1),
        "batch_tokens_s": [round(each) for each in ours],
        "transformers_tokens_s": [round(each) for each in others],
        "copy_tb_s": round(copies / 1e12, 2),
        "products_tflop_s": round(products / 1e12),
        "device": torch.cuda.get_device_name(device.torch),
        "loaded": str(engine.loaded),
    }


if __name__ == "__main__":
    sys.exit(main())
