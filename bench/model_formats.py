"""Model files and precisions: values against the `gguf` package, logits against transformers.

Each GGUF type: random blocks in which every integer occurs. `types` has, by type, the largest
difference from the values of the `gguf` package in units of the type's own rounding: for types
whose integers are kept, that of their scale and minimum to float16; for Q5_K, half a step of 8
bits. At most 1.

Whole GGUF files of each family are converted and computed by the engine in float32; the reference
is transformers with the values that the layouts stand for. The same for each family of the engine,
quantised to int8 and int4, and in float32. `value` is the largest difference of the logits,
relative to the largest logit if that is above 1; goal 1e-4.

The native kernels round the inputs of quantised products to 8 bits (ADR 0047), so the reference for
quantised weights is compared without them. `native` has, for each family and precision, what that
rounding adds to the logits of 120 positions, divided by what the layout's own rounding of the
weights changes (root mean squares). At most 1. `ok` also asks that the types keep within 1.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
import torch
import transformers
from engine_logits import FAMILIES, ROOT, TINY, Checkpoint, checkpoint
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parent.parent))

from shoal.tasks.engine.compute.native import choice
from shoal.tasks.engine.core import Core
from shoal.tasks.engine.families import architecture, tensor_shapes
from shoal.tasks.engine.interface import LoadShard, Parts, Span, TensorSource
from shoal.tasks.engine.kernels import VARIABLE
from shoal.tasks.engine.layouts import INT4, INT8, Layout, Layouts
from shoal.tasks.engine.messages import load_payload, span_frame
from shoal.tasks.engine.spans.answers import FrameOutput
from shoal.tasks.engine.wire import Buffer, Header
from shoal.tasks.models.gguf.blocks import LAYOUTS, stored_parts
from shoal.tasks.models.gguf.header import KINDS
from shoal.tasks.models.gguf.model import gguf_model
from shoal.tasks.models.output import floats_of, write_folder
from shoal.tasks.models.quantise import quantise, values
from tests.tasks.models.ggufs import NUMBERS, File, blocks, expected_values, model_file

MEASURES = ("tasks/models", "tasks/engine", "tasks/inference", "tasks/placement", "transport/host")

GOAL: Final = 1e-4
GGUF_FAMILIES: Final = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
SIZES: Final = {
    "hidden_act": "silu", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 320,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
}  # fmt: skip
MIXTURES: Final = (["Q4_K", "Q6_K", "Q5_K"], ["Q8_0"], ["Q4_0"], ["F16", "BF16", "F32"])
_NAME: Final = b"row".ljust(16, b".")
TOKENS: Final = [3, 17, 99, 200, 5, 64, 128, 77, 31, 8, 150, 42, 9, 18, 27, 36, 45, 54, 63, 72]
MANY_TOKENS: Final = [(37 * each + 11 * each * each) for each in range(120)]


def rounding(name: str, rows: int) -> float:
    """The largest difference of a type from the gguf package, in units of the type's rounding."""
    raw = blocks(name, rows, 512, np.random.default_rng(rows), 1.0)
    expected = expected_values(File({}, {"x": (name, (rows, 512), raw)}), "x")
    kind = KINDS[NUMBERS[name]]
    if name not in LAYOUTS:
        return 0.0 if (floats_of(raw, name) == expected.reshape(-1)).all() else 2.0
    layout = LAYOUTS[name]
    parts = stored_parts(raw, kind, rows)
    error = np.abs(values(parts, layout) - expected).reshape(-1, layout.group)
    scale = parts[".scale"].astype(np.float32).reshape(-1, 1)
    largest = np.abs(expected).reshape(-1, layout.group).max(1, keepdims=True)
    if name in ("Q8_0", "Q4_0"):  # float32 rounds once or twice
        unit = largest * 2**-22
    elif name == "Q5_K":  # half a step, with a scale that is rounded to 11 bits
        unit = np.abs(scale) / 2 + largest * 2**-11
    else:  # scale and minimum are rounded to 11 bits, and so are subnormal ones
        top = {"int4": 15, "int8": 32}[layout.precision]
        minimum = np.abs(parts[".minimum"].astype(np.float32).reshape(-1, 1)) if (
            ".minimum" in parts) else 0.0  # fmt: skip
        unit = (np.abs(scale) * top + minimum) * 2**-11 + (top + 1) * 2**-25 + largest * 2**-22
    return float((error / np.maximum(unit, 1e-30)).max())


