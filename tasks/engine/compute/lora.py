"""LoRA adapters in torch: low-rank changes of projections for some rows of a step.

Their matrices are in the same layout as those of the model (`products.py`), and few rows are padded
in the same way. A row's result therefore does not depend on the other rows: in oneDNN's layout it
is the same for 2 to 512 rows, measured for ranks of 1 to 256 in both dtypes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch

from ..adapters import AdapterTerms, LoadAdapter, Module, module_shapes
from ..errors import EngineError
from ..families import Architecture
from ..interface import DType, Parts
from .device import CPU, ComputeDevice
from .products import Linear, linear_of, padded
from .weights import TORCH_DTYPES, TORCH_SOURCES, ChunkFiles

Matrix = Literal["qkv", "output", "gate_up", "down"]
MATRICES: Final[dict[Matrix, tuple[Module, ...]]] = {  # in the order of their outputs
    "qkv": ("q_proj", "k_proj", "v_proj", "qkv_proj"),
    "output": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj", "gate_up_proj"),
    "down": ("down_proj",),
}


@dataclass(frozen=True, slots=True)
class LowRank:
    """Change of one module: `up(down(x))` is added to the outputs `first` to `end` - 1."""

    down: Linear
    up: Linear
    first: int
    end: int

    def add(self, out: torch.Tensor, x: torch.Tensor) -> None:
        """Add the change for the inputs `x` to the outputs `out` of the first rows, or of all."""
        out[:, self.first : self.end] += self.up(self.down(x))[: len(out)]


Layer = dict[Matrix, list[LowRank]]


class Lora:
    """The layers of one adapter that a shard has, by their index in the shard."""

    def __init__(
        self,
        load: LoadAdapter,
        arch: Architecture,
        parts: Parts,
        dtype: DType,
        device: ComputeDevice = CPU,
    ) -> None:
        """Read the tensors. Raises EngineError `bad-adapter` if they do not fit or are not finite,
        and `digest-mismatch` if a chunk is damaged."""
        terms = load.terms
        layers = [layer for layer in terms.layers if parts.start <= layer < parts.stop]
        content = _content(load, len(layers) * terms.layer_bytes(arch))
        values = content.split(terms.values(arch)) if layers else ()
        self._layers: dict[int, Layer] = {
            layer - parts.start: _layer(part, terms, arch, dtype, device)
            for layer, part in zip(layers, values, strict=True)
        }

    def changes(self, layer: int, matrix: Matrix) -> Sequence[LowRank]:
        """Return the changes of a matrix of the layer with this index in the shard."""
        return self._layers.get(layer, {}).get(matrix, ())


@dataclass(frozen=True, slots=True)
class AdaptedRows:
    """Rows `first` to `end` - 1 of a step, which use one adapter."""

    lora: Lora
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class StepAdapters:
    """The rows of a step that use adapters. Fewer than `least` rows are padded."""

    rows: Sequence[AdaptedRows] = ()
    least: int = 1

    def change(
        self, out: torch.Tensor, x: torch.Tensor, layer: int, matrix: Matrix
    ) -> torch.Tensor:
        """Change the outputs of a matrix for the rows with adapters, and return the outputs."""
        for each in self.rows:
            if changes := each.lora.changes(layer, matrix):
                some = padded(x[each.first : each.end], self.least)
                for change in changes:
                    change.add(out[each.first : each.end], some)
        return out


WITHOUT_ADAPTERS: Final = StepAdapters()


def matrix_shapes(arch: Architecture) -> list[tuple[Matrix, int, int]]:
    """Return (matrix, outputs, inputs) of each matrix that an adapter may change."""
    found: list[tuple[Matrix, int, int]] = []
    shapes = module_shapes(arch)
    for matrix, modules in MATRICES.items():
        sizes = [shapes[module] for module in modules if module in shapes]
        if sizes:
            found.append((matrix, sum(outputs for outputs, _ in sizes), sizes[0][1]))
    return found


def _content(load: LoadAdapter, size: int) -> torch.Tensor:
    """Return the values of the shard's layers, `size` bytes, in the dtype in which they are
    stored."""
    files, data, skip = ChunkFiles(), bytearray(), load.skip
    for path, digest in zip(load.chunks, load.digests, strict=True):
        data += files.read(path, digest)[skip : skip + size - len(data)]
        skip = 0
    if len(data) != size:
        raise EngineError("bad-adapter", f"the adapter has {len(data)} of {size} bytes")
    dtype = TORCH_SOURCES[load.terms.dtype]
    return torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)


def _layer(
    values: torch.Tensor,
    terms: AdapterTerms,
    arch: Architecture,
    dtype: DType,
    device: ComputeDevice,
) -> Layer:
    """Return the changes of one layer from its values."""
    shapes, found, at = module_shapes(arch), Layer(), 0
    for matrix, modules in MATRICES.items():
        first = 0
        for module in filter(shapes.__contains__, modules):
            outputs, inputs = shapes[module]
            if module in terms.modules:
                middle = at + terms.rank * inputs
                end = middle + terms.rank * outputs
                down = _matrix(values[at:middle].view(terms.rank, inputs), dtype, device)
                # B is scaled before it is rounded, so the scale costs no time and no precision.
                up = values[middle:end].view(outputs, terms.rank).float() * terms.scale
                change = LowRank(down, _matrix(up, dtype, device), first, first + outputs)
                found.setdefault(matrix, []).append(change)
                at = end
            first += outputs
    return found


def _matrix(values: torch.Tensor, dtype: DType, device: ComputeDevice) -> Linear:
    """Return a product with a matrix in the shard's dtype. Raises EngineError `bad-adapter` if a
    value is not finite."""
    weight = values.to(TORCH_DTYPES[dtype])
    if not bool(torch.isfinite(weight).all()):
        raise EngineError("bad-adapter", "the adapter has values that are not finite")
    return linear_of(device.upload(weight.contiguous()), None)
