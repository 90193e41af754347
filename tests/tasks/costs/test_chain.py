"""Predicted seconds of steps, messages and chains."""

from dataclasses import replace

import pytest

from shoal.tasks.costs.chain import CostedStage, chain_times, window_prices, window_times
from shoal.tasks.costs.rates import LOCAL, DeviceRates, Efficiency, LinkRates
from shoal.tasks.costs.seconds import step_seconds, transfer_seconds
from shoal.tasks.costs.shardcosts import ShardCosts
from shoal.tasks.costs.work import AttentionWork, EqualRows, ShardWork

SHARD = ShardWork(
    "float32", 10, 2_000_000, 4_000_000, 0, 0.0, (AttentionWork(0, 400, 200),), 0, 0, 0, 512
)
LAST = replace(SHARD, head_flops=1000, head_bytes=2000)
DEVICE = DeviceRates(bandwidth=1e9, float32=1e10, bfloat16=2e10)
HOME = LinkRates(round_trip_s=0.04, rate=1e6)


def test_one_row_waits_for_the_memory_and_many_rows_for_the_products() -> None:
    assert step_seconds(DEVICE, SHARD, (EqualRows(1, 0),)) == pytest.approx(4e6 / 1e9, rel=0.01)
    assert step_seconds(DEVICE, SHARD, (EqualRows(1000, 0),)) > 1000 * 2e6 / 1e10
    assert step_seconds(DEVICE, SHARD, ()) == 0


def test_a_faster_clock_alone_helps_products_and_not_the_reading_of_weights() -> None:
    """Row 48 of the seeds: a clock ten times as fast, with the same memory."""
    fast = replace(DEVICE, float32=10 * DEVICE.float32)
    reading, computing = (EqualRows(1, 0),), (EqualRows(4000, 0),)
    assert step_seconds(DEVICE, SHARD, reading) / step_seconds(fast, SHARD, reading) <= 1.2
    assert step_seconds(DEVICE, SHARD, computing) / step_seconds(fast, SHARD, computing) >= 8


def test_fixed_times_and_the_factor_of_measured_steps_count() -> None:
    slow = replace(DEVICE, efficiency=Efficiency(step_s=0.5, layer_s=0.1))
    base = step_seconds(DEVICE, SHARD, (EqualRows(1, 0),))
    assert step_seconds(slow, SHARD, (EqualRows(1, 0),)) == pytest.approx(base + 1.5)
    assert step_seconds(replace(DEVICE, factor=3.0), SHARD, (EqualRows(1, 0),)) == 3 * base


def test_a_message_takes_half_a_round_trip_and_its_bytes() -> None:
    assert transfer_seconds(HOME, 10_000) == pytest.approx(0.02 + 0.01)
    assert transfer_seconds(LOCAL, 10_000) == 0
    lossy = replace(HOME, loss=0.5)
    assert transfer_seconds(lossy, 100) == pytest.approx(0.04 * (0.5 + 0.5) + 100 / 0.5e6)


def test_a_token_passes_each_stage_and_each_link_and_comes_back() -> None:
    chain = [CostedStage(SHARD, DEVICE, HOME), CostedStage(LAST, DEVICE, HOME)]
    times = chain_times(chain, HOME, prompt=1)
    step = step_seconds(DEVICE, SHARD, (EqualRows(1, 1),))
    assert times.token_s == pytest.approx(2 * step + 3 * 0.02, rel=0.05)
    assert chain_times(chain[:1], LOCAL, 1).token_s < times.token_s / 2


def test_parts_of_a_long_prompt_overlap_in_the_stages() -> None:
    chain = [CostedStage(SHARD, DEVICE, LOCAL)] * 4
    alone = chain_times(chain[:1], LOCAL, 512 * 16).first_token_s
    assert alone < chain_times(chain, LOCAL, 512 * 16).first_token_s < 1.3 * alone
    assert chain_times(chain[:1], LOCAL, 512 * 16, cached=512 * 15).first_token_s < alone / 8


def test_several_windows_fit_into_a_chain_whose_links_are_slow() -> None:
    chain = [CostedStage(SHARD, DEVICE, HOME), CostedStage(LAST, DEVICE, HOME)]
    window = window_times(chain, HOME, 4, 1000)
    assert window.latency_s / window.interval_s > 5
    near = window_times([CostedStage(LAST, DEVICE, LOCAL)], LOCAL, 4, 1000)
    assert near.latency_s == near.interval_s


def test_a_window_has_the_price_of_its_rows_at_each_stage_and_on_each_link() -> None:
    stages = [ShardCosts(0.01, 0.001, 1e-6), ShardCosts(0.03, 0.002)]
    near = window_prices(stages, [LOCAL, LOCAL], 1000, 0)
    assert near == pytest.approx((0.043, 0.003, 0.032), rel=1e-3)
    far = window_prices(stages, [HOME, HOME], 1000, 0)
    assert far.round_s - near.round_s == pytest.approx(0.04 + 0.001, rel=0.1)
    assert far.row_s - near.row_s == pytest.approx(0.001)
    late = window_prices(stages, [LOCAL, LOCAL], 1000, 5000)
    assert late.row_s - near.row_s == pytest.approx(0.005, rel=1e-2), "it attends to all before it"
    slow = window_prices(stages, [replace(HOME, rate=1e4), HOME], 1000, 0)
    assert slow.step_s == pytest.approx(0.1), "the link is slower than any stage"
