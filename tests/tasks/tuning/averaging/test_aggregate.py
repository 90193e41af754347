"""Robust aggregation: the same bits everywhere, and little influence for one author."""

import tracemalloc
from functools import partial

import numpy as np
import pytest

from bench.worlds.volunteers import peer_number
from shoal.tasks.tuning.averaging import aggregate as aggregation
from shoal.tasks.tuning.averaging.actions import ComputeState, Known
from shoal.tasks.tuning.averaging.aggregate import (
    Weighed,
    aggregate,
    lower_median,
    norm_of,
    weights_of,
)
from shoal.tasks.tuning.averaging.codecs import Codec, Vector, decode, encode
from shoal.tasks.tuning.averaging.outer import first_state
from shoal.tasks.tuning.averaging.steps import PeerUpdate, genesis, step_of
from shoal.tasks.tuning.averaging.terms import RunTerms
from shoal.transport.identity import public_key_of
from tests.tasks.tuning.averaging.test_codecs import drawn


def weighed(vector: Vector, tokens: int = 100, points: int = 0) -> Weighed:
    return Weighed(vector, norm_of(vector), tokens, points)


def test_the_norm_is_that_of_numpy() -> None:
    for values in (1, 3, 65536, 65537, 200_000):
        vector = drawn(values, seed=values)
        assert norm_of(vector) == pytest.approx(float(np.linalg.norm(vector)), rel=1e-5)


def test_the_norm_adds_in_a_fixed_order() -> None:
    """The sum as specified, by plain Python floats, has the same bits."""
    vector = drawn(70_000)
    total = 0.0
    for start in (0, 65536):
        squares = [float(x) ** 2 for x in vector[start : start + 65536]]
        squares += [0.0] * ((1 << (len(squares) - 1).bit_length()) - len(squares))
        while len(squares) > 1:
            half = len(squares) // 2
            squares = [a + b for a, b in zip(squares[:half], squares[half:], strict=True)]
        total += squares[0]
    assert norm_of(vector) == float(np.sqrt(total))


def test_the_norm_needs_little_memory() -> None:
    vector = drawn(2_000_000)
    tracemalloc.start()
    norm_of(vector)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.2e6


def test_the_mean_weighs_by_tokens() -> None:
    a, b = np.full(5, 1, np.float32), np.full(5, -1, np.float32)
    mean = aggregate([weighed(a, 300), weighed(b, 200)], trim=False)
    np.testing.assert_allclose(mean, 0.2, rtol=1e-6)


def test_claimed_tokens_add_little_weight() -> None:
    weights = weights_of([weighed(drawn(4), tokens) for tokens in (100, 100, 2**40)])
    assert weights == [0.25, 0.25, 0.5]


def test_refused_updates_cost_weight_later() -> None:
    weights = weights_of([weighed(drawn(4)), weighed(drawn(4), points=4)])
    assert weights == pytest.approx([2 / 3, 1 / 3])


@pytest.mark.parametrize("trim", [False, True])
def test_one_large_update_is_clipped(trim: bool) -> None:
    honest = [drawn(1000, seed) for seed in range(4)]
    poison = -200 * honest[0]
    without = aggregate([weighed(each) for each in honest], trim=trim)
    mean = aggregate([weighed(each) for each in [*honest, poison]], trim=trim)
    assert np.linalg.norm(mean - without) < 2.1 / 5 * np.linalg.norm(honest[0]) * 1.5


def test_trimming_ignores_the_extremes_of_each_value() -> None:
    rows = [np.full(3, each, np.float32) for each in (1.0, 1.1, 1.2, 1.3, -1.2)]
    np.testing.assert_allclose(aggregate([weighed(r) for r in rows], trim=True), 1.1, rtol=1e-6)


def test_trimming_equals_the_plain_computation() -> None:
    rows = [drawn(70_000, seed) for seed in range(11)]
    found = aggregate([weighed(row) for row in rows], trim=True)
    plain = np.sort(np.stack(rows), axis=0)[2:-2].mean(axis=0)
    np.testing.assert_allclose(found, plain, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("trim", [False, True])
def test_equal_updates_give_equal_bits(trim: bool) -> None:
    """The bits do not depend on alignment, although SIMD code has other paths for it."""
    rows = [drawn(70_001, seed) for seed in range(6)]
    moved = []
    for shift, row in enumerate(rows):
        memory = np.zeros(row.size + 16, np.float32)
        memory[shift + 1 : shift + 1 + row.size] = row
        moved.append(memory[shift + 1 : shift + 1 + row.size])
    one = aggregate([weighed(row, 7 + i) for i, row in enumerate(rows)], trim=trim)
    two = aggregate([weighed(row, 7 + i) for i, row in enumerate(moved)], trim=trim)
    assert one.tobytes() == two.tobytes()


def test_the_lower_median_ignores_a_large_half() -> None:
    assert lower_median([1.0, 1e9]) == 1.0
    assert lower_median([3.0, 1.0, 2.0]) == 2.0


@pytest.mark.parametrize("count", [5, 8, 9])
def test_the_quick_way_leaves_out_the_same_as_the_order_of_all(count: int) -> None:
    """With many equal values, of which it depends on their place which are left out."""
    rows = np.random.default_rng(count).integers(-2, 3, (count, 5000)).astype(np.float32)
    quick = aggregation.outermost(rows)
    np.testing.assert_array_equal(quick, aggregation.outer(rows, 1))
    assert (quick.sum(axis=0) == 2).all()


def test_sparse_updates_are_decoded_one_at_a_time() -> None:
    """Peers choose how many updates a step has, so all of them decoded may not fit the memory."""
    values, codec = 300_000, Codec("sparse", 128)
    data = [encode(codec, drawn(values, seed=seed)) for seed in range(20)]
    vectors = [decode(codec, values, each) for each in data]
    norms = [norm_of(each) for each in vectors]
    wanted = aggregate([Weighed(v, n, 9, 0) for v, n in zip(vectors, norms, strict=True)],
                       trim=False)  # fmt: skip
    weights = weights_of([Weighed(v, 1.0, 9, 0) for v in vectors])
    plain = vectors[0] * np.float32(weights[0])
    for vector, weight in zip(vectors[1:], weights[1:], strict=True):
        plain += vector * np.float32(weight)
    assert plain.tobytes() == wanted.tobytes()
    del vectors
    updates = {f"{at:064x}": Known(partial(decode, codec, values, each), norms[at])
               for at, each in enumerate(data)}  # fmt: skip
    authors = sorted(map(peer_number, range(1, 21)), key=public_key_of)
    entries = [PeerUpdate(*each, 9) for each in zip(authors, updates, strict=True)]
    terms = RunTerms(name="t", subject=b"", values=values, codec=codec, inner_steps=1)
    start = first_state(np.zeros(values, np.float32), terms.rule)
    compute = ComputeState(step_of(terms.id, genesis(terms.id), 1, entries), start, updates)
    tracemalloc.start()
    state = compute.run(terms)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert state.values.tobytes() == (start.values - wanted).tobytes()
    assert peak < 4 * 4 * values
