"""Choice of tokens on a device, by the same rules as `sampling.py` (docs/spec/sampling.md).

The noise is identical, because it is integer arithmetic. Logarithms, exponentials and sums may be
rounded differently in the last of 53 bits, so a token could differ only if two scores, or a sum and
`top_p`, are that close. Nothing waits for the device before all choices are made.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch.nn import functional as F

from ..errors import EngineError
from ..interface import Sampling
from ..sampling import GOLDEN, MIX1, MIX2, Change, stream_of

_WORD = 1 << 64


class Peaks(NamedTuple):
    """For each row of logits (rows x vocabulary): the lowest id with the largest logit (int64), the
    largest logit (float32; NaN if one is), and the sum of exp(logit - largest) (float64)."""

    ids: torch.Tensor
    largest: torch.Tensor
    totals: torch.Tensor


def peaks(logits: torch.Tensor) -> Peaks:
    """Return the peaks of logits (rows x vocabulary)."""
    largest = logits.amax(1)
    totals = (logits - largest[:, None]).exp().sum(1, dtype=torch.float64)
    return Peaks(_first_largest(logits), largest, totals)


def choose_all(
    logits: torch.Tensor,
    asked: Sequence[tuple[Sampling, int]],
    peaks_of: Callable[[torch.Tensor], Peaks] = peaks,
    changes: Mapping[int, Change] = MappingProxyType({}),
) -> list[tuple[int, float] | EngineError]:
    """Return, for each row of `logits` (rows x vocabulary), the token and its log-probability.

    `asked` has the sampling parameters and the position of each row. `changes` are those of some
    rows' logits, by the row. The result of a row whose largest logit is not finite is an
    EngineError `not-finite`.
    """
    found = peaks_of(logits)
    ids, shaped, tops = found.ids, logits, found.largest
    if changes:
        shaped = _changed(logits, changes)
        ids, tops = _first_largest(shaped), shaped.amax(1)
    drawn = [row for row, (sampling, _) in enumerate(asked) if sampling.temperature > 0]
    if drawn:
        rows = torch.tensor(drawn, device=logits.device)
        some = _drawn(shaped[rows], tops[rows], [asked[row] for row in drawn])
        ids = ids.index_copy(0, rows, some)
    picked = logits.gather(1, ids[:, None])[:, 0].double()
    largest = found.largest.double()
    logprobs = picked - largest - found.totals.log()
    results = torch.stack((ids.double(), logprobs, largest)).tolist()  # waits for the device
    return [
        (int(token), logprob) if top - top == 0.0 else _not_finite(position)
        for token, logprob, top, (_, position) in zip(*results, asked, strict=True)
    ]


def _changed(logits: torch.Tensor, changes: Mapping[int, Change]) -> torch.Tensor:
    """Return logits with changed values. They have the bits of those that `Change.of` returns."""
    shaped, where = logits.clone(), logits.device
    for row, change in changes.items():
        ids, bias, repetition, penalty = (torch.from_numpy(each).to(where) for each in change)
        biased = logits[row, ids].double() + bias
        divided = torch.where(biased > 0, biased / repetition, biased * repetition)
        shaped[row, ids] = (divided - penalty).float()
    return shaped


def _not_finite(position: int) -> EngineError:
    return EngineError("not-finite", f"the logits for position {position} are not finite")


def _drawn(
    logits: torch.Tensor, largest: torch.Tensor, asked: Sequence[tuple[Sampling, int]]
) -> torch.Tensor:
    """Return the ids (int64) that are drawn for rows with a temperature."""
    where = logits.device
    heat = torch.tensor([sampling.temperature for sampling, _ in asked], dtype=torch.float64)
    scaled = (logits.double() - largest.double()[:, None]) / heat.to(where)[:, None]
    size = logits.shape[1]
    seeded = [(sampling.seed, position) for sampling, position in asked]
    scores = scaled + gumbel(seeded, size, where)
    if any(sampling.min_p > 0 for sampling, _ in asked):
        least = [math.log(each.min_p) if each.min_p > 0 else -math.inf for each, _ in asked]
        least_of = torch.tensor(least, dtype=torch.float64).to(where)[:, None]
        scaled = scaled.where(scaled >= least_of, -torch.inf)
        scores = scores.where(scaled > -torch.inf, -torch.inf)
    limits = [(min(sampling.top_k or size, size), sampling.top_p) for sampling, _ in asked]
    limited = [row for row, each in enumerate(limits) if each != (size, 1.0)]
    if limited:
        rows = torch.tensor(limited, device=where)
        kept = _kept(scaled[rows], [limits[row] for row in limited])
        scores = scores.index_copy(0, rows, scores[rows].where(kept, -torch.inf))
    return _first_largest(scores)


def _first_largest(scores: torch.Tensor) -> torch.Tensor:
    """Return the lowest id with the largest score of each row. `argmax` may return another one."""
    ids = torch.arange(scores.shape[1], device=scores.device)
    last = scores.shape[1] - 1  # if all scores are NaN
    return torch.where(scores == scores.amax(1, keepdim=True), ids, last).amin(1)


def _kept(scaled: torch.Tensor, limits: Sequence[tuple[int, float]]) -> torch.Tensor:
    """Return a mask of the ids that pass each row's limits, top_k and top_p."""
    where, size = scaled.device, scaled.shape[1]
    values, order = torch.sort(scaled, dim=1, descending=True, stable=True)
    most = torch.tensor([top_k for top_k, _ in limits], device=where)[:, None]
    share = torch.tensor([top_p for _, top_p in limits], dtype=torch.float64).to(where)[:, None]
    ranked = torch.arange(size, device=where) < most
    pool = values.exp().where(ranked, 0.0)
    before = F.pad(pool.cumsum(1)[:, :-1], (1, 0))
    keep = ranked & ((before / pool.sum(1, keepdim=True) < share) | (share >= 1.0))
    keep[:, 0] = True
    return torch.zeros_like(keep).scatter_(1, order, keep)


def gumbel(seeded: Sequence[tuple[int, int]], size: int, device: torch.device) -> torch.Tensor:
    """Return the standard Gumbel noise (rows x size) for (seed, position, id).

    There is a row for each pair of seed and position, and a column for each id below `size`.
    """
    streams = torch.tensor([_signed(stream_of(*each)) for each in seeded], device=device)
    words = torch.arange(1, size + 1, device=device) * _signed(GOLDEN)
    mixed = mix(words + streams[:, None])
    uniform = (_shifted(mixed, 12).double() + 0.5) * 2.0**-52
    return -torch.log(-torch.log(uniform))


def mix(words: torch.Tensor) -> torch.Tensor:
    """Return the SplitMix64 hash of each word. Words are int64 with the bits of an unsigned one."""
    words = (words ^ _shifted(words, 30)) * _signed(MIX1)
    words = (words ^ _shifted(words, 27)) * _signed(MIX2)
    return words ^ _shifted(words, 31)


def _shifted(words: torch.Tensor, count: int) -> torch.Tensor:
    """Return the words shifted to the right, with zeros from the left. torch's shift copies the
    sign."""
    return (words >> count) & ((1 << (64 - count)) - 1)


def _signed(word: int) -> int:
    """Return the signed integer with the bits of an unsigned 64-bit one."""
    word %= _WORD
    return word - _WORD if word >= _WORD // 2 else word
