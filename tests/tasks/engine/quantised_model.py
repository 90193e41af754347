"""Quantised versions of the tiny checkpoints: the tensors for the engine, and transformers' model
with the values that they stand for."""

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from shoal.tasks.engine.families import architecture, tensor_shapes
from shoal.tasks.engine.interface import Parts, TensorSource
from shoal.tasks.engine.layouts import Layout, Layouts, fitting
from shoal.tasks.models.quantise import quantise, values
from tests.tasks.engine.conftest import NAMES, Checkpoint, cut_tensor


def quantised(made: Checkpoint, layouts: Layouts, folder: Path) -> Checkpoint:
    """Quantise the weights of a checkpoint, and load what they stand for into transformers."""
    tensors, stored = list[TensorSource](), dict[str, torch.Tensor]()
    for source in made.tensors:
        role, tensor = source.roles[0], read(source)
        layout = layouts.of(role, tuple(tensor.shape))
        if layout is None:
            tensors.append(source)
            stored[role] = tensor
            continue
        parts = quantise(tensor.float().numpy(), layout)
        for end, part in parts.items():
            tensors.append(cut_tensor(torch.from_numpy(part), (role + end,), folder / "chunks"))
        stored[role] = torch.from_numpy(values(parts, layout))
    rounded = folder / "rounded"
    made.model.config.save_pretrained(rounded)
    save_file(stored, rounded / "model.safetensors", metadata={"format": "pt"})
    model = type(made.model).from_pretrained(rounded, dtype=torch.float32).eval()
    config = {**made.config, "quantization_config": layouts.config()}
    return replace(made, model=model, config=config, tensors=tuple(tensors))


def read(source: TensorSource) -> torch.Tensor:
    dtypes = {name: dtype for dtype, name in NAMES.items()}
    data = bytearray(b"".join(Path(path).read_bytes() for path in source.chunks))
    return torch.frombuffer(data, dtype=dtypes[source.dtype]).view(source.shape)


def fitting_of(made: Checkpoint, layout: Layout) -> Layouts:
    """Return the layouts with which all matrices are quantised whose columns are groups."""
    arch = architecture(made.config)
    return fitting(tensor_shapes(arch, Parts(True, 0, arch.layers, True)), layout)
