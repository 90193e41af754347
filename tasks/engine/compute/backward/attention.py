"""Causal attention within sequences, and its derivatives by queries, keys and values.

Sequences and heads of keys are independent, so a unit of work has some of both. torch's own
derivative is used. A unit therefore computes its attention again, with little memory.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from ..scores import PLAIN, Scoring
from .pacing import PassSpeed, Work

if TYPE_CHECKING:
    from .layer import Sequences

Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_BACK: float = 3.5
"""Time of attention and its derivative, as a multiple of the time of attention alone."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of a model's attention."""

    heads: int
    kv_heads: int
    width: int  # of one head
    gated: bool = False

    def split(self, rows: torch.Tensor, step: "Sequences") -> Triple:
        """Return queries, keys and values from positions x values: views of sequences x length x
        heads x head_dim. Rows of queries alone have no others."""
        found = rows.view(step.rows, step.length, -1, self.width)
        keys = found[:, :, self.heads : self.heads + self.kv_heads]
        return found[:, :, : self.heads], keys, found[:, :, self.heads + self.kv_heads :]


def attend(triple: Triple, scoring: Scoring, window: int, pace: PassSpeed) -> Work[torch.Tensor]:
    """Compute the attention of queries, keys and values (sequences x length x heads x head_dim), as
    positions x values."""
    queries, keys, values = map(_paired, triple, (triple[1].shape[2],) * 3)
    out = torch.empty_like(queries)
    mask = _mask(queries, window, scoring)
    for first, end, seconds in pace.parts(len(queries), _seconds(queries, pace)):
        yield seconds
        some = slice(first, end)
        out[some] = _attend(queries[some], keys[some], values[some], scoring, mask)
    return _joined(out, triple[0])


def attend_reverse(
    triple: Triple, gradient: torch.Tensor, scoring: Scoring, window: int, pace: PassSpeed
) -> Work[Triple]:
    """Compute the derivatives by queries, keys and values from that by the result of `attend`
    (`gradient`, in the shape of the queries). `window` is in positions; 0 means none."""
    kv_heads = triple[1].shape[2]
    queries, keys, values = map(_paired, triple, (kv_heads,) * 3)
    gradients = _paired(gradient, kv_heads)
    mask = _mask(queries, window, scoring)
    found = tuple(torch.empty_like(each) for each in (queries, keys, values))
    for first, end, seconds in pace.parts(len(queries), _BACK * _seconds(queries, pace)):
        yield seconds
        some = slice(first, end)
        with torch.enable_grad():
            leaves = [each[some].detach().requires_grad_() for each in (queries, keys, values)]
            out = _attend(leaves[0], leaves[1], leaves[2], scoring, mask)
            # With `grad_outputs`, torch imports a solver of equations first, which takes a second.
            parts = torch.autograd.grad((out * gradients[some]).sum(), leaves)
        for whole, part in zip(found, parts, strict=True):
            whole[some] = part
    by_queries, by_keys, by_values = (
        _unpaired(each, like) for each, like in zip(found, triple, strict=True)
    )
    return by_queries, by_keys, by_values


def attended(triple: Triple, scoring: Scoring, window: int) -> torch.Tensor:
    """Return the attention of queries, keys and values at once, as positions x values. torch can
    record its derivative."""
    queries, keys, values = map(_paired, triple, (triple[1].shape[2],) * 3)
    mask = _mask(queries, window, scoring)
    return _joined(_attend(queries, keys, values, scoring, mask), triple[0])


def warm_up() -> None:
    """Compute one derivative, because the first one of a process takes longer."""
    with torch.inference_mode(False), torch.enable_grad():
        leaf = torch.zeros(1, 1, 16, 16, requires_grad=True)
        torch.autograd.grad(_attend(leaf, leaf, leaf, PLAIN, None).sum(), leaf)


def _paired(heads: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """Return heads (sequences x length x heads x head_dim) as pairs of a sequence and a head of
    keys: pairs x heads that share it x length x head_dim."""
    rows, length, count, width = heads.shape
    grouped = heads.reshape(rows, length, kv_heads, count // kv_heads, width)
    return grouped.permute(0, 2, 3, 1, 4).reshape(rows * kv_heads, -1, length, width)


def _unpaired(pairs: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return pairs as heads in the shape of `like`."""
    rows, length, _, width = like.shape
    grouped = pairs.view(rows, -1, pairs.shape[1], length, width)
    return grouped.permute(0, 3, 1, 2, 4).reshape(like.shape)


def _joined(pairs: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return pairs as positions x values."""
    return _unpaired(pairs, like).flatten(2).flatten(0, 1)


def _attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scoring: Scoring,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """Return the attention of pairs (pairs x heads x length x head_dim)."""
    shape = queries.shape
    keys, values = keys.expand(shape), values.expand(shape)
    if not scoring.cap:
        return F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=mask is None, scale=scoring.scale
        )
    scores = torch.matmul(queries, keys.transpose(-1, -2)) * (scoring.scale or shape[-1] ** -0.5)
    scores = torch.tanh(scores / scoring.cap) * scoring.cap
    assert mask is not None  # `_mask` makes one for a cap
    return torch.matmul(torch.softmax(scores.masked_fill(~mask, -torch.inf), -1), values)


def _mask(queries: torch.Tensor, window: int, scoring: Scoring) -> torch.Tensor | None:
    """Return which position may attend to which, or None if it is to all before it."""
    length, device = queries.shape[2], queries.device
    if not scoring.cap and not 0 < window < length:
        return None
    places = torch.arange(length, device=device)
    mask = places[None] <= places[:, None]
    if window:
        mask &= places[None] > places[:, None] - window
    return mask


def _seconds(queries: torch.Tensor, pace: PassSpeed) -> float:
    """Return the predicted seconds of the attention of one pair."""
    length = queries.shape[2]
    return pace.pair_s * float(length * (length + 1) // 2)
