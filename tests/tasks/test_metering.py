"""What others had of this node."""

import math

import pytest

from shoal.state.views.usage import Count
from shoal.tasks.metering import Meter
from shoal.transport.identity import Identity

OWN, OTHER = [Identity.from_seed(bytes([n]) * 32).peer for n in (1, 2)]
ROOT = "ab" * 32


def test_counts_are_by_user_and_taken_once() -> None:
    meter = Meter(OWN)
    meter.opened((OTHER, ROOT))
    meter.read((OTHER, ROOT), 7)
    meter.made((OTHER, ROOT), tokens=1, seconds=0.25)
    meter.made((OTHER, ROOT), tokens=0, seconds=0.5)
    meter.opened((OTHER, "cd" * 32))
    counts = meter.take()
    assert counts == {(OTHER, ROOT): Count(1, 7, 1, 750), (OTHER, "cd" * 32): Count(1)}
    assert meter.take() == {}
    meter.put_back(counts)
    assert meter.take() == counts
    assert meter.total == Count(2, 7, 1, 750), "what is put back is not counted again"


def test_the_owner_s_own_use_is_not_counted() -> None:
    meter = Meter(OWN)
    meter.opened((OWN, ROOT))
    meter.read((OWN, ROOT), 5)
    assert meter.take() == {} and meter.total == Count()


@pytest.mark.parametrize("seconds", [-1.0, math.inf, math.nan, 1e9])
def test_a_clock_that_is_wrong_counts_nothing(seconds: float) -> None:
    meter = Meter(OWN)
    meter.made((OTHER, ROOT), tokens=1, seconds=seconds)
    assert meter.take() == {(OTHER, ROOT): Count(tokens_out=1)}
