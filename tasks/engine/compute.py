"""Implementation of the core's computing in torch.

Tensors between the layers have the shape (positions, hidden).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch

from .budget import KvBudget
from .errors import EngineError
from .interface import Sampling, Span
from .kv import KV, raw_bytes
from .llama import ShardModel
from .sampling import choose
from .session import KvState
from .weights import TORCH_DTYPES
from .wire import Buffer


def computing() -> AbstractContextManager[None]:
    """Return the context manager inside which all computing must run."""
    context: AbstractContextManager[None] = torch.inference_mode()
    return context


class TorchCompute(ShardModel):
    """Implementation of the interface `Compute` (`core.py`) with a shard's weights in torch."""

    def state(self, root: str, tokens: int, budget: KvBudget) -> KV:
        return KV(root, self.arch, self.parts, self.dtype, tokens, budget)

    def source(self, span: Span) -> torch.Tensor:
        if span.hidden is None:
            return torch.tensor(span.tokens)
        hidden = torch.frombuffer(span.hidden, dtype=TORCH_DTYPES[self.dtype])
        hidden = hidden.view(span.count, self.arch.hidden)
        _check_finite(hidden, span.start)
        return hidden

    def fed_back(self, token: int) -> torch.Tensor:
        return torch.tensor((token,))

    def advance(
        self, source: torch.Tensor, first: int, count: int, state: KvState, position: int
    ) -> torch.Tensor:
        assert isinstance(state, KV)  # created by `state` above
        x = source if count == len(source) else source[first : first + count]
        if not source.is_floating_point():
            x = self.embed(x)
        return self.forward(x, state, position)

    def values(self, rows: torch.Tensor, logits: bool, position: int) -> torch.Tensor:
        out = self.logits(rows) if logits else rows
        _check_finite(out, position)
        return out

    def joined(self, outputs: Sequence[torch.Tensor]) -> Buffer:
        out = outputs[0] if len(outputs) == 1 else torch.cat(list(outputs))
        return raw_bytes(out.contiguous())

    def choose(self, rows: torch.Tensor, sampling: Sampling, position: int) -> tuple[int, float]:
        return choose(self.logits(rows[-1:])[0].numpy(), sampling, position)


def _check_finite(values: torch.Tensor, position: int) -> None:
    """Raise EngineError `not-finite` if any value is infinite or NaN."""
    if not bool(torch.isfinite(values).all()):
        raise EngineError("not-finite", f"values from position {position} on are not finite")
