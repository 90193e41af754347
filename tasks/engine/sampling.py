"""Choice of a token by its logits, as specified in docs/spec/sampling.md.

Uses only numpy, so that anyone can audit it. The method is Gumbel-max: the argmax of `logits / T +
Gumbel noise` is a draw from the softmax. The noise is a hash of (seed, position, token id), so no
state passes from one token to the next.
"""

import math

import numpy as np
from numpy.typing import NDArray

from .errors import EngineError
from .interface import Likely, Sampling

Logits = NDArray[np.float32]
Floats = NDArray[np.float64]
Ids = NDArray[np.int64]
Words = NDArray[np.uint64]

_MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MIX1 = 0xBF58476D1CE4E5B9
MIX2 = 0x94D049BB133111EB
_FIRST_GUESS = 256  # tokens that are sorted first; top_p rarely needs more


def choose(logits: Logits, sampling: Sampling, position: int) -> tuple[int, float]:
    """Return the token at `position` and its log-probability at temperature 1.

    `logits` has one float32 per token id. Raises EngineError `not-finite` if the largest is
    infinite or NaN.
    """
    # The first NaN if there is one, else the lowest id with the largest logit.
    token = int(logits.argmax())
    largest = float(logits[token])
    if not math.isfinite(largest):
        raise EngineError("not-finite", f"the logits for position {position} are not finite")
    if sampling.temperature > 0:
        token = _draw(logits, largest, sampling, position)
    return token, float(logits[token]) - largest - _log_total(logits, largest)


def _log_total(logits: Logits, largest: float) -> float:
    """Return the logarithm of the sum of exp(logits - largest)."""
    return math.log(float(np.exp(logits - np.float32(largest)).sum(dtype=np.float64)))


def most_likely(logits: Logits, count: int) -> tuple[Likely, ...]:
    """Return the `count` tokens with the largest logits, with their log-probabilities at
    temperature 1, in descending order. Ties: ascending ids. All logits must be numbers."""
    ids = _leading(logits, min(count, len(logits)))
    largest = float(logits[ids[0]])
    total = _log_total(logits, largest)
    return tuple((int(each), float(logits[each]) - largest - total) for each in ids)


def _draw(logits: Logits, largest: float, sampling: Sampling, position: int) -> int:
    """Return a token drawn at random with the given parameters."""
    scaled = (logits.astype(np.float64) - largest) / sampling.temperature
    ids = kept(scaled, sampling.top_k, sampling.top_p)
    scores = scaled[ids] + gumbel(sampling.seed, position, ids)
    return int(ids[scores == scores.max()].min())


def kept(scaled: Floats, top_k: int, top_p: float) -> Ids:
    """Return the ids that pass top_k and top_p. `scaled` is (logits - max) / temperature."""
    size = len(scaled)
    limit = min(top_k or size, size)
    if top_p >= 1.0:
        return np.arange(size) if limit == size else _leading(scaled, limit)
    pool = scaled if limit == size else scaled[_leading(scaled, limit)]
    total = np.exp(pool).sum()
    guess = min(_FIRST_GUESS, limit)
    while True:
        ids = _leading(scaled, guess)
        after = np.cumsum(np.exp(scaled[ids])) / total
        count = 1 + int(np.count_nonzero(after[:-1] < top_p))
        if count < guess or guess == limit:
            return ids[:count]
        guess = min(guess * 8, limit)


def _leading(scaled: Floats | Logits, count: int) -> Ids:
    """Return the `count` ids with the largest values, in descending order. Ties: ascending ids."""
    ids = np.arange(len(scaled))
    if count < len(scaled):
        bound = np.partition(scaled, len(scaled) - count)[len(scaled) - count]
        ids = np.flatnonzero(scaled >= bound)
    return ids[np.argsort(-scaled[ids], kind="stable")][:count]


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
