"""Feed-forward parts of which a router chooses some for each row (mixture of experts).

The rows that chose an expert are computed together, in one product. Few rows are padded as
everywhere, and a row adds its experts in their order, so that it does not depend on the rows that
share the step. In bfloat16 the parts round where transformers does: routers choose between experts
that are almost equal, and one more rounding would have some rows choose others.
"""

import torch

from ..families import Experts
from .mxfp4 import converted
from .pointwise import sigmoid, silu
from .products import BiasedLinear, Linear, linear_of, padded
from .step import LayerWeights, StepContext


class ExpertsPart:
    """The experts of one layer with their router."""

    def __init__(self, weights: LayerWeights, experts: Experts) -> None:
        names = experts.names
        self.router = weights.linear(names.router)
        read = _stacked if experts.stacked else _single
        self.gate_up, self.down = read(weights, experts)
        self._experts = experts
        shared = [f"{names.shared}.{name}" for name in (names.gate, names.up, names.down)]
        self.shared = weights.linear(*shared[:2]) if experts.shared else None
        self.shared_down = weights.linear(shared[2]) if experts.shared else None
        self.shared_gate = weights.linear(names.shared_gate) if experts.shared else None

    def __call__(self, normed: torch.Tensor, index: int, step: StepContext) -> torch.Tensor:
        """Compute the layer with this index in the shard for rows x hidden."""
        chances, chosen = self.route(normed)
        # Rows that only pad the step would use, and read, further experts.
        count = step.rows * self._experts.active
        flat, chances = chosen.flatten()[:count], chances.flatten()[:count]
        order = torch.argsort(flat, stable=True)
        # The sum over the experts is rounded once.
        sums, first = torch.zeros_like(normed, dtype=torch.float32), 0
        for expert, size in enumerate(torch.bincount(flat).tolist()):
            if size:
                places = order[first : first + size]
                rows = places // self._experts.active
                found = self._compute(expert, normed[rows], step.least_rows)
                sums.index_add_(0, rows, (found * chances[places, None]).float())
                first += size
        out = sums.to(normed.dtype)
        return out + self._shared(normed) if self.shared is not None else out

    def _shared(self, normed: torch.Tensor) -> torch.Tensor:
        """Return the output of the expert that every row uses, times its gate."""
        assert self.shared is not None and self.shared_down is not None
        assert self.shared_gate is not None
        gate, up = self.shared(normed).chunk(2, -1)
        return sigmoid(self.shared_gate(normed)) * self.shared_down(silu(gate) * up)

    def route(self, normed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weights and the numbers of the experts of each row (rows x active)."""
        experts, scores = self._experts, self.router(normed)
        if experts.choose_first:
            scores, chosen = torch.topk(scores, experts.active, -1)
            return torch.softmax(scores, -1), chosen
        chances = torch.softmax(scores, -1, dtype=torch.float32)
        chances, chosen = torch.topk(chances, experts.active, -1)
        if experts.normed:
            chances = chances / chances.sum(-1, keepdim=True)
        return chances if experts.wide_weights else chances.to(normed.dtype), chosen

    def _compute(self, expert: int, rows: torch.Tensor, least: int) -> torch.Tensor:
        gate, up = self.gate_up[expert](padded(rows, least)).chunk(2, -1)
        return self.down[expert](self._activate(gate, up))[: len(rows)]

    def _activate(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        limit = self._experts.swiglu_limit
        if not limit:
            return silu(gate) * up
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return (up + 1) * (gate * sigmoid(gate * self._experts.swiglu_alpha))


def _single(weights: LayerWeights, experts: Experts) -> tuple[list[Linear], list[Linear]]:
    """Read experts that are stored one by one. Return the products of each with its input and its
    inner values."""
    names = experts.names
    gate_up = [weights.linear(*names.gate_up(each)) for each in range(experts.count)]
    return gate_up, [weights.linear(names.last(each)) for each in range(experts.count)]


def _stacked(weights: LayerWeights, experts: Experts) -> tuple[list[Linear], list[Linear]]:
    """Read experts that are stored as one tensor, like `_single`. Outputs of gate and up take
    turns."""
    each, names = experts.names.each, experts.names
    order = torch.arange(2 * experts.wide).view(-1, 2).T.flatten()  # gates, then ups
    gate_up = _products(weights, experts, f"{each}.{names.stacked}", order)
    return gate_up, _products(weights, experts, f"{each}.{names.down}", None)


def _products(
    weights: LayerWeights, experts: Experts, name: str, order: torch.Tensor | None
) -> list[Linear]:
    """Return one product for each expert, with its outputs in this order (None: as stored)."""
    bias = weights.read_plain(f"{name}_bias")
    parts = (f"{name}_blocks", f"{name}_scales") if experts.mxfp4 else (name,)
    read = weights.read_bytes if experts.mxfp4 else weights.read_plain
    stored = [read(part) for part in parts]
    found: list[Linear] = []
    for expert in range(experts.count):
        matrix, *scales = (tensor[expert] for tensor in stored)
        for scale in scales:
            matrix = converted(matrix, scale, bias.dtype).to(bias.device)
        if not scales:  # inputs x outputs
            matrix = matrix.T
        rows = torch.arange(len(matrix)) if order is None else order
        rows = rows.to(bias.device)
        linear = linear_of(matrix[rows].contiguous(), None)
        found.append(BiasedLinear(linear, bias[expert][rows]))
    return found
