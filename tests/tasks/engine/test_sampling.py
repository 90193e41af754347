"""The specified choice: test vectors, filters, ties, and that it samples the right distribution."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from shoal.tasks.engine import sampling as module
from shoal.tasks.engine.errors import EngineError
from shoal.tasks.engine.interface import Sampling
from shoal.tasks.engine.sampling import Change, choose, gumbel, kept, most_likely, row_peaks

SPEC = Path(__file__).parents[3] / "docs" / "spec" / "sampling.md"
MASK = (1 << 64) - 1


def mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def plain_word(seed: int, position: int, token: int) -> int:
    golden = 0x9E3779B97F4A7C15
    stream = mix((mix(seed) + (position + 1) * golden) & MASK)
    return mix((stream + (token + 1) * golden) & MASK)


def plain_choice(logits: list[float], s: Sampling, position: int) -> int:
    """The specification once more, in the slowest possible way."""
    largest = max(logits)
    if s.temperature == 0:
        return logits.index(largest)
    scaled = [(value - largest) / s.temperature for value in logits]
    able = [i for i in range(len(logits)) if not s.min_p or scaled[i] >= math.log(s.min_p)]
    order = sorted(able, key=lambda i: (-scaled[i], i))
    order = order[: s.top_k or None]
    total = math.fsum(math.exp(scaled[i]) for i in order)
    before = 0.0
    survivors: list[int] = []
    for i in order:
        if before < s.top_p or not survivors:
            survivors.append(i)
        before += math.exp(scaled[i]) / total

    def score(i: int) -> float:
        u = ((plain_word(s.seed, position, i) >> 12) + 0.5) * 2.0**-52
        return scaled[i] - math.log(-math.log(u))

    return max(sorted(survivors), key=score)


def rows(columns: int) -> list[list[str]]:
    lines = SPEC.read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    return [row for row in cells if len(row) == columns and row[0][:1].isdigit()]


def vector_logits() -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.array([(i * i * 37 % 101) / 16 for i in range(64)], dtype=np.float32)


def test_the_noise_vectors_of_the_specification() -> None:
    vectors = rows(5)
    assert len(vectors) >= 6
    for seed, position, token, word, noise in vectors:
        assert plain_word(int(seed), int(position), int(token)) == int(word, 16)
        found = gumbel(int(seed), int(position), np.array([int(token)]))
        assert math.isclose(found[0], float(noise), rel_tol=1e-12)


def test_the_choice_vectors_of_the_specification() -> None:
    vectors = rows(7)
    assert len(vectors) >= 6
    for temperature, top_k, top_p, seed, position, token, logprob in vectors:
        sampling = Sampling(float(temperature), int(top_k), float(top_p), int(seed))
        found, chance = choose(vector_logits(), sampling, int(position))
        assert found == int(token)
        assert math.isclose(chance, float(logprob), abs_tol=1e-5)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1.0),
        Sampling(0.7, 5),
        Sampling(1.3, 0, 0.8),
        Sampling(2.0, 40, 0.95),
        Sampling(100.0, 0, 0.999),
        Sampling(1e-6, 3, 0.5),
        Sampling(1.0, 10_000, 1e-9),
        Sampling(1.0, min_p=0.02),
        Sampling(1.5, 12, 0.9, min_p=0.01),
        Sampling(5.0, 0, 0.6, min_p=0.3),
        Sampling(1.0, min_p=1.0),
        Sampling(100.0, min_p=5e-324),
    ],
)
def test_choices_equal_the_plain_reading(sampling: Sampling) -> None:
    generator = np.random.default_rng(5)
    for position in range(20):
        logits = (generator.normal(size=700) * 3).round(1).astype(np.float32)  # with many ties
        seeded = sampling._replace(seed=position * 77)
        expected = plain_choice([float(value) for value in logits], seeded, position)
        assert choose(logits, seeded, position)[0] == expected


def test_equal_values_are_cut_by_lowest_id() -> None:
    scaled = np.array([-1.0, 0.0, -1.0, -1.0, 0.0])
    assert kept(scaled, 3, 1.0).tolist() == [1, 4, 0]
    assert kept(scaled, 0, 0.5).tolist() == [1, 4]
    assert choose(scaled.astype(np.float32), Sampling(), 0)[0] == 1


def test_draws_follow_the_softmax() -> None:
    logits = np.array([0.0, 1.0, 2.0, -1.0], dtype=np.float32)
    counts = np.zeros(4)
    for position in range(4000):
        counts[choose(logits, Sampling(1.0, seed=9), position)[0]] += 1
    expected = np.exp(logits) / np.exp(logits).sum()
    assert np.abs(counts / 4000 - expected).max() < 0.03


def test_noise_of_neighbours_is_unrelated() -> None:
    ids = np.arange(4000)
    base = gumbel(1, 1, ids)
    for other in (gumbel(2, 1, ids), gumbel(1, 2, ids), gumbel(1 + 0x9E3779B97F4A7C15, 0, ids)):
        assert abs(np.corrcoef(base, other)[0, 1]) < 0.06
    assert abs(base.mean() - 0.5772) < 0.08


def test_min_p_excludes_tokens_below_a_part_of_the_likeliest() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], dtype=np.float32))
    chosen = {choose(logits, Sampling(1.0, seed=9, min_p=0.29), at)[0] for at in range(400)}
    assert chosen == {0, 1, 2}
    chosen = {choose(logits, Sampling(1.0, seed=9, min_p=0.31), at)[0] for at in range(400)}
    assert chosen == {0, 1}


def test_a_change_chooses_but_log_probabilities_stay_the_models() -> None:
    logits = np.array([3.0, 1.0, 0.0, -2.0], np.float32)
    change = Change(np.array([0, 3]), np.array([0.0, 9.0]), np.array([4.0, 1.0]), np.array([0, 1]))
    total = math.log(sum(math.exp(value) for value in logits))
    assert choose(logits, Sampling(), 0, change) == pytest.approx((3, -2 - total))
    banned = change._replace(bias=np.array([0.0, -100.0]))
    assert choose(logits, Sampling(), 0, banned)[0] == 1
    assert logits.tolist() == [3.0, 1.0, 0.0, -2.0], "the caller's"
    drawn = {choose(logits, Sampling(1.0, seed=4), at, banned)[0] for at in range(200)}
    assert drawn == {0, 1, 2}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_refused(bad: float) -> None:
    for sampling in (Sampling(), Sampling(1.0, 2, 0.9)):
        with pytest.raises(EngineError) as failure:
            choose(np.array([0.0, bad, 1.0], dtype=np.float32), sampling, 3)
        assert failure.value.code == "not-finite"
    with pytest.raises(EngineError):
        choose(np.full(3, -np.inf, dtype=np.float32), Sampling(), 0)


def test_a_row_has_the_same_peak_beside_any_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", 3 * 700)  # a group of three rows
    rows = (np.random.default_rng(6).normal(size=(8, 700)) * 4).round(1).astype(np.float32)
    rows[2, 5], rows[4, 6], rows[6] = math.nan, math.inf, -math.inf
    found = row_peaks(rows)
    assert [repr(each) for each in found] == [repr(row_peaks(row[None])[0]) for row in rows]
    assert [math.isfinite(each.logit) for each in found] == [at not in (2, 4, 6) for at in range(8)]
    for at in (0, 3, 7):  # of different groups
        token, logit, log_total = found[at]
        assert (token, logit) == (int(rows[at].argmax()), float(rows[at].max()))
        total = math.fsum(math.exp(float(each) - logit) for each in rows[at])
        assert log_total == pytest.approx(math.log(total))


def test_logprob_is_of_the_unfiltered_distribution() -> None:
    logits = np.array([3.0, 1.0, 0.0], dtype=np.float32)
    _, chance = choose(logits, Sampling(0.1, 1, 0.1), 0)
    assert math.isclose(chance, 3 - math.log(math.exp(3) + math.e + 1), abs_tol=1e-6)


def test_the_most_likely_are_in_order_with_their_log_probabilities() -> None:
    logits = np.array([1.0, 3.0, 2.0, 3.0, -1.0], np.float32)
    found = most_likely(logits, 4)
    assert [token for token, _ in found] == [1, 3, 2, 0]
    total = math.log(sum(math.exp(value) for value in logits))
    assert [logprob for _, logprob in found] == pytest.approx([3 - total, 3 - total, 2 - total,
                                                               1 - total])  # fmt: skip
    assert found[0] == choose(logits, Sampling(), 0)
    assert len(most_likely(logits, 20)) == 5


SHAPES: dict[str, Callable[[np.random.Generator, int], NDArray[np.float64]]] = {
    "random": lambda random, size: random.normal(size=size) * 3,
    "ties": lambda random, size: (random.normal(size=size) * 3).round(1),
    "equal": lambda random, size: np.zeros(size),
    "two values": lambda random, size: random.integers(0, 2, size).astype(float),
    "huge": lambda random, size: random.normal(size=size) * 1e30,
    "lowest": lambda random, size: np.full(size, -3e38),
    "mostly impossible": lambda random, size: np.where(
        np.arange(size) * 7 % 10 > 0, -np.inf, random.normal(size=size)
    ),
}


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(SHAPES)),
    st.sampled_from([1, 2, 3, 64, 700, 5000]),
    st.sampled_from([5e-324, 1e-320, 1e-6, 0.1, 0.8, 1.0, 2.0, 100.0]),
    st.sampled_from([0, 1, 2, 40, 4999, 5000, 2**32 - 1]),
    st.sampled_from(
        [1.0, 1 - 2**-53, 1 - 1e-10, 0.999999, 0.95, 0.5, 0.25, 1 / 64, 1e-3, 1e-9, 5e-324]
    ),
    st.integers(0, 2**64 - 1),
)
def test_a_choice_without_an_order_is_that_of_the_ordered_tokens(
    shape: str, size: int, temperature: float, top_k: int, top_p: float, seed: int
) -> None:
    logits = SHAPES[shape](np.random.default_rng(seed), size).astype(np.float32)
    with np.errstate(over="ignore"):
        scaled = (logits.astype(np.float64) - float(logits.max())) / temperature
    ids = kept(scaled, top_k, top_p)
    scores = scaled[ids] + gumbel(seed, 3, ids)
    expected = int(ids[scores == scores.max()].min())
    assert choose(logits, Sampling(temperature, top_k, top_p, seed), 3)[0] == expected


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(100.0, 0, 0.999999),
        Sampling(100.0, 0, 1 - 2**-53),
        Sampling(100.0, 49_999, 0.999999),
        Sampling(1.0, 0, 0.9),
        Sampling(1e-320, 40, 0.9),
        Sampling(0.8, 40, 0.95),
        Sampling(100.0, 0, 1e-12),
    ],
)
def test_no_parameters_have_all_tokens_sorted(
    sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("the vocabulary was sorted")

    monkeypatch.setattr(module, "kept", refused)
    monkeypatch.setattr(np, "argsort", refused)
    logits = (np.random.default_rng(1).normal(size=50_000) * 3).astype(np.float32)
    for seed in range(30):
        choose(logits, sampling._replace(seed=seed), 3)


def test_equal_tokens_that_never_win_are_not_partitioned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition of equal values takes 10 times as long as one of others."""
    monkeypatch.delattr(np, "partition")
    logits = np.arange(1000, dtype=np.float32)
    assert choose(logits, Sampling(1e-320, 40, 0.9), 3)[0] == 999


def test_a_sum_as_large_as_top_p_ends_what_is_kept_whatever_its_rounding() -> None:
    random = np.random.default_rng(1)
    for seed in range(200):
        logits = random.normal(size=100).astype(np.float32)
        winner, _ = choose(logits, Sampling(50.0, seed=seed), 3)
        scaled = (logits.astype(np.float64) - float(logits.max())) / 50.0
        order = np.argsort(-scaled, kind="stable")
        sums = np.cumsum(np.exp(scaled[order])) / np.exp(scaled).sum()
        rank = order.tolist().index(winner)
        if rank:
            limited = Sampling(50.0, 0, float(sums[rank - 1]), seed)
            assert choose(logits, limited, 3)[0] != winner