def loaded(folder: Path, family: str) -> Checkpoint:
    """A converted folder: for the engine, and as transformers' model with the same values."""
    config = json.loads((folder / "config.json").read_text())
    layouts = architecture(config).layouts
    stored = load_file(folder / "model.safetensors")
    tensors = [write_tensor_of(folder, role, tensor) for role, tensor in stored.items()]
    plain = {key: value for key, value in config.items() if key != "quantization_config"}
    made = getattr(transformers, f"{family}Config")(**plain)
    model = getattr(transformers, f"{family}ForCausalLM")(made).float().eval()
    arch = architecture(config)
    state = model.state_dict()
    for role, shape in tensor_shapes(arch, Parts(True, 0, arch.layers, True)).items():
        layout = layouts.of(role, shape)
        with torch.no_grad():
            state[role].copy_(stood_for(stored, role, layout))
    return Checkpoint(model, config, tensors, "float32", folder)


def stood_for(stored: Mapping[str, torch.Tensor], role: str, layout: Layout | None) -> torch.Tensor:
    """The values of a parameter."""
    if layout is None:
        return stored[role].float()
    ends = ("", ".scale", ".minimum")
    parts: Any = {end: stored[role + end].numpy() for end in ends if role + end in stored}
    return torch.from_numpy(values(parts, layout))


def write_tensor_of(folder: Path, role: str, tensor: torch.Tensor) -> TensorSource:
    """Write a tensor as one chunk file."""
    names = {torch.int8: "I8", torch.uint8: "U8", torch.float16: "F16"}
    names |= {torch.float32: "F32", torch.bfloat16: "BF16"}
    raw = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    digest = hashlib.sha256(raw).digest()
    path = folder / digest.hex()
    path.write_bytes(raw)
    return TensorSource((role,), names[tensor.dtype], tuple(tensor.shape), (str(path),), (digest,))


