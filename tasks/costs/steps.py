"""Costs of a loaded shard as straight lines: what a scheduler plans with, and what a node measures
after loading."""

from dataclasses import replace
from typing import NamedTuple

from .rates import DeviceRates
from .seconds import fixed_seconds, product_seconds
from .work import ShardWork

MANY = 64
"""Rows of the larger step by which a shard is measured."""
_LEAST, _MOST = 1e-4, 1e4  # bounds of efficiencies


class ShardCosts(NamedTuple):
    """Seconds of a step: `step_s`, plus `row_s` for each row, plus `pair_s` for each pair of a row
    and a position that it attends to. All 0 if they are unknown."""

    step_s: float = 0.0
    row_s: float = 0.0
    pair_s: float = 0.0


def shard_costs(device: DeviceRates, work: ShardWork) -> ShardCosts:
    """Return the straight line through the predicted steps of one row and of MANY rows."""
    heads = 1 if work.head_flops else 0
    one, many = (product_seconds(device, work, rows, heads) for rows in (1, MANY))
    row = (many - one) / (MANY - 1)
    rate = device.flops(work.precision) * device.efficiency.attention
    pairs = sum(each.pair_flops for each in work.attention) / rate
    factor, fixed = device.factor, fixed_seconds(device, work)
    return ShardCosts(factor * (one - row + fixed), factor * row, factor * pairs)


def calibrated(device: DeviceRates, work: ShardWork, costs: ShardCosts) -> DeviceRates:
    """Return the device with efficiencies by which `shard_costs` finds these measured costs.

    Fixed times stay what they are, as far as they fit. Costs that no machine has leave the device
    as it is.
    """
    one, many = costs.step_s + costs.row_s, costs.step_s + MANY * costs.row_s
    ordered = 0.0 < one <= many < 3600.0 and costs.step_s >= 0.0  # false for NaN
    if not (ordered and 0.0 <= costs.pair_s < 1.0):
        return device
    eff = device.efficiency
    heads = 1 if work.head_flops else 0
    scale = min(1.0, one / 2 / fixed) if (fixed := fixed_seconds(device, work)) else 1.0
    fixed *= scale
    flops, half = device.flops(work.precision), _half_rows(eff.half_rows, one - fixed, many - fixed)
    memory = work.bytes(1, heads) / device.bandwidth / (one - fixed)
    operations = work.flops(MANY, heads) / flops * (MANY + half) / MANY
    compute = operations / (many - fixed)
    pairs = sum(each.pair_flops for each in work.attention)
    attention = pairs / flops / costs.pair_s if costs.pair_s and pairs else eff.attention
    fitted = replace(
        eff,
        compute=_bounded(compute),
        memory=_bounded(memory),
        attention=_bounded(attention),
        half_rows=half,
        step_s=eff.step_s * scale,
        layer_s=eff.layer_s * scale,
    )
    return replace(device, efficiency=fitted, factor=1.0)


def _bounded(efficiency: float) -> float:
    return min(max(efficiency, _LEAST), _MOST)


def _half_rows(known: float, one: float, many: float) -> float:
    """Return the known rows of half the efficiency, or as many as leave one row to the memory."""
    return min(known, max(0.0, (MANY * one - many) / (many - one))) if many > one else known
