"""Tests of the counters of other nodes' usage."""

import math

import pytest

from shoal.state.views.usage import UsageCount
from shoal.tasks.usage.metering import UsageMeter, Use
from shoal.transport.identity import Identity

OWN, OTHER = [Identity.from_seed(bytes([n]) * 32).peer for n in (1, 2)]
ROOT = "ab" * 32


def test_counts_are_by_user_and_taken_once() -> None:
    meter = UsageMeter(OWN)
    meter.opened(Use(OTHER, ROOT))
    meter.read(Use(OTHER, ROOT), 7)
    meter.made(Use(OTHER, ROOT), tokens=1, seconds=0.25)
    meter.made(Use(OTHER, ROOT), tokens=0, seconds=0.5)
    meter.opened(Use(OTHER, "cd" * 32))
    meter.made(Use(OTHER, ROOT, "job"), tokens=2, seconds=0.0)
    counts = meter.take()
    assert counts == {
        Use(OTHER, ROOT): UsageCount(1, 7, 1, 750),
        Use(OTHER, "cd" * 32): UsageCount(1),
        Use(OTHER, ROOT, "job"): UsageCount(tokens_out=2),
    }
    assert meter.take() == {}
    assert meter.total == UsageCount(2, 7, 3, 750)


def test_the_owner_s_own_use_is_not_counted() -> None:
    meter = UsageMeter(OWN)
    meter.opened(Use(OWN, ROOT))
    meter.read(Use(OWN, ROOT), 5)
    assert meter.take() == {} and meter.total == UsageCount()


@pytest.mark.parametrize("seconds", [-1.0, math.inf, math.nan, 1e9])
def test_times_of_a_wrong_clock_are_ignored(seconds: float) -> None:
    meter = UsageMeter(OWN)
    meter.made(Use(OTHER, ROOT), tokens=1, seconds=seconds)
    assert meter.take() == {Use(OTHER, ROOT): UsageCount(tokens_out=1)}
