"""Costs of a shard as straight lines, and devices that are calibrated by measured costs."""

from dataclasses import replace
from math import inf, nan

import pytest

from shoal.state.membership.record import DeviceSpeed
from shoal.tasks.costs.rates import (
    ACCELERATOR,
    HALF_ROWS_MOST,
    UNKNOWN,
    DeviceRates,
    Efficiency,
    device_rates,
)
from shoal.tasks.costs.seconds import attention_seconds, step_seconds
from shoal.tasks.costs.shardcosts import ShardCosts
from shoal.tasks.costs.steps import MANY, alone_seconds, calibrated, chosen_seconds, shard_costs
from shoal.tasks.costs.work import AttentionWork, EqualRows, ShardWork

WORK = ShardWork(
    "bfloat16",
    10,
    20_000_000,
    20_000_000,
    0,
    0.0,
    (AttentionWork(0, 400, 200),),
    0,
    1000,
    1000,
    512,
)
DEVICE = DeviceRates(bandwidth=1e10, float32=1e11, bfloat16=1e11)


@pytest.mark.parametrize(
    "costs",
    [
        ShardCosts(0.004, 0.0005, 1e-8),
        ShardCosts(0.004, 0.0, 0.0),  # rows are free
        ShardCosts(0.0, 0.004, 1e-6),  # each row takes as long as the first
        ShardCosts(1e-6, 1e-7, 1e-12),
    ],
)
@pytest.mark.parametrize(("half_rows", "overlap"), [(0.0, 1.0), (90.0, 1.0), (0.0, 0.0)])
def test_a_calibrated_device_has_the_costs_that_were_measured(
    costs: ShardCosts, half_rows: float, overlap: float
) -> None:
    eff = Efficiency(half_rows=half_rows, overlap=overlap, layer_s=1e-6, step_s=1e-5)
    found = calibrated(replace(DEVICE, efficiency=eff, factor=7.0), WORK, costs)
    again = shard_costs(found, WORK)
    assert again.step_s + again.row_s == pytest.approx(costs.step_s + costs.row_s, rel=1e-2)
    assert again.step_s + MANY * again.row_s == pytest.approx(
        costs.step_s + MANY * costs.row_s, rel=1e-3
    )
    if costs.pair_s:
        assert again.pair_s == pytest.approx(costs.pair_s, rel=1e-2)


def test_the_straight_line_counts_rows_and_pairs() -> None:
    costs = ShardCosts(1.0, 0.1, 0.001)
    assert costs.seconds(1) == pytest.approx(1.101)
    assert costs.seconds(3, 10) == pytest.approx(1.0 + 0.3 + 0.001 * (11 + 12 + 13))


