"""Choice of tokens on a device, by the same rules as `sampling.py` (docs/spec/sampling.md).

The noise is identical, because it is integer arithmetic. Logarithms, exponentials and sums may be
rounded differently in the last of 53 bits, so a token could differ only if two scores, or a sum and
`top_p`, are that close. Nothing waits for the device before all choices are made.
"""

import torch

from ..errors import EngineError
from ..interface import Sampling
from ..sampling import GOLDEN, MIX1, MIX2, stream_of

_WORD = 1 << 64


def choose_all(
    logits: torch.Tensor, asked: list[tuple[Sampling, int]]
) -> list[tuple[int, float] | EngineError]:
    """Return, for each row of `logits` (rows x vocabulary), the token and its log-probability.

    `asked` has the sampling parameters and the position of each row. The result of a row whose
    largest logit is not finite is an EngineError `not-finite`.
    """
    rows = [_chosen(row, *each) for row, each in zip(logits, asked, strict=True)]
    found: list[tuple[int, float] | EngineError] = []
    for (_, position), (token, logprob, largest) in zip(
        asked, torch.stack(rows).tolist(), strict=True
    ):
        if largest - largest == 0.0:
            found.append((int(token), logprob))
        else:
            message = f"the logits for position {position} are not finite"
            found.append(EngineError("not-finite", message))
    return found


def _chosen(logits: torch.Tensor, sampling: Sampling, position: int) -> torch.Tensor:
    """Return (token, log-probability, largest logit) as three float64 values on the device."""
    largest = logits.max()  # NaN if any logit is
    if sampling.temperature > 0:
        scaled = (logits.double() - largest.double()) / sampling.temperature
        scores = scaled + gumbel(sampling.seed, position, len(logits), logits.device)
        kept = _kept(scaled, sampling.top_k, sampling.top_p)
        if kept is not None:
            scores = scores.where(kept, -torch.inf)
        token = _first_largest(scores)
    else:
        token = _first_largest(logits)
    total = (logits - largest).exp().sum(dtype=torch.float64)
    logprob = logits.gather(0, token[None])[0].double() - largest.double() - total.log()
    return torch.stack((token.double(), logprob, largest.double()))


def _first_largest(scores: torch.Tensor) -> torch.Tensor:
    """Return the lowest id with the largest score. `argmax` may return another one."""
    ids = torch.arange(len(scores), device=scores.device)
    last = len(scores) - 1  # if all scores are NaN
    return torch.where(scores == scores.max(), ids, last).min()


def _kept(scaled: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor | None:
    """Return a mask of the ids that pass top_k and top_p, or None if all do."""
    size = len(scaled)
    limit = min(top_k or size, size)
    if limit == size and top_p >= 1.0:
        return None
    values, order = torch.sort(scaled, descending=True, stable=True)
    pool = values[:limit].exp()
    keep = torch.ones(limit, dtype=torch.bool, device=scaled.device)
    if top_p < 1.0:
        keep[1:] = pool.cumsum(0)[:-1] / pool.sum() < top_p
    mask = torch.zeros(size, dtype=torch.bool, device=scaled.device)
    return mask.index_put_((order[:limit],), keep)


def gumbel(seed: int, position: int, size: int, device: torch.device) -> torch.Tensor:
    """Return the standard Gumbel noise for (seed, position, id), for each id below `size`."""
    words = torch.arange(1, size + 1, device=device) * _signed(GOLDEN)
    mixed = mix(words + _signed(stream_of(seed, position)))
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
