"""Choice of a token by its logits, as specified in docs/spec/sampling.md.

Uses only numpy, so that anyone can audit it. The method is Gumbel-max: the argmax of `logits / T +
Gumbel noise` is a draw from the softmax. The noise is a hash of (seed, position, token id), so no
state passes from one token to the next.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import EngineError
from .interface import Likely, Sampling

Logits = NDArray[np.float32]
Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
Words = NDArray[np.uint64]

_MASK = (1 << 64) - 1
_AT_ONCE = 1 << 18  # logits of which the likeliest tokens are found together
GOLDEN = 0x9E3779B97F4A7C15
MIX1 = 0xBF58476D1CE4E5B9
MIX2 = 0x94D049BB133111EB
_DOUBT = 1e-9  # part of top_p by which sums in another order might differ, many times over


class Change(NamedTuple):
    """Changes of the logits of some token ids, by a session's rules: `bias` is added, then the sum
    is divided by `repetition` if it is positive, else multiplied by it, then `penalty` is
    subtracted."""

    ids: Ids  # each at most once
    bias: Floats
    repetition: Floats
    penalty: Floats

    def of(self, values: Logits) -> Logits:
        """Return the changed logits of the ids from their logits."""
        biased = values.astype(np.float64) + self.bias
        divided = np.where(biased > 0, biased / self.repetition, biased * self.repetition)
        return (divided - self.penalty).astype(np.float32)


class Peak(NamedTuple):
    """The likeliest token of a row of logits, its logit, and the logarithm of the sum of
    exp(logit - largest) of all tokens."""

    token: int
    logit: float
    log_total: float


def row_peaks(rows: Logits) -> list[Peak]:
    """Return the peak of each row (rows x vocabulary).

    A row has the same peak beside any other rows.
    """
    some = max(1, _AT_ONCE // rows.shape[1])  # more would not stay in the processor's cache
    if len(rows) == 1 or some == 1:
        return [_peak(row) for row in rows]
    return [peak for at in range(0, len(rows), some) for peak in _peaks(rows[at : at + some])]


def _peak(logits: Logits) -> Peak:
    """Return the first NaN if there is one, else the lowest id with the largest logit."""
    token = int(logits.argmax())
    largest = logits[token]
    if not math.isfinite(largest):
        return Peak(token, float(largest), math.nan)
    total = float(np.exp(logits - largest).sum(dtype=np.float64))
    return Peak(token, float(largest), math.log(total))


def _peaks(rows: Logits) -> Iterator[Peak]:
    """Yield the peak of each row, one after the other, which is faster for few logits."""
    tokens = rows.argmax(axis=1)
    largest = rows[np.arange(len(rows)), tokens]
    with np.errstate(all="ignore"):  # of rows that are not finite, of which nothing else is used
        totals = np.exp(rows - largest[:, None]).sum(axis=1, dtype=np.float64)
    for token, logit, total in zip(tokens.tolist(), largest.tolist(), totals.tolist(), strict=True):
        yield Peak(token, logit, math.log(total) if math.isfinite(logit) else math.nan)


def choose(
    logits: Logits,
    sampling: Sampling,
    position: int,
    change: Change | None = None,
    peak: Peak | None = None,
) -> tuple[int, float]:
    """Return the token at `position` and its log-probability at temperature 1, without the change.

    `logits` has one float32 per token id. `peak` is what `row_peaks` returns for them, if it
    is known. Raises EngineError `not-finite` if the largest is infinite or NaN.
    """
    token, largest, log_total = peak or _peak(logits)
    if not math.isfinite(largest):
        raise EngineError("not-finite", f"the logits for position {position} are not finite")
    shaped, top = logits, largest
    if change is not None:
        shaped = logits.copy()
        shaped[change.ids] = change.of(logits[change.ids])
        token = int(shaped.argmax())
        top = float(shaped[token])
    if sampling.temperature > 0:
        token = _draw(shaped, top, sampling, position)
    return token, float(logits[token]) - largest - log_total


def most_likely(logits: Logits, count: int) -> tuple[Likely, ...]:
    """Return the `count` tokens with the largest logits, with their log-probabilities at
    temperature 1, in descending order. Ties: ascending ids. All logits must be numbers."""
    ids = _leading(logits, min(count, len(logits)))
    _, largest, log_total = _peak(logits)
    return tuple((int(each), float(logits[each]) - largest - log_total) for each in ids)


def _draw(logits: Logits, largest: float, sampling: Sampling, position: int) -> int:
    """Return a token drawn at random with the given parameters.

    A token that wins by its noise among all is the choice if it passes top_p, which the sum of
    those before it tells without an order. Otherwise the choice is among those before it. Their
    probabilities sum up to a random part of the former ones, so few rounds suffice for any top_p.
    """
    with np.errstate(over="ignore"):  # at a tiny temperature, others may be infinitely far below
        scaled = (logits.astype(np.float64) - largest) / sampling.temperature
    top_k, top_p = sampling.top_k, sampling.top_p
    ids, values = np.arange(len(scaled)), scaled
    if sampling.min_p > 0:
        scaled = np.where(scaled < math.log(sampling.min_p), -math.inf, scaled)
    if 0 < top_k < len(scaled) or sampling.min_p > 0:
        ids = np.flatnonzero(scaled > -math.inf)  # the others never win, but slow a partition down
        if 0 < top_k < len(ids):
            ids = ids[_largest(scaled[ids], top_k)]
        values = scaled[ids]
    scores = values + gumbel(sampling.seed, position, ids)
    if top_p >= 1.0:
        return int(ids[scores.argmax()])
    chances = np.exp(values)
    total = chances.sum()
    while True:
        best = int(scores.argmax())  # the lowest id among equals
        before = values > values[best]
        before[:best] |= values[:best] == values[best]
        share = float(chances[before].sum() / total)
        if abs(share - top_p) < _DOUBT * top_p:
            break
        if share < top_p:
            return int(ids[best])
        ids, values = ids[before], values[before]
        scores, chances = scores[before], chances[before]
    ids = kept(scaled, top_k, top_p)
    scores = scaled[ids] + gumbel(sampling.seed, position, ids)
    return int(ids[scores == scores.max()].min())


def kept(scaled: Floats, top_k: int, top_p: float) -> Ids:
    """Return the ids that pass top_k and top_p in their order, which takes a sort of them all.

    `top_k` is a number of ids, and `top_p` a part of the probability, 0 to 1. `scaled` is
    (logits - max) / temperature.
    """
    size = len(scaled)
    ids = _leading(scaled, min(top_k or size, size))
    if top_p >= 1.0:
        return ids
    chances = np.exp(scaled[ids])
    total = chances.sum() if len(ids) < size else np.exp(scaled).sum()
    after = np.cumsum(chances) / total
    return ids[: 1 + int(np.count_nonzero(after[:-1] < top_p))]


def _leading(scaled: Floats | Logits, count: int) -> Ids:
    """Return the `count` ids with the largest values, in descending order. Ties: ascending ids."""
    ids = np.arange(len(scaled)) if count >= len(scaled) else _largest(scaled, count)
    return ids[np.argsort(-scaled[ids], kind="stable")]


def _largest(scaled: Floats | Logits, count: int) -> Ids:
    """Return the ids with the `count` largest values, of more than `count`, in ascending order."""
    bound = np.partition(scaled, len(scaled) - count)[len(scaled) - count]
    found = scaled > bound
    equal = np.flatnonzero(scaled == bound)
    found[equal[: count - np.count_nonzero(found)]] = True
    return np.flatnonzero(found)


def gumbel(seed: int, position: int, ids: Ids) -> Floats:
    """Return the standard Gumbel noise for (seed, position, id), for each id."""
    stream = np.uint64(stream_of(seed, position))
    words = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(GOLDEN) + stream
    uniform = ((_mix(words) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return -np.log(-np.log(uniform))


def stream_of(seed: int, position: int) -> int:
    """Return the 64-bit word from which the noise of all ids at a position is derived."""
    return _mix_one(_mix_one(seed & _MASK) + (position + 1) * GOLDEN)


def _mix(words: Words) -> Words:
    """Return the SplitMix64 hash of each word."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(MIX1)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(MIX2)
    return words ^ (words >> np.uint64(31))


def _mix_one(word: int) -> int:
    """Return the SplitMix64 hash of one word."""
    word &= _MASK
    word = (word ^ (word >> 30)) * MIX1 & _MASK
    word = (word ^ (word >> 27)) * MIX2 & _MASK
    return word ^ (word >> 31)
