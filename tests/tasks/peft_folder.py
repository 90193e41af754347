"""Folders as `peft` saves them, with random LoRA adapters."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from shoal.tasks.engine import families
from shoal.tasks.engine.adapters import Module, module_shapes

LLAMA_MODULES: tuple[Module, ...] = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
)
CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "somewhere/else",
    "bias": "none",
    "fan_in_fan_out": False,
    "init_lora_weights": True,
    "lora_dropout": 0.05,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "use_dora": False,
    "use_rslora": False,
}
Tensors = dict[str, torch.Tensor]


def role(layer: int, module: str, half: str) -> str:
    part = "self_attn" if module[0] in "qkvo" else "mlp"
    return f"base_model.model.model.layers.{layer}.{part}.{module}.lora_{half}.weight"


def make_tensors(
    config: dict[str, Any],
    *,
    rank: int = 4,
    seed: int = 1,
    std: float = 0.2,
    modules: Sequence[Module] | None = None,
    layers: Sequence[int] | None = None,
) -> Tensors:
    arch = families.architecture(config)
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(arch.layers) if layers is None else layers:
        for module in modules or module_shapes(arch):
            outputs, inputs = module_shapes(arch)[module]
            a, b = (rank, inputs), (outputs, rank)
            tensors[role(layer, module, "A")] = torch.randn(a, generator=random) * std
            tensors[role(layer, module, "B")] = torch.randn(b, generator=random) * std
    return tensors


def save(folder: Path, tensors: Tensors, *, rank: int = 4, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    save_file(
        {name: each.clone() for name, each in tensors.items()}, folder / "adapter_model.safetensors"
    )
    config = {**CONFIG, "r": rank, "lora_alpha": 2 * rank, **changes}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def merge(model: Any, tensors: Tensors, scale: float) -> None:
    """Replace W by W + scale * B A in a transformers model."""
    with torch.no_grad():
        for name, a in tensors.items():
            if ".lora_A." in name:
                b = tensors[name.replace(".lora_A.", ".lora_B.")]
                place = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
                weight = model.get_submodule(place).weight
                weight.copy_((weight.double() + scale * (b.double() @ a.double())).float())
