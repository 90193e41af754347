"""How the products of queries and keys become the weights of values."""

from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Scoring:
    """Scale and cap of the scores of one layer.

    `scale` multiplies the products of queries and keys (None: head_dim ** -0.5). A `cap` other than
    0 limits them to `cap * tanh(score / cap)`. `sinks` are scores, one for each head, that take
    their part of a row's attention and add nothing.
    """

    scale: float | None = None
    cap: float = 0.0
    sinks: torch.Tensor | None = None

    def attend(
        self,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the attention of queries (1 x heads x rows x head_dim), in this shape.

        `keys` and `values` have the shape (1, kv_heads, positions, head_dim). `mask` (rows x
        positions) is True where a row may attend. Rows and heads that share keys are multiplied
        together.
        """
        if not self.cap and self.sinks is None:
            return F.scaled_dot_product_attention(
                queries,
                keys,
                values,
                attn_mask=mask,
                scale=self.scale,
                enable_gqa=queries.shape[1] != keys.shape[1],
            )
        _, heads, rows, width = queries.shape
        grouped = queries.reshape(keys.shape[1], -1, width)
        scores = torch.matmul(grouped, keys[0].transpose(1, 2)).mul_(self.scale or width**-0.5)
        if self.cap:
            scores = torch.tanh(scores / self.cap) * self.cap
        scores = scores.view(heads, rows, -1)
        if mask is not None:
            scores.masked_fill_(~mask, -torch.inf)
        if self.sinks is not None:
            sinks = self.sinks.view(heads, -1, 1).expand(heads, rows, 1)
            scores = torch.cat((scores, sinks), -1)
            scores -= scores.amax(-1, keepdim=True)  # rounded, as in transformers
        weights = torch.softmax(scores, -1, dtype=torch.float32).to(queries.dtype)
        if self.sinks is not None:
            weights = weights[..., :-1].contiguous()
        attended = torch.matmul(weights.view(keys.shape[1], -1, weights.shape[-1]), values[0])
        return attended.view(queries.shape)


PLAIN: Final = Scoring()
