"""The tensors of an adapter while it is trained, and their derivatives. All are float32.

B and its derivative are transposed here. MKL's products with a matrix of 8 columns take three times
as long as those with one of 8 rows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from ...adapters import AdapterTerms, Module, module_shapes
from ...families import Architecture
from ...passes import Wanted
from ..lora import MATRICES, Matrix

Pair = tuple[torch.Tensor, torch.Tensor]
"""A (rank x inputs) and B (transposed: rank x outputs)."""


@dataclass(slots=True)
class Trained:
    """Change of one module: `scale * B A x` is added to the outputs `first` to `end` - 1.

    `up` is B, transposed. `sums` are the derivatives by A and the transposed B so far, None for
    those that are not wanted.
    """

    down: torch.Tensor
    up: torch.Tensor
    first: int
    end: int
    scale: float
    sums: list[torch.Tensor | None] = field(default_factory=lambda: [None, None])

    def add(self, out: torch.Tensor, x: torch.Tensor) -> None:
        """Add the change for the inputs `x` to the outputs `out`."""
        out[:, self.first : self.end].addmm_(x @ self.down.t(), self.up, alpha=self.scale)

    def reverse(self, x: torch.Tensor, gradient: torch.Tensor, found: torch.Tensor | None) -> None:
        """Add to the sums the derivatives from those by the outputs, and to `found` (if there is
        one) the derivative by the inputs `x`."""
        part = gradient[:, self.first : self.end]
        inner = part @ self.up.t()  # by A x, before the scale
        if self.sums[0] is not None:
            self.sums[0].addmm_(inner.t(), x, alpha=self.scale)
        if self.sums[1] is not None:
            self.sums[1].addmm_((x @ self.down.t()).t(), part, alpha=self.scale)
        if found is not None:
            found.addmm_(inner, self.down, alpha=self.scale)


Changes = Mapping[Matrix, list[Trained]]


def changes_of(
    pairs: Mapping[Module, Pair], wanted: Mapping[Module, Wanted], scale: float, arch: Architecture
) -> dict[Matrix, list[Trained]]:
    """Return the changes of the matrices of one layer, with sums for the wanted derivatives.

    `scale` is the factor of the product of A and B.
    """
    shapes, found = module_shapes(arch), dict[Matrix, list[Trained]]()
    for matrix, modules in MATRICES.items():
        first = 0
        for module in filter(shapes.__contains__, modules):
            end = first + shapes[module][0]
            if module in pairs:
                sums = [
                    torch.zeros_like(tensor) if want else None
                    for tensor, want in zip(pairs[module], wanted[module], strict=True)
                ]
                change = Trained(*pairs[module], first, end, scale, sums)
                found.setdefault(matrix, []).append(change)
            first = end
    return found


def layer_pairs(
    values: torch.Tensor, terms: AdapterTerms, arch: Architecture
) -> dict[Module, Pair]:
    """Return the tensors of one layer from its values in the order of an adapter's file."""
    shapes, found, at = module_shapes(arch), dict[Module, Pair](), 0
    for module in terms.modules:
        outputs, inputs = shapes[module]
        middle = at + terms.rank * inputs
        end = middle + terms.rank * outputs
        down = values[at:middle].view(terms.rank, inputs)
        found[module] = down, values[middle:end].view(outputs, terms.rank).t().contiguous()
        at = end
    return found


def sums_of(changes: Iterable[Trained]) -> Iterable[torch.Tensor]:
    """Yield the derivatives by A and B that some changes have."""
    for change in changes:
        down, up = change.sums
        if down is not None:
            yield down
        if up is not None:
            yield up.t()