class Stages:
    """Cores of the shards of a model, one behind the other, with one session."""

    def __init__(self, model: Checkpoint, shards: int) -> None:
        layers = architecture(model.config).layers
        cuts = [layers * index // shards for index in range(shards + 1)]
        self._frames: list[tuple[Header, bytes]] = []
        self._cores = []
        for index in range(shards):
            parts = Parts(index == 0, cuts[index], cuts[index + 1], index == shards - 1)
            shard = LoadShard(ROOT, parts, model.config, tuple(model.tensors), "float32", 1 << 24)
            core = Core(FrameOutput(self._emit))
            self._ask(core, ("load", 1, 0), load_payload(shard))
            self._ask(
                core,
                (
                    "open",
                    1,
                    _NAME,
                    128,
                    "me",
                    False,
                    b"",
                    0,
                    None,
                    "",
                    False,
                    False,
                    True,
                    None,
                    "",
                ),
            )
            self._cores.append(core)

    def _emit(self, header: Header, payload: Buffer) -> None:
        self._frames.append((header, bytes(payload)))

    def _ask(self, core: Core, header: Header, payload: bytes = b"") -> None:
        core.handle(header, memoryview(bytearray(payload)))
        answer = self._frames.pop()[0]
        assert answer[0] == "ok", answer

    def logits(self, tokens: list[int]) -> np.ndarray[Any, Any]:
        span = Span(_NAME, 1, 0, len(tokens), tokens=tuple(tokens))
        for core in self._cores:
            last = core is self._cores[-1]
            header, payload = span_frame(replace(span, want="logits" if last else "hidden"))
            core.handle(tuple(header), memoryview(bytearray(payload)))
            while core.busy:
                core.step()
            data = next(data for header, data in self._frames if header[0] == "hidden")
            self._frames.clear()
            span = replace(span, tokens=None, hidden=data)
        return np.frombuffer(data, np.float32).reshape(len(tokens), -1)


@contextmanager
def without_kernels() -> Iterator[None]:
    """Let torch compute everything."""
    with mock.patch.dict(os.environ, {VARIABLE: "off"}):
        choice.choice.cache_clear()
        yield
    choice.choice.cache_clear()


def difference(model: Checkpoint, vocabulary: int) -> float:
    """The largest difference of the engine's logits from transformers', in 1 and in 2 shards."""
    tokens = [token % vocabulary for token in TOKENS]
    expected = model.logits(tokens)
    worst = max(
        float(np.abs(Stages(model, shards).logits(tokens) - expected).max()) for shards in (1, 2)
    )
    return worst / max(1.0, float(np.abs(expected).max()))


def exact_difference(model: Checkpoint, vocabulary: int) -> float:
    """Return that difference without the native kernels."""
    with without_kernels():
        return difference(model, vocabulary)


def native_share(original: Checkpoint, rounded: Checkpoint, vocabulary: int) -> float:
    """Return the change by the native kernels in the logits of quantised weights, divided by the
    change by the rounding of the weights."""
    tokens = [token % vocabulary for token in MANY_TOKENS]
    expected = rounded.logits(tokens)
    added = _size(Stages(rounded, 1).logits(tokens) - expected)
    return added / _size(expected - original.logits(tokens))


def _size(values: np.ndarray[Any, Any]) -> float:
    return float(np.sqrt((values**2).mean()))


def of_files(folder: Path) -> Iterator[tuple[str, float]]:
    """Yield the difference of logits for each family and mixture of types in a GGUF file."""
    for family, name in GGUF_FAMILIES.items():
        config = {**SIZES, "model_type": family, "architectures": [f"{name}ForCausalLM"]}
        arch = architecture(config)
        shapes = tensor_shapes(arch, Parts(True, 0, arch.layers, True))
        for number, kinds in enumerate(MIXTURES):
            place = folder / f"{family}-{number}"
            place.mkdir()
            path = model_file(config, shapes, kinds).write(place / "model.gguf")
            write_folder(place, gguf_model(path), lambda *_: None)
            yield f"gguf {family} {'+'.join(kinds)}", exact_difference(loaded(place, name), 320)


def of_precisions(
    folder: Path, names: list[str], native: dict[str, float]
) -> Iterator[tuple[str, float]]:
    """Yield the difference of logits for each family in float32, int8 and int4. Adds the share of
    the native kernels' rounding to `native`."""
    vocabulary = int(TINY["vocab_size"])
    for name in names:
        place = folder / name.replace(" ", "-")
        made = checkpoint(place, name, "float32", 5)
        made.adapters = ()
        yield f"{name} float32", difference(made, vocabulary)
        for precision, layout in (("int8", INT8), ("int4", INT4)):
            rounded = quantised(made, layout, place / precision)
            yield f"{name} {precision}", exact_difference(rounded, vocabulary)
            native[f"{name} {precision}"] = round(native_share(made, rounded, vocabulary), 3)


def quantised(made: Checkpoint, layout: Layout, folder: Path) -> Checkpoint:
    """Quantise what fits of a checkpoint, and put what it stands for into transformers' model."""
    folder.mkdir()
    arch = architecture(made.config)
    stored = {role: tensor for path in made.folder.glob("*.safetensors")
              for role, tensor in load_file(path).items()}  # fmt: skip
    others: dict[str, Layout | None] = {}
    tensors = []
    wanted = tensor_shapes(arch, Parts(True, 0, arch.layers, True))
    for role, tensor in stored.items():
        fits = role in wanted and role.endswith(".weight") and layout.fits(tuple(tensor.shape))
        if not fits:
            if tensor.dim() == 2:
                others[role.removesuffix(".weight")] = None
            tensors.append(write_tensor_of(folder, role, tensor))
            continue
        parts = quantise(tensor.float().numpy(), layout)
        for end, part in parts.items():
            tensors.append(write_tensor_of(folder, role + end, torch.from_numpy(part)))
        stored[role] = torch.from_numpy(values(parts, layout))
    rounded = folder / "rounded"
    made.model.config.save_pretrained(rounded)
    save_file(stored, rounded / "model.safetensors", metadata={"format": "pt"})
    model = type(made.model).from_pretrained(rounded, dtype=torch.float32).eval()
    config = {**made.config, "quantization_config": Layouts(layout, others).config()}
    return replace(made, model=model, config=config, tensors=tensors)


def measure(quick: bool) -> dict[str, object]:
    rows = 64 if quick else 2048
    types = {name: round(rounding(name, rows), 3) for name in NUMBERS}
    names = list(FAMILIES)
    with tempfile.TemporaryDirectory() as folder:
        native: dict[str, float] = {}
        logits = dict(of_files(Path(folder))) | dict(of_precisions(Path(folder), names, native))
    worst = max(logits.values())
    return {
        "name": "model_formats",
        "value": float(f"{worst:.3g}"),
        "goal": GOAL,
        "ok": worst <= GOAL and max(*types.values(), *native.values()) <= 1,
        "types": types,
        "native": native,
        "kernels": kernels.name if (kernels := choice.kernels()) else "none",
        "cases": len(logits),
        "worst_case": max(logits, key=lambda each: logits[each]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer blocks of each type")
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    with torch.inference_mode():
        result = measure(args.quick)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
