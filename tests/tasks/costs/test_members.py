"""Rates of members from what they publish."""

from dataclasses import replace
from math import inf, nan

import pytest

from shoal.state.membership.record import NOTHING, Capacity, DeviceSpeed, ShardRecord
from shoal.tasks.costs.members import member_rates
from shoal.tasks.costs.rates import UNKNOWN
from shoal.tasks.costs.seconds import step_seconds
from shoal.tasks.costs.work import AttentionWork, EqualRows, ShardWork

WORK = ShardWork(
    "float32", 2, 2_000_000, 4_000_000, 0, 0.0, (AttentionWork(0, 400, 200),), 0, 0, 0, 512
)
SHARD = ShardRecord("ab" * 32, False, 0, 2, False, "float32", 100)
CPU, CARD = DeviceSpeed("cpu", "", 0, 1e10, 5e10), DeviceSpeed("cuda:0", "", 0, 1e12, 2e13, 1e14)
CAPACITY = Capacity(8, 1 << 34, True, 2e9, (CPU, CARD))


def test_a_member_computes_on_its_fastest_device() -> None:
    found = member_rates(CAPACITY)
    assert (found.bandwidth, found.load) == (1e12, 2e9)
    assert member_rates(NOTHING) == UNKNOWN


def test_what_a_member_measured_replaces_what_its_probe_found() -> None:
    measured = replace(SHARD, costs=(0.03, 0.001, 1e-8))
    assert member_rates(CAPACITY, SHARD, WORK) == member_rates(CAPACITY)
    found = member_rates(CAPACITY, measured, WORK)
    assert step_seconds(found, WORK, (EqualRows(1, 0),)) == pytest.approx(0.031, rel=0.01)


@pytest.mark.parametrize("bad", [nan, inf, -1.0, 1e-300])
def test_claimed_costs_give_finite_times(bad: float) -> None:
    found = member_rates(CAPACITY, replace(SHARD, costs=(bad, 0.001, 1e-8)), WORK)
    assert 0 < step_seconds(found, WORK, (EqualRows(1, 0),)) < 3600
