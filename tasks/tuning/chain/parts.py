"""Division of a batch into parts, and of an adapter into the tensors of stages. No I/O."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...engine.adapters import AdapterTerms, module_shapes
from ...engine.families import Architecture
from ...engine.interface import Parts
from ...errors import SessionError
from ..defaults import LEAST_PARTS
from ..interface import AdapterTensors, Batch, TensorName


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Some rows of a batch, without positions at their end that nothing depends on."""

    number: int
    tokens: NDArray[np.int32]
    targets: NDArray[np.int32]
    counted: int

    @property
    def rows(self) -> int:
        return int(self.tokens.shape[0])

    @property
    def length(self) -> int:
        return int(self.tokens.shape[1])


def check_batch(batch: Batch, arch: Architecture) -> None:
    """Raise SessionError `bad-batch` if a batch does not fit a model."""
    tokens, targets = batch.tokens, batch.targets
    if tokens.ndim != 2 or tokens.shape != targets.shape or not tokens.size:
        raise SessionError("bad-batch", "a batch has rows of tokens, and a target for each")
    if tokens.shape[1] > arch.context:
        raise SessionError(
            "bad-batch", f"rows of {tokens.shape[1]} tokens exceed the context of {arch.context}"
        )
    if tokens.min() < 0 or max(tokens.max(), targets.max()) >= arch.vocab:
        raise SessionError("bad-batch", f"a token is not among the {arch.vocab} of the model")


def divide(batch: Batch, most: int) -> list[BatchPart]:
    """Return the parts of a batch: of at most `most` positions unless one row has more, and if
    possible at least LEAST_PARTS.

    It does not depend on the chain, so that another chain computes the same sums.
    Rows of similar lengths are together, because a part is as long as its longest row.
    """
    counts = batch.targets >= 0
    width = batch.targets.shape[1]
    lengths = np.where(counts.any(1), width - counts[:, ::-1].argmax(1), 0)
    order = [int(row) for row in np.argsort(lengths, kind="stable")[::-1] if lengths[row]]
    most_rows = max(1, -(-len(order) // LEAST_PARTS)) if order else 1
    found: list[BatchPart] = []
    while order:
        length = int(lengths[order[0]])
        rows = min(most_rows, max(1, most // length), len(order))
        some, order = order[:rows], order[rows:]
        tokens, targets = batch.tokens[some, :length], batch.targets[some, :length]
        targets = np.where(targets < 0, -1, targets)
        part = BatchPart(
            len(found),
            np.ascontiguousarray(tokens, np.int32),
            np.ascontiguousarray(targets, np.int32),
            int((targets >= 0).sum()),
        )
        found.append(part)
    return found


def names_of(terms: AdapterTerms, parts: Parts) -> list[TensorName]:
    """Return the tensors of a stage's layers, in the order of an adapter's file."""
    return [
        TensorName(layer, module, side)
        for layer in terms.layers
        if parts.start <= layer < parts.stop
        for module in terms.modules
        for side in ("A", "B")
    ]


def shape_of(name: TensorName, terms: AdapterTerms, arch: Architecture) -> tuple[int, int]:
    """Return the shape of a tensor."""
    outputs, inputs = module_shapes(arch)[name.module]
    return (terms.rank, inputs) if name.side == "A" else (outputs, terms.rank)


def check_adapter(
    adapter: AdapterTensors, root: str, arch: Architecture, names: Collection[TensorName] | None
) -> None:
    """Raise SessionError `bad-adapter` if an adapter does not fit a model."""
    terms = adapter.terms
    if terms.base != root or terms.dtype != "F32" or terms.layers[-1] >= arch.layers:
        raise SessionError("bad-adapter", "the adapter belongs to another model, or is not in F32")
    terms.values(arch)
    every = names_of(terms, Parts(True, 0, arch.layers, True))
    for name in every:
        tensor = adapter.tensors.get(name)
        if tensor is None or tensor.shape != shape_of(name, terms, arch):
            raise SessionError("bad-adapter", f"the tensor {tuple(name)} is missing or misshapen")
    if names is not None and (unknown := set(names) - set(every)):
        raise SessionError("bad-adapter", f"the adapter has no tensor {tuple(min(unknown))}")


def tensor_data(adapter: AdapterTensors, names: Sequence[TensorName]) -> bytes:
    """Return the float32 values of some tensors, one after the other."""
    tensors = (adapter.tensors[name] for name in names)
    return b"".join(np.ascontiguousarray(each, np.float32).tobytes() for each in tensors)
