"""Random LoRA adapters for benchmarks of the engine: as a worker loads them, and merged."""

import copy
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from shoal.tasks.engine import families
from shoal.tasks.engine.adapters import AdapterTerms, LoadAdapter, Module, module_shapes
from shoal.tasks.engine.interface import Parts


@dataclass(frozen=True)
class Adapter:
    """An adapter of all modules in all layers, with A and B by (layer, module), in float32."""

    root: str
    terms: AdapterTerms
    pairs: dict[tuple[int, Module], tuple[torch.Tensor, torch.Tensor]]

    def load(self, folder: Path, parts: Parts) -> LoadAdapter:
        """Return the command that loads the layers of a shard, after writing their bytes."""
        data = b"".join(
            tensor.numpy().tobytes()
            for (layer, _), pair in self.pairs.items()
            if parts.start <= layer < parts.stop
            for tensor in pair
        )
        digest = hashlib.sha256(data).digest()
        path = folder / digest.hex()
        path.write_bytes(data)
        return LoadAdapter(self.root, self.terms, 0, (str(path),), (digest,))

    def merged(self, model: Any) -> Any:
        """Return a copy of a transformers model with W + scale B A in place of W."""
        model = copy.deepcopy(model)
        with torch.no_grad():
            for (layer, module), (a, b) in self.pairs.items():
                part = "self_attn" if module[0] in "qkvo" else "mlp"
                weight = model.get_submodule(f"model.layers.{layer}.{part}.{module}").weight
                change = self.terms.scale * (b.double() @ a.double())
                weight.copy_((weight.double() + change).to(weight.dtype))
        return model


def random_adapter(config: dict[str, Any], base: str, seed: int, rank: int) -> Adapter:
    """Return a random adapter for the model with this config and root."""
    arch = families.architecture(config)
    random = torch.Generator().manual_seed(seed)
    pairs = {}
    for layer in range(arch.layers):
        for module, (outputs, inputs) in module_shapes(arch).items():
            a = torch.randn(rank, inputs, generator=random) * 0.05
            b = torch.randn(outputs, rank, generator=random) * 0.05
            pairs[layer, module] = a, b
    layers = tuple(range(arch.layers))
    terms = AdapterTerms(base, rank, 2.0 * rank, False, "F32", tuple(module_shapes(arch)), layers)
    return Adapter(f"{seed:064x}", terms, pairs)
