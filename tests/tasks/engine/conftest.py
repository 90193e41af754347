"""Random tiny checkpoints made by transformers, in chunk files, and a worker core to run them."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from msgspec.structs import astuple
from safetensors.torch import load_file

from shoal.tasks.engine import families
from shoal.tasks.engine.compute import torchcompute
from shoal.tasks.engine.compute.native import choice
from shoal.tasks.engine.core import Core
from shoal.tasks.engine.families.shapes import stored_tensors
from shoal.tasks.engine.interface import (
    NO_RULES,
    DType,
    EngineEvent,
    HiddenEvent,
    LoadShard,
    Parts,
    Rules,
    Span,
    TensorSource,
    TokenEvent,
)
from shoal.tasks.engine.messages import load_payload, parse_event, span_frame
from shoal.tasks.engine.scheduling.costs import StepCosts
from shoal.tasks.engine.shard import LoadedShard, Stop
from shoal.tasks.engine.spans.answers import FrameOutput
from shoal.tasks.engine.wire import Buffer, Header

NAMES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int8: "I8",
    torch.uint8: "U8",
}
TINY = {
    "vocab_size": 101,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "initializer_range": 0.3,
}

# The special tokens of some families are outside the tiny vocabulary by default.
EXTRA: dict[str, dict[str, Any]] = {
    "Qwen3Next": {
        # With larger weights, float32 in transformers is itself 1e-4 from float64.
        "initializer_range": 0.2,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 6,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    "GptOss": {
        # With larger weights, bfloat16 in transformers is 0.2 from float32, by other experts.
        "initializer_range": 0.15,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "head_dim": 8,
    },
    "Qwen3Moe": {"num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "Phi3": {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}


@dataclass(frozen=True)
class Checkpoint:
    """A folder saved by transformers: its model, its config.json, its tensors in chunk files."""

    model: Any
    config: dict[str, Any]
    tensors: tuple[TensorSource, ...]

    @property
    def layers(self) -> int:
        return int(self.config["num_hidden_layers"])

    @property
    def whole(self) -> Parts:
        return Parts(True, 0, self.layers, True)

    def shard(self, parts: Parts | None = None, *, dtype: DType = "float32") -> LoadShard:
        parts = parts or self.whole
        needed = stored_tensors(families.architecture(self.config), parts)
        tensors = tuple(item for item in self.tensors if needed.keys() & set(item.roles))
        return LoadShard("ab" * 32, parts, self.config, tensors, dtype, 1 << 24)

    def splits(self, count: int) -> list[Parts]:
        """The whole model as `count` shards of nearly equal layers."""
        cuts = [self.layers * index // count for index in range(count + 1)]
        return [
            Parts(index == 0, cuts[index], cuts[index + 1], index == count - 1)
            for index in range(count)
        ]

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = self.model(torch.tensor([tokens])).logits[0]
        return logits.float()

    def greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        with torch.inference_mode():
            out = self.model.generate(
                torch.tensor([tokens]), max_new_tokens=count, do_sample=False, eos_token_id=None
            )
        return [int(token) for token in out[0, len(tokens) :]]


def cut(folder: Path, store: Path, chunk: int = 4096) -> tuple[TensorSource, ...]:
    """Every tensor of a folder's safetensors files as chunk files."""
    return tuple(
        cut_tensor(tensor, (role,), store, chunk)
        for path in sorted(folder.glob("*.safetensors"))
        for role, tensor in load_file(path).items()
    )


def cut_tensor(
    tensor: torch.Tensor, roles: tuple[str, ...], store: Path, chunk: int = 4096
) -> TensorSource:
    store.mkdir(exist_ok=True)
    raw = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    pieces = [raw[at : at + chunk] for at in range(0, len(raw), chunk)]
    digests = tuple(hashlib.sha256(piece).digest() for piece in pieces)
    paths = tuple(store / digest.hex() for digest in digests)
    for path, piece in zip(paths, pieces, strict=True):
        path.write_bytes(piece)
    names = tuple(str(path) for path in paths)
    return TensorSource(roles, NAMES[tensor.dtype], tuple(tensor.shape), names, digests)


def make_checkpoint(
    folder: Path,
    family: str,
    *,
    dtype: torch.dtype = torch.float32,
    as_dtype: torch.dtype | None = None,
    shards: bool = False,
    **config: Any,
) -> Checkpoint:
    torch.manual_seed(7)
    kinds = {"Gemma3": "Gemma3TextConfig"}
    made = getattr(transformers, kinds.get(family, f"{family}Config"))(
        **{**TINY, **EXTRA.get(family, {}), **config}
    )
    kind = getattr(transformers, f"{family}ForCausalLM")
    model = kind(made).to(dtype)
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "sinks")):  # transformers starts them at zero
            torch.nn.init.normal_(parameter, std=0.3)
        elif "norm" in name:  # and weights of norms at one value
            parameter.data += torch.randn_like(parameter) * 0.1
    torch.set_num_threads(1)
    model.save_pretrained(folder, max_shard_size="20KB" if shards else "1GB")
    saved = json.loads((folder / "config.json").read_text())
    # Read again: `.to` rounds the rotary frequencies too, which from_pretrained does not.
    model = kind.from_pretrained(folder, dtype=as_dtype or dtype).eval()
    return Checkpoint(model, saved, cut(folder, folder / "chunks"))