def test_a_calibrated_device_predicts_another_shard_of_the_model() -> None:
    slow = calibrated(DEVICE, WORK, ShardCosts(0.02, 0.001, 1e-8))
    half = replace(WORK, layers=5, row_flops=WORK.row_flops // 2, weight_bytes=10_000_000)
    assert step_seconds(slow, half, (EqualRows(1, 0),)) == pytest.approx(0.0105, rel=0.01)


@pytest.mark.parametrize("bad", [nan, inf, -1.0, 1e30])
def test_costs_that_no_machine_has_change_nothing(bad: float) -> None:
    for costs in (ShardCosts(bad, 0.1, 0.0), ShardCosts(0.1, bad, 0.0), ShardCosts(0.1, 0.1, bad)):
        assert calibrated(DEVICE, WORK, costs) == DEVICE
    assert calibrated(DEVICE, WORK, ShardCosts()) == DEVICE


def test_efficiencies_from_claimed_costs_are_bounded() -> None:
    found = calibrated(DEVICE, WORK, ShardCosts(1e-30, 1e-30, 1e-30))
    assert step_seconds(found, WORK, (EqualRows(1, 0),)) >= 1e-7


def test_a_device_without_measured_rates_is_a_slow_laptop() -> None:
    found = device_rates(DeviceSpeed("cpu", "", 0))
    assert (found.bandwidth, found.float32) == (UNKNOWN.bandwidth, UNKNOWN.float32)
    assert found.load == UNKNOWN.load


@pytest.mark.parametrize("rate", [5e-324, 1e-9, 1e24])
def test_claimed_rates_that_no_machine_has_give_finite_times(rate: float) -> None:
    claimed = device_rates(DeviceSpeed("cpu", "", 0, rate, rate, rate, 4), rate)
    assert 0 < step_seconds(claimed, WORK, (EqualRows(64, 1000),), 1) < inf
    assert 0 < (1 << 30) / claimed.load < inf
    costs = shard_costs(claimed, WORK)
    assert all(0 <= each < inf for each in costs)
    assert step_seconds(calibrated(claimed, WORK, costs), WORK, (EqualRows(1, 0),)) > 0


def test_the_useful_batch_says_how_efficient_few_rows_are() -> None:
    card = device_rates(DeviceSpeed("cuda:0", "sm_80", 0, 1.5e12, 1.5e13, 2.4e14, 64))
    assert card.efficiency.half_rows == pytest.approx(1.5 * 2.4e14 / 1.5e12 - 128)
    assert card.efficiency.layer_s == ACCELERATOR.layer_s
    assert card.flops("int4") == card.flops("bfloat16") == 2.4e14
    one, many = (
        step_seconds(card, replace(WORK, layers=0, attention=()), (EqualRows(rows, 0),))
        for rows in (1, 128)
    )
    assert many / one == pytest.approx(1.5, rel=0.01)
    old = device_rates(DeviceSpeed("cpu", "AVX2", 0, 1e10, 6e10, 3e9, 8))
    assert old.flops("bfloat16") == old.flops("int8") == 6e10  # computed in float32
    strange = device_rates(DeviceSpeed("cuda:0", "", 0, 1.0, 1e17, 0.0, 1))
    assert strange.efficiency.half_rows == HALF_ROWS_MOST


def test_a_device_that_does_not_overlap_adds_reading_and_computing() -> None:
    apart = replace(DEVICE, efficiency=Efficiency(overlap=0.0))
    half = replace(DEVICE, efficiency=Efficiency(overlap=0.5))
    bare = replace(WORK, attention=())
    together, between, added = (
        step_seconds(device, bare, (EqualRows(10, 0),)) for device in (DEVICE, half, apart)
    )
    assert together == pytest.approx(max(0.002, 0.002), rel=0.01)
    assert added == pytest.approx(0.004, rel=0.01)
    assert between == pytest.approx(0.003, rel=0.01)


def test_attention_of_a_prompt_computes_whole_tiles() -> None:
    tiled = replace(DEVICE, efficiency=Efficiency(tile=16))
    few, whole, text = (
        attention_seconds(tiled, WORK, (EqualRows(count, 1000),)) for count in (4, 16, 1)
    )
    assert few == whole
    assert text == attention_seconds(DEVICE, WORK, (EqualRows(1, 1000),))


def test_more_logits_take_the_time_of_their_operations() -> None:
    work = replace(WORK, head_flops=1_000_000)
    computing = replace(DEVICE, bandwidth=1e15)
    heads = (1, MANY)
    steps = [step_seconds(computing, work, [EqualRows(MANY, 0)], count) for count in heads]
    assert chosen_seconds(computing, work) == pytest.approx((steps[1] - steps[0]) / (MANY - 1))
    assert chosen_seconds(computing, work) > 0.0
    assert chosen_seconds(computing, replace(WORK, head_flops=0)) == 0.0


def test_one_row_reads_keys_and_values_alone() -> None:
    near, far = (step_seconds(DEVICE, WORK, [EqualRows(1, at)]) for at in (0, 4000))
    pairs = shard_costs(DEVICE, WORK).pair_s
    assert alone_seconds(DEVICE, WORK) + pairs == pytest.approx((far - near) / 4000)
    assert alone_seconds(DEVICE, WORK) > 0.0
    assert alone_seconds(replace(DEVICE, bandwidth=1e18), WORK) == pytest.approx(0.0, abs=1e-15)
    assert alone_seconds(DEVICE, replace(WORK, attention=())) == 0.0
