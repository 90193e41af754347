"""Random LoRA adapters for checkpoints, as the engine loads them and merged into the model."""

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shoal.tasks.engine import families
from shoal.tasks.engine.adapters import AdapterTerms, LoadAdapter, Module, module_shapes
from shoal.tasks.engine.compute.weights import TORCH_SOURCES
from shoal.tasks.engine.messages import adapter_payload

Pair = tuple[torch.Tensor, torch.Tensor]  # A, B
BASE = "ab" * 32  # the root of every checkpoint in these tests


@dataclass(frozen=True)
class Adapter:
    """An adapter with its tensors by (layer, module)."""

    root: str
    terms: AdapterTerms
    tensors: dict[tuple[int, Module], Pair]

    def load(self, folder: Path, start: int, stop: int, *, chunk: int = 1000) -> LoadAdapter:
        """The command that loads the layers start:stop, with their bytes in files of `chunk`
        bytes, which begin somewhere inside the first one."""
        folder.mkdir(exist_ok=True)
        data = b"before!" + b"".join(
            tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            for (layer, _), pair in self.tensors.items()
            if start <= layer < stop
            for tensor in pair
        )
        pieces = [data[at : at + chunk] for at in range(0, len(data), chunk)]
        digests = tuple(hashlib.sha256(piece).digest() for piece in pieces)
        paths = [folder / digest.hex() for digest in digests]
        for path, piece in zip(paths, pieces, strict=True):
            path.write_bytes(piece)
        return LoadAdapter(self.root, self.terms, 7, tuple(map(str, paths)), digests)

    def merged(self, model: Any) -> Any:
        """A copy of a transformers model with W + scale * B A in place of W."""
        model = copy.deepcopy(model)
        with torch.no_grad():
            for (layer, module), (a, b) in self.tensors.items():
                part = "self_attn" if module[0] in "qkvo" else "mlp"
                place = getattr(getattr(model.model.layers[layer], part), module)
                change = self.terms.scale * (b.double() @ a.double())
                place.weight.copy_((place.weight.double() + change).to(place.weight.dtype))
        return model


def make_adapter(
    config: dict[str, Any],
    *,
    seed: int = 1,
    rank: int = 4,
    modules: Sequence[Module] | None = None,
    layers: Sequence[int] | None = None,
    dtype: str = "F32",
    rslora: bool = False,
) -> Adapter:
    arch = families.architecture(config)
    random = torch.Generator().manual_seed(seed)
    chosen = tuple(range(arch.layers) if layers is None else layers)
    shapes = module_shapes(arch)
    chosen_modules = tuple(modules or shapes)
    tensors = {}
    for layer in chosen:
        for module in chosen_modules:
            outputs, inputs = shapes[module]
            a = torch.randn(rank, inputs, generator=random) * 0.2
            b = torch.randn(outputs, rank, generator=random) * 0.2
            tensors[layer, module] = a.to(TORCH_SOURCES[dtype]), b.to(TORCH_SOURCES[dtype])
    terms = AdapterTerms(BASE, rank, 2.0 * rank, rslora, dtype, chosen_modules, chosen)  # type: ignore[arg-type]
    return Adapter(f"{seed:064x}", terms, tensors)


def adapt(driver: Any, load: LoadAdapter) -> tuple[Any, ...]:
    """The worker's reply to the command."""
    reply: tuple[Any, ...] = driver.request("adapt", 0, payload=adapter_payload(load))
    return reply
