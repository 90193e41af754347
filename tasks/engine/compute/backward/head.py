"""Loss at the head: the last norm, logits and cross-entropy, in float32.

Logits of a batch may take gigabytes, so only some positions have theirs in memory at once, and only
those positions that count.
"""

from typing import Final

import torch

from ..model import ShardModel
from .matrices import Frozen, frozen
from .pacing import PassSpeed, Work, product, reverse
from .pointwise import FrozenNorm

LOGITS: Final = 1 << 24
"""Most logits in memory at once, unless fewer than LEAST positions have more."""
LEAST: Final = 16


class FrozenHead:
    """The head of a shard."""

    def __init__(self, model: ShardModel) -> None:
        """Read the head. Raises EngineError `no-backward` if its layout cannot be read."""
        head, norm = model.ends
        assert head is not None and norm is not None  # the shard has a head
        self._norm = FrozenNorm.of(norm)
        self._matrix: Frozen = frozen(head)
        self._cap = model.arch.logit_cap

    @property
    def positions(self) -> int:
        """Number of positions whose logits are in memory at once."""
        return max(LEAST, LOGITS // self._matrix.outputs)

    @property
    def weights(self) -> int:
        """Number of weights of the head."""
        return self._matrix.outputs * self._matrix.inputs

    def loss(
        self, x: torch.Tensor, targets: torch.Tensor, pace: PassSpeed, *, back: bool
    ) -> Work[tuple[float, torch.Tensor]]:
        """Compute the sum of the cross-entropies of positions x hidden.

        If `back`, also compute its derivative by `x`. `targets` are token ids, or negative for
        positions that do not count.
        """
        places = (targets >= 0).nonzero()[:, 0]
        some, losses = x[places], list[torch.Tensor]()
        normed, wanted = self._norm(some), targets[places]
        by_normed = torch.zeros_like(normed) if back else normed
        for first in range(0, len(places), self.positions):
            part = slice(first, min(first + self.positions, len(places)))
            logits = yield from product(self._matrix, normed[part], pace)
            losses += yield from self.entropies(logits, wanted[part], pace, back=back)
            if back:
                by_normed[part] = yield from reverse(self._matrix, logits, pace)
        # Summed at once: the bits of a sum of parts would depend on the pace.
        total = float(torch.cat(losses).double().sum()) if losses else 0.0
        if not back:
            return total, x
        found = torch.zeros_like(x)
        found[places] = self._norm.reverse(some, by_normed)
        return total, found

    def entropies(
        self, logits: torch.Tensor, targets: torch.Tensor, pace: PassSpeed, *, back: bool
    ) -> Work[list[torch.Tensor]]:
        """Compute the cross-entropies, and if `back` replace the logits by the derivatives of their
        sum."""
        losses = list[torch.Tensor]()
        for first, end, seconds in pace.rows(logits):
            yield seconds
            some, wanted = logits[first:end], targets[first:end, None]
            bent = torch.tanh(some / self._cap) if self._cap else None
            values = some if bent is None else bent * self._cap
            sums = torch.logsumexp(values, -1, keepdim=True)
            losses.append((sums - values.gather(1, wanted))[:, 0])
            if back:
                torch.exp(values - sums, out=some)
                some.scatter_add_(1, wanted, torch.full_like(sums, -1.0))
                if bent is not None:
                    some.mul_(1 - bent.square())
        return losses
