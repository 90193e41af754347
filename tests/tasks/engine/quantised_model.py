"""Quantised versions of the tiny checkpoints: the tensors for the engine, and transformers' model
with the values that they stand for."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from shoal.tasks.engine.families import architecture, tensor_shapes
from shoal.tasks.engine.interface import Parts
from shoal.tasks.engine.layouts import Layout, Layouts
from shoal.tasks.models.quantise import quantise, values
from tests.tasks.engine.conftest import Checkpoint, cut_tensor


def quantised(made: Checkpoint, layouts: Layouts, folder: Path) -> Checkpoint:
    """Quantise the weights of a checkpoint, and put what they stand for into its model."""
    arch = architecture(made.config)
    model = copy.deepcopy(made.model)
    state = model.state_dict()
    tensors = [item for item in made.tensors if len(item.shape) != 2]
    for role, shape in tensor_shapes(arch, Parts(True, 0, arch.layers, True)).items():
        layout = layouts.of(role, shape)
        if layout is None:
            tensors += [item for item in made.tensors if item.roles == (role,) and len(shape) == 2]
            continue
        parts = quantise(state[role].float().numpy(), layout)
        for end, part in parts.items():
            tensors.append(cut_tensor(torch.from_numpy(part), (role + end,), folder / "chunks"))
        with torch.no_grad():
            state[role].copy_(torch.from_numpy(values(parts, layout)))
    config = {**made.config, "quantization_config": layouts.config()}
    return replace(made, model=model, config=config, tensors=tuple(tensors))


def fitting(made: Checkpoint, layout: Layout) -> Layouts:
    """Return the layouts with which all matrices are quantised whose columns are groups."""
    arch = architecture(made.config)
    shapes: dict[str, Any] = tensor_shapes(arch, Parts(True, 0, arch.layers, True))
    others = {
        role.removesuffix(".weight"): None
        for role, shape in shapes.items()
        if len(shape) == 2 and not layout.fits(shape)
    }
    return Layouts(layout, others)
