"""Results: the samples that are kept, and the matrix of pairs."""

from itertools import pairwise

from shoal.netsim.scenario.result import MOST_SAMPLES, pair_matrix, thinned


def test_samples_are_thinned_evenly() -> None:
    values = [float(number) for number in range(10_000, 0, -1)]
    kept = thinned(values)
    assert len(kept) == MOST_SAMPLES and kept[0] == 1.0 and kept[-1] == 10_000.0
    assert kept == sorted(kept)
    assert max(b - a for a, b in pairwise(kept)) <= 6
    assert thinned([3.0, 1.0]) == [1.0, 3.0]


def test_a_pair_counts_in_both_directions_but_once_within_a_class() -> None:
    found = pair_matrix("linked", [("a", "b", True), ("b", "a", False), ("a", "a", True)])
    assert found["classes"] == ["a", "b"]
    assert found["cells"] == [[[1, 1], [1, 2]], [[1, 2], [0, 0]]]
