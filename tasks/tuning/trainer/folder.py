"""Adapter as a folder that `peft` loads: adapter_config.json and adapter_model.safetensors."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....transport.host.seam import Files
from ...engine.adapters import AdapterTerms, Module
from ..interface import LearnedTensors, TensorName, of_adapter


def peft_name(name: TensorName) -> str:
    """Return the name of a tensor in files of `peft`."""
    part = "self_attn" if name.module in _ATTENTION else "mlp"
    return (
        f"base_model.model.model.layers.{name.layer}.{part}.{name.module}.lora_{name.side}.weight"
    )


_ATTENTION: frozenset[Module] = frozenset({"q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj"})


def peft_config(terms: AdapterTerms, model: str) -> dict[str, Any]:
    """Return the content of adapter_config.json. `model` is a name for people."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": model,
        "r": terms.rank,
        "lora_alpha": int(terms.alpha) if terms.alpha.is_integer() else terms.alpha,
        "target_modules": list(terms.modules),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
        "use_dora": False,
        "use_rslora": terms.rslora,
    }


def write_peft(
    files: Files, folder: Path, terms: AdapterTerms, tensors: LearnedTensors, model: str
) -> None:
    """Write an adapter as `peft` would. Blocking. Raises OSError if the disk fails."""
    named = {peft_name(name): each for name, each in of_adapter(tensors).items()}
    files.make_folder(folder, mode=0o755)
    files.write_pieces(folder / "adapter_model.safetensors", safetensors(named), mode=0o644)
    config = json.dumps(peft_config(terms, model), indent=2, ensure_ascii=True) + "\n"
    files.write(folder / "adapter_config.json", config.encode(), mode=0o644)


def safetensors(named: Mapping[str, NDArray[np.float32]]) -> Iterator[bytes | memoryview]:
    """Yield a safetensors file in float32: the size of a head, the head, the tensors in the order
    of their names."""
    head: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name in sorted(named):
        size = 4 * named[name].size
        head[name] = {
            "dtype": "F32", "shape": list(named[name].shape), "data_offsets": [at, at + size],
        }  # fmt: skip
        at += size
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in sorted(named):
        yield np.ascontiguousarray(named[name], "<f4").data.cast("B")
