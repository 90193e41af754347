"""Predicted against measured seconds, with measurements that are wrong or made up."""

from math import inf, nan
from random import Random

import pytest

from shoal.tasks.costs.tracker import ERROR_MOST, RATIO, Expected, Tracker, Trackers


def noted(*ratios: float) -> Tracker:
    """A tracker that measured these ratios of 10 predicted ms."""
    tracker = Tracker()
    for ratio in ratios:
        tracker.note(0.01, 0.01 * ratio)
    return tracker


def test_the_first_measured_step_replaces_a_claim_a_thousand_times_too_high() -> None:
    tracker = Tracker()
    tracker.note(0.00005, 0.05)
    assert 0.00005 * tracker.factor == pytest.approx(0.05)


def test_the_factor_follows_a_lasting_change_and_ignores_outliers() -> None:
    assert noted(*[2.0] * 20).factor == pytest.approx(2)
    assert noted(*[2.0] * 20, *[500.0, 0.0001] * 3).factor == pytest.approx(2)
    assert noted(*[2.0] * 20, *[500.0] * 7).factor == pytest.approx(2)
    assert noted(*[2.0] * 20, *[3.0] * 8).factor == pytest.approx(3)


@pytest.mark.parametrize("bad", [nan, inf, -inf, 0.0, -1.0, 1e300])
def test_times_that_no_clock_can_show_are_not_believed(bad: float) -> None:
    tracker = noted(2.0, 2.0)
    assert not tracker.note(0.01, bad)
    assert not tracker.note(bad, 0.01)
    assert tracker.factor == pytest.approx(2)
    assert tracker.samples == 2


def test_the_factor_is_bounded() -> None:
    tracker = Tracker()
    tracker.note(1e-300, 100.0)
    assert tracker.factor == RATIO
    tracker = Tracker()
    tracker.note(100.0, 1e-300)
    assert tracker.factor == 1 / RATIO


def test_the_error_is_that_of_predictions_made_before_their_measurements() -> None:
    exact = noted(*[3.0] * 40)
    assert exact.error.mean == pytest.approx(0)
    assert exact.error.samples == 39
    random = Random(1)
    noisy = noted(*[3.0 * random.uniform(0.8, 1.2) for _ in range(200)])
    assert 0.05 < noisy.error.mean < 0.2
    assert noted(*[1.0] * 40, 1e-5).error.mean <= ERROR_MOST / 40


def chain(*claims: float, cautious: float = 0.04) -> list[Expected[str]]:
    return [Expected(str(n), claim, cautious) for n, claim in enumerate(claims)]


def test_the_excess_of_a_chain_falls_to_the_stage_that_was_never_measured() -> None:
    """A measured stage of 50 ms, and one that claims 0.1 ms and takes 100."""
    trackers: Trackers[str] = Trackers()
    for _ in range(20):
        trackers.note("0", 0.05, 0.05)
    for _ in range(3):
        assert trackers.note_sum(chain(0.05, 0.0001), 0.15)
    assert trackers.factor("0") == pytest.approx(1, abs=0.1)
    assert 0.0001 * trackers.factor("1") > 0.06
    for _ in range(30):
        trackers.note_sum(chain(0.05, 0.0001), 0.15)
    total = 0.05 * trackers.factor("0") + 0.0001 * trackers.factor("1")
    assert total == pytest.approx(0.15, rel=0.1)
    assert trackers.factor("0") < 1.5


def test_sums_over_different_chains_find_the_slow_stage() -> None:
    trackers: Trackers[str] = Trackers()
    true = {"0": 0.02, "1": 0.02, "2": 0.06, "3": 0.02}
    random = Random(2)
    for _ in range(200):
        used = random.sample(sorted(true), 2)
        parts = [Expected(name, 0.02, 0.04) for name in used]
        trackers.note_sum(parts, sum(true[name] for name in used))
    assert 0.02 * trackers.factor("2") == pytest.approx(0.06, rel=0.25)
    assert all(0.02 * trackers.factor(name) == pytest.approx(0.02, rel=0.35) for name in "013")


@pytest.mark.parametrize("bad", [nan, inf, 0.0, -3.0])
def test_sums_that_no_clock_can_show_change_nothing(bad: float) -> None:
    trackers: Trackers[str] = Trackers()
    assert not trackers.note_sum(chain(0.1, 0.1), bad)
    assert not trackers.note_sum(chain(0.1, nan), 0.2)
    assert not trackers.note_sum([], 0.2)
    assert trackers.factor("0") == 1


def test_invented_names_take_no_more_memory_than_the_limit() -> None:
    trackers: Trackers[int] = Trackers(most=50)
    trackers.note(-1, 1.0, 2.0)
    for number in range(1000):
        trackers.note(number, 1.0, 2.0)
        trackers.note(-1, 1.0, 2.0)
    assert len(trackers) == 50
    assert trackers.samples(-1) == 1001
    assert trackers.error(-1) == (0.0, 1000)
    assert trackers.error(5) == (0.0, 0)
