"""Feed-forward parts of which a router chooses some for each row (mixture of experts).

The rows that chose an expert are computed together, in one product. Few rows are padded as
everywhere, and a row adds its experts in their order, so that it does not depend on the rows that
share the step.
"""

import torch
from torch.nn import functional as F

from ..families import Experts
from .layers import LayerWeights, Step
from .products import padded


class ExpertsPart:
    """The experts of one layer with their router."""

    def __init__(self, weights: LayerWeights, experts: Experts) -> None:
        names = experts.names
        self.router = weights.linear(names.router)
        self.gate_up = [weights.linear(*names.gate_up(each)) for each in range(experts.count)]
        self.down = [weights.linear(names.last(each)) for each in range(experts.count)]
        self._experts = experts

    def __call__(self, normed: torch.Tensor, index: int, step: Step) -> torch.Tensor:
        """Compute the layer with this index in the shard for rows x hidden."""
        chances, chosen = self._route(normed)
        # Rows that only pad the step would use, and read, further experts.
        count = step.rows * self._experts.active
        flat, chances = chosen.flatten()[:count], chances.flatten()[:count]
        order = torch.argsort(flat, stable=True)
        out, first = torch.zeros_like(normed), 0
        for expert, size in enumerate(torch.bincount(flat).tolist()):
            if size:
                places = order[first : first + size]
                rows = places // self._experts.active
                found = self._compute(expert, normed[rows], step.least_rows)
                out.index_add_(0, rows, (found * chances[places, None]).to(out.dtype))
                first += size
        return out

    def _route(self, normed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weights and the numbers of the experts of each row (rows x active)."""
        chances = torch.softmax(self.router(normed), -1, dtype=torch.float32)
        chances, chosen = torch.topk(chances, self._experts.active, -1)
        if self._experts.normed:
            chances = chances / chances.sum(-1, keepdim=True)
        return chances if self._experts.wide_weights else chances.to(normed.dtype), chosen

    def _compute(self, expert: int, rows: torch.Tensor, least: int) -> torch.Tensor:
        gate, up = self.gate_up[expert](padded(rows, least)).chunk(2, -1)
        return self.down[expert](F.silu(gate) * up)[: len(rows)]
