"""Chooses how many chunks to fetch, and which to compute. Pure functions.

A chunk is of use only after all chunks before it. Computing one takes longer the later it is,
because each position attends to all before it, and fetching takes the same for each. So the choice
is how many chunks to fetch before the rest is computed.
"""

from dataclasses import dataclass

from ..costs.rates import LinkRates
from ..costs.seconds import transfer_seconds
from ..costs.shardcosts import ShardCosts
from ..defaults import PREFILL_TOKENS
from ..engine.defaults import PREFILL_STEP_FACTOR, PREFILL_STEP_S
from ..engine.kv.blocks import BLOCK
from .naming import CHUNK


def compute_seconds(costs: ShardCosts, start: int, stop: int) -> float:
    """Return the seconds in which a stage computes the positions `start` to `stop` - 1 of a
    prompt."""
    rows = max(0, stop - start)
    steps = -(-rows // _rows_of_a_step(costs, start, stop))
    return (steps - 1) * costs.step_s + costs.seconds(rows, start)


def rows_computed(costs: ShardCosts, start: int, seconds: float) -> int:
    """Return how many positions from `start` on a stage computes in `seconds`, at most."""
    row = costs.row_s + costs.pair_s * start
    return int(seconds / row) if row > 0 else 0


def _rows_of_a_step(costs: ShardCosts, start: int, stop: int) -> int:
    """Return how many positions of a prompt an engine computes in a step, on average.

    A step takes whole blocks within the scheduler's budget for steps without running texts, so a
    slow machine reads its weights more often than once for each span.
    """
    budget = max(PREFILL_STEP_S, PREFILL_STEP_FACTOR * costs.seconds(1)) - costs.step_s
    row = costs.row_s + costs.pair_s * (start + stop) / 2
    if row * PREFILL_TOKENS <= budget:
        return PREFILL_TOKENS
    return max(BLOCK, int(budget / row) // BLOCK * BLOCK)


def fetch_seconds(link: LinkRates, size: int) -> float:
    """Return the seconds until parts of `size` bytes have arrived that are asked for now."""
    return link.round_trip_s / 2 + transfer_seconds(link, size)


@dataclass(frozen=True, slots=True)
class FetchAmount:
    """How many chunks to fetch, and the predicted seconds of that and of computing them."""

    chunks: int
    fetch_s: float
    compute_s: float


def worthwhile(
    costs: ShardCosts, link: LinkRates, chunk_bytes: int, first: int, most: int
) -> FetchAmount:
    """Return how many chunks, at most `most`, to fetch from number `first` on.

    This number saves the most seconds. It is 0 if none saves time. `chunk_bytes` is the size of
    one chunk in all layers.
    """
    best = FetchAmount(0, 0.0, 0.0)
    for chunks in range(1, most + 1):
        fetch = fetch_seconds(link, chunks * chunk_bytes)
        compute = compute_seconds(costs, first * CHUNK, (first + chunks) * CHUNK)
        if compute - fetch > best.compute_s - best.fetch_s:
            best = FetchAmount(chunks, fetch, compute)
    return best
