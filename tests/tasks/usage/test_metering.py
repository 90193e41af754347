"""Tests of the counters of other nodes' usage."""

import math

import pytest

from shoal.state.views.usage import Count
from shoal.tasks.usage.metering import Meter, Use
from shoal.transport.identity import Identity

OWN, OTHER = [Identity.from_seed(bytes([n]) * 32).peer for n in (1, 2)]
ROOT = "ab" * 32


def test_counts_are_by_user_and_taken_once() -> None:
    meter = Meter(OWN)
    meter.opened(Use(OTHER, ROOT))
    meter.read(Use(OTHER, ROOT), 7)
    meter.made(Use(OTHER, ROOT), tokens=1, seconds=0.25)
    meter.made(Use(OTHER, ROOT), tokens=0, seconds=0.5)
    meter.opened(Use(OTHER, "cd" * 32))
    meter.made(Use(OTHER, ROOT, "job"), tokens=2, seconds=0.0)
    counts = meter.take()
    assert counts == {
        Use(OTHER, ROOT): Count(1, 7, 1, 750),
        Use(OTHER, "cd" * 32): Count(1),
        Use(OTHER, ROOT, "job"): Count(tokens_out=2),
    }
    assert meter.take() == {}
    assert meter.total == Count(2, 7, 3, 750)


def test_the_owner_s_own_use_is_not_counted() -> None:
    meter = Meter(OWN)
    meter.opened(Use(OWN, ROOT))
    meter.read(Use(OWN, ROOT), 5)
    assert meter.take() == {} and meter.total == Count()


@pytest.mark.parametrize("seconds", [-1.0, math.inf, math.nan, 1e9])
def test_times_of_a_wrong_clock_are_ignored(seconds: float) -> None:
    meter = Meter(OWN)
    meter.made(Use(OTHER, ROOT), tokens=1, seconds=seconds)
    assert meter.take() == {Use(OTHER, ROOT): Count(tokens_out=1)}