@pytest.fixture
def exact_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the native kernels, whose products with quantised matrices round the inputs to 8
    bits (test_native.py compares them)."""
    monkeypatch.setattr(choice, "kernels", lambda: None)


def tiny_costs(_model: object, _blocks: int) -> StepCosts:
    """Return about what is measured of a tiny shard, in a moment: measuring takes most of the time
    of loading one."""
    return StepCosts(1e-3, 2e-5, 1e-8)


class Driver:
    """A worker's core without a process: spans in, events out.

    The cost of a step is measured, while the first shard is loaded, only if `measured`.
    """

    def __init__(
        self,
        shard: LoadShard | None = None,
        *,
        memory_bytes: int = 0,
        measured: bool = False,
        stop: Stop | None = None,
    ) -> None:
        self.frames: list[tuple[Header, memoryview]] = []
        self.steps = 0
        self.soon: list[int] = []  # which of all frames so far might have waited
        self._emitted = 0
        output = FrameOutput(self._emit, self._emit_soon)
        self.core = Core(output, stop=stop, memory_bytes=memory_bytes)
        if shard is not None:
            with pytest.MonkeyPatch.context() as patch:
                if not measured:
                    patch.setattr(torchcompute, "measured_costs", tiny_costs)
                assert self.request("load", 0, payload=load_payload(shard))[0] == "ok"

    def _emit(self, header: Header, payload: Buffer) -> None:
        self.frames.append((header, memoryview(bytes(payload))))
        self._emitted += 1

    def _emit_soon(self, header: Header, payload: Buffer) -> None:
        self.soon.append(self._emitted)
        self._emit(header, payload)

    def request(self, name: str, *fields: object, payload: Buffer = b"") -> tuple[Any, ...]:
        """The reply's header without its number, and its payload."""
        if name == "open":  # not of the machine's own gateway, not packed, and exact, unless given
            fields = (*fields, *(False, False, True, None, "")[len(fields) - 8 :])
        with torch.inference_mode():
            self.core.handle((name, 1, *fields), memoryview(bytearray(payload)))
        header, data = self.frames.pop()
        return (header[0], *header[2:], data)

    @property
    def shard(self) -> LoadedShard:
        """The shard that was loaded first."""
        return self.core.shards[0]

    def open(
        self, name: bytes, tokens: int = 64, shard: int = 0, *, adapter: str = "",
        packed: bool = False, rules: Rules = NO_RULES,
    ) -> bytes:  # fmt: skip
        name = name.ljust(16, b".")
        rest = False, b"", shard, None, adapter, False, packed, True, astuple(rules)
        opened = self.request("open", name, tokens, "gateway", *rest)
        assert opened[:2] == ("ok", 0)
        return name

    def submit(self, span: Span) -> None:
        header, payload = span_frame(span)
        with torch.inference_mode():
            self.core.handle(tuple(header), memoryview(bytearray(payload)))

    def step(self) -> None:
        self.steps += 1
        with torch.inference_mode():
            self.core.step()

    def events(self) -> list[EngineEvent]:
        """Run until idle; everything emitted since the last time."""
        while (wait := self.core.wait) is not None:
            time.sleep(wait)
            if self.core.busy:
                self.step()
        frames, self.frames = self.frames, []
        # A reply to nothing is a sign of life during a long step.
        return [parse_event(*frame) for frame in frames if frame[0] != ("ok", 0, None)]

    def run(self, span: Span) -> list[EngineEvent]:
        self.submit(span)
        return self.events()

    def hidden(self, span: Span) -> memoryview:
        (event,) = self.run(span)
        assert isinstance(event, HiddenEvent), event
        return event.data

    def tokens(self, span: Span) -> list[int]:
        events = self.run(span)
        assert all(isinstance(event, TokenEvent) for event in events), events
        return [event.token for event in events if isinstance(event, TokenEvent)]


class Chain:
    """Shards of one checkpoint, one behind the other, all with one session."""

    def __init__(
        self, checkpoint: Checkpoint, splits: list[Parts], dtype: DType = "float32"
    ) -> None:
        self.stages = [Driver(checkpoint.shard(parts, dtype=dtype)) for parts in splits]
        self.vocab = int(checkpoint.config["vocab_size"])
        self.name = b"chain".ljust(16, b".")
        for stage in self.stages:
            stage.open(self.name, 96)

    def logits(self, tokens: Sequence[int], start: int = 0, *, epoch: int = 0) -> torch.Tensor:
        """Logits of every position, count x vocabulary."""
        first = Span(self.name, epoch, start, len(tokens), tokens=tuple(tokens))
        data: memoryview | None = None
        for stage in self.stages:
            span = first if data is None else replace(first, tokens=None, hidden=data)
            last = stage is self.stages[-1]
            data = stage.hidden(replace(span, want="logits" if last else "hidden"))
        return torch.frombuffer(bytearray(data or b""), dtype=torch.float32).view(-1, self.vocab)


Make = Callable[..., Checkpoint]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """`checkpoint(family, **config)`: made once per session for the same arguments."""
    made: dict[str, Checkpoint] = {}

    def make(family: str, **config: Any) -> Checkpoint:
        key = f"{family}{sorted(config.items(), key=str)}"
        if key not in made:
            made[key] = make_checkpoint(tmp_path_factory.mktemp(family), family, **config)
        return made[key]

    yield make
    made.clear()


@pytest.fixture(scope="session")
def driver() -> type[Driver]:
    return Driver


@pytest.fixture(scope="session")
def chain() -> type[Chain]:
    return Chain


@pytest.fixture(scope="session")
def cut_one() -> Callable[..., TensorSource]:
    return cut_tensor
