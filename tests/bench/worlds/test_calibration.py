"""The population's success at hole punching is that of real peers."""

import copy

import pytest

from bench.worlds.calibration import PUBLISHED, Punched, punch
from shoal.netsim.population.data import table
from shoal.netsim.population.mix import DEFAULT, Population, can_punch, load, punch_rate, read

pytestmark = pytest.mark.ci  # as the benchmarks themselves

RATE, SPREAD = PUBLISHED


def fits(found: Punched) -> bool:
    return abs(found.rate - RATE) <= SPREAD


def test_success_is_the_published_one() -> None:
    """600 pairs: chance alone moves it by 1.9 %."""
    found = punch(600, seed=1)
    assert fits(found), found.table()
    assert found.rate == pytest.approx(punch_rate(load()), abs=0.05)


def test_each_pair_of_classes_does_as_in_theory() -> None:
    """Apart from losses: pairs that cannot punch in theory never succeed, all others nearly
    always.
    """
    found, kinds = punch(600, seed=2), {kind.name: kind.punch for kind in load().kinds}
    for (a, b), tried in found.tried.items():
        done = found.succeeded[a, b]
        if can_punch(kinds[a], kinds[b]):
            assert done >= 0.9 * tried - 1, (a, b)
        else:
            assert done == 0, (a, b)


def with_share(symmetric: int) -> Population:
    """Return the population with this percentage symmetric, taken from the port-restricted."""
    entry = copy.deepcopy(table(f"{DEFAULT}.toml"))
    shares = {"port-restricted": 53 - symmetric, "symmetric": symmetric}
    for item in entry["class"]:
        item["percent"] = shares.get(item["name"], item["percent"])
    return read(entry)


def test_the_check_can_fail() -> None:
    """With three times as many symmetric NATs it leaves the published band."""
    assert not fits(punch(400, population=with_share(33), seed=1))


def test_the_table_has_a_line_a_class() -> None:
    found = punch(200, seed=3)
    assert len(found.table().splitlines()) == len(found.by_class())
    done, tried = found.by_class()["udp-blocked"]
    assert done == 0 < tried


@pytest.mark.long
def test_success_over_many_seeds() -> None:
    """Checks ten thousand pairs. Each share may be 30 % off without leaving the band by much."""
    rates = [punch(1000, seed=seed).rate for seed in range(10)]
    assert sum(rates) / len(rates) == pytest.approx(RATE, abs=SPREAD)
    for symmetric in (8, 14):
        assert punch(1000, population=with_share(symmetric)).rate == pytest.approx(
            RATE, abs=SPREAD + 0.02
        )
