"""Rates of a member's machine, from the facts that it publishes."""

from ...state.membership.record import Capacity, ShardRecord
from .rates import UNKNOWN, DeviceRates, device_rates
from .shardcosts import ShardCosts
from .steps import calibrated
from .work import ShardWork


def member_rates(
    capacity: Capacity, shard: ShardRecord | None = None, work: ShardWork | None = None
) -> DeviceRates:
    """Return the rates of the device that a member computes on: the one with the most bandwidth.

    If the member serves `shard`, whose work is `work`, what it measured there replaces the probe's
    rates. Both are claims. A node that measures the member multiplies with its tracker's factor.
    """
    device = max(capacity.devices, key=lambda each: each.bandwidth, default=None)
    if device is None:
        return UNKNOWN
    rates = device_rates(device, capacity.load_rate)
    if shard is None or work is None:
        return rates
    return calibrated(rates, work, ShardCosts(*shard.costs))
