"""Costs of a loaded shard as straight lines: what a scheduler plans with, and what a node measures
after loading."""

from dataclasses import replace

from .rates import DeviceRates
from .seconds import attention_seconds, fixed_seconds, product_seconds
from .shardcosts import ShardCosts
from .work import EqualRows, ShardWork

MANY = 64
"""Rows of the larger step by which a shard is measured."""
FAR = 1024
"""Positions to which the row of a text attends in a measurement."""
_LEAST, _MOST = 1e-4, 1e4  # bounds of efficiencies


def shard_costs(device: DeviceRates, work: ShardWork) -> ShardCosts:
    """Return the straight line through the predicted steps of one row and of MANY rows."""
    heads = 1 if work.head_flops else 0
    one, many = (product_seconds(device, work, rows, heads) for rows in (1, MANY))
    row = (many - one) / (MANY - 1)
    rate = device.flops(work.precision) * device.efficiency.attention
    pairs = sum(each.pair_flops for each in work.attention) / rate
    factor, fixed = device.factor, fixed_seconds(device, work)
    return ShardCosts(factor * (one - row + fixed), factor * row, factor * pairs)


def chosen_seconds(device: DeviceRates, work: ShardWork) -> float:
    """Return the seconds by which a step of MANY rows is longer for each further row of which it
    computes the logits."""
    if not work.head_flops:
        return 0.0
    one, many = (product_seconds(device, work, MANY, heads) for heads in (1, MANY))
    return device.factor * (many - one) / (MANY - 1)


def alone_seconds(device: DeviceRates, work: ShardWork) -> float:
    """Return the seconds by which a position costs more if one row attends to it than a row of a
    prompt does, because its keys and values are read for this row only."""
    if not work.attention:
        return 0.0
    none, far = (attention_seconds(device, work, [EqualRows(1, at)]) for at in (0, FAR))
    pairs = shard_costs(device, work).pair_s
    return max(0.0, device.factor * (far - none) / FAR - pairs)


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
    one, many = one - fixed, many - fixed
    flops, apart = device.flops(work.precision), 1.0 - eff.overlap
    half = _half_rows(eff.half_rows, one, many)
    share = (1 + half) / (MANY + half)  # of the operations of many rows that one row takes
    computing = (many - apart * one) / (1.0 - apart * apart * share)
    reading = one - apart * share * computing
    compute = _ratio(work.flops(MANY, heads) / flops * (MANY + half) / MANY, computing)
    memory = _ratio(work.bytes(1, heads) / device.bandwidth, reading)
    pairs = sum(each.pair_flops for each in work.attention)
    attention = _ratio(pairs / flops, costs.pair_s) if costs.pair_s and pairs else eff.attention
    fitted = replace(
        eff,
        compute=compute,
        memory=memory,
        attention=attention,
        half_rows=half,
        step_s=eff.step_s * scale,
        layer_s=eff.layer_s * scale,
    )
    return replace(device, efficiency=fitted, factor=1.0)


def _ratio(ideal: float, seconds: float) -> float:
    """Return an efficiency within its bounds."""
    return min(max(ideal / seconds, _LEAST), _MOST) if seconds > 0.0 else _MOST


def _half_rows(known: float, one: float, many: float) -> float:
    """Return the known rows of half the efficiency, or as many as leave one row to the memory."""
    return min(known, max(0.0, (MANY * one - many) / (many - one))) if many > one else known
