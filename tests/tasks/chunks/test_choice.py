"""The choice between fetching and computing, against an oracle that tries everything."""

from itertools import product

import pytest

from shoal.tasks.chunks.choice import FetchAmount, compute_seconds, fetch_seconds, worthwhile
from shoal.tasks.chunks.naming import CHUNK
from shoal.tasks.costs.rates import LinkRates
from shoal.tasks.costs.shardcosts import ShardCosts

TINYLLAMA = ShardCosts(0.2, 1 / 91, 2e-7)
BYTES = 22 * CHUNK * 528


def total(costs: ShardCosts, link: LinkRates, first: int, chunks: int, most: int) -> float:
    fetch = fetch_seconds(link, chunks * BYTES) if chunks else 0.0
    return fetch + compute_seconds(costs, (first + chunks) * CHUNK, (first + most) * CHUNK)


@pytest.mark.parametrize("first", [0, 3])
def test_no_other_number_of_chunks_is_faster(first: int) -> None:
    rates = (1e4, 1e5, 5e5, 1e6, 1.25e7, 1.25e9)
    for rate, trip, speed in product(rates, (0.0, 0.02, 0.5), (0.1, 1.0, 30.0)):
        link = LinkRates(trip, rate)
        costs = ShardCosts(*(speed * each for each in TINYLLAMA))
        chosen = worthwhile(costs, link, BYTES, first, 15)
        times = [total(costs, link, first, chunks, 15) for chunks in range(16)]
        assert times[chosen.chunks] == pytest.approx(min(times), rel=1e-9)


def test_later_chunks_may_be_worth_fetching_where_early_ones_are_not() -> None:
    costs = ShardCosts(0.0, 0.001, 1e-5)
    link = LinkRates(0.01, BYTES / compute_seconds(costs, 7 * CHUNK, 8 * CHUNK))
    assert worthwhile(costs, link, BYTES, 0, 4).chunks == 0
    assert worthwhile(costs, link, BYTES, 0, 40).chunks == 40


def test_nothing_is_fetched_where_nothing_is_known_or_there() -> None:
    assert worthwhile(ShardCosts(), LinkRates(), BYTES, 0, 5) == FetchAmount(0, 0.0, 0.0)
    assert worthwhile(TINYLLAMA, LinkRates(), BYTES, 0, 0).chunks == 0


def test_an_unlimited_link_is_used() -> None:
    assert worthwhile(TINYLLAMA, LinkRates(0.02, 0.0), BYTES, 0, 5).chunks == 5


def test_a_slow_machine_computes_a_prompt_in_many_steps() -> None:
    """The budget of its steps has room for 48 positions at this depth, not for a whole span."""
    costs = ShardCosts(0.139, 0.00915, 1.0746e-6)
    found = compute_seconds(costs, 3840, 4000)
    assert found == pytest.approx(3 * 0.139 + costs.seconds(160, 3840))
    assert found == pytest.approx(2.68, rel=0.02)  # of the simulated engine
    assert compute_seconds(costs, 0, 4000) == pytest.approx(54.5, rel=0.03)


def test_a_fast_machine_computes_a_whole_span_in_one_step() -> None:
    costs = ShardCosts(0.001, 0.0001, 1e-9)
    assert compute_seconds(costs, 0, 256) == pytest.approx(costs.seconds(256))
    assert compute_seconds(costs, 0, 257) == pytest.approx(costs.seconds(257) + 0.001)
