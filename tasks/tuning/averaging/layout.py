"""Tensors as one flat vector and back, and the frozen half of a LoRA adapter. No I/O."""

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..interface import LearnedTensors, TensorName
from .codecs import Vector
from .errors import BadUpdate

if TYPE_CHECKING:
    from .terms import RunTerms

Key = TypeVar("Key")
_DOMAIN: Final = b"shoal/average/frozen/1"


class Averaged(Protocol):
    """Tensors that a fine-tuning averages with others, and the terms of the run."""

    @property
    def run(self) -> "RunTerms": ...

    @property
    def frozen(self) -> LearnedTensors:
        """Tensors that follow from the id of the run, and are never trained."""
        ...

    def flat(self, tensors: LearnedTensors) -> Vector:
        """Return the averaged tensors of a state as one vector. Raises BadUpdate `wrong-shape`."""
        ...

    def tensors(self, values: Vector) -> LearnedTensors:
        """Return the averaged tensors that a vector holds. They share its memory. Raises BadUpdate
        `wrong-shape`."""
        ...


class FlatLayout(Generic[Key]):
    """Order of tensors in a flat vector."""

    def __init__(self, shapes: Iterable[tuple[Key, tuple[int, ...]]]) -> None:
        self.shapes = dict(shapes)
        self.values = sum(math.prod(shape) for shape in self.shapes.values())

    def flat(self, tensors: Mapping[Key, NDArray[np.float32]]) -> Vector:
        """Return the tensors as one vector. Raises BadUpdate `wrong-shape`."""
        for name, shape in self.shapes.items():
            if name not in tensors or tensors[name].shape != shape:
                raise BadUpdate("wrong-shape", f"the tensor `{name}` has not the shape {shape}")
        parts = [np.ravel(tensors[name]) for name in self.shapes]
        return np.concatenate(parts).astype(np.float32, copy=False)

    def tensors(self, vector: Vector) -> dict[Key, NDArray[np.float32]]:
        """Return the tensors in a vector. They share its memory.

        Raises BadUpdate `wrong-shape`.
        """
        if vector.shape != (self.values,):
            raise BadUpdate("wrong-shape", f"expected {self.values} values, got {vector.shape}")
        found, at = dict[Key, NDArray[np.float32]](), 0
        for name, shape in self.shapes.items():
            size = math.prod(shape)
            found[name] = vector[at : at + size].reshape(shape)
            at += size
        return found


def frozen_a(run: str, name: TensorName, rank: int, inputs: int) -> NDArray[np.float32]:
    """Return the A of one module, rank x inputs: drawn from the id of the run, and never trained.

    With A equal everywhere, the mean of all B A is (mean of B) A, so averaging B is exact. The
    distribution is that of `peft`: uniform within 1 / sqrt(inputs).
    """
    seed = _DOMAIN + bytes.fromhex(run) + f"{name.layer}/{name.module}".encode()
    drawn = np.frombuffer(hashlib.shake_256(seed).digest(4 * rank * inputs), "<u4")
    unit = drawn.astype(np.float64) / 2**31 - 1
    a: NDArray[np.float32] = (unit / math.sqrt(inputs)).astype(np.float32).reshape(rank, inputs)
    return a
