"""Costs of a shard as a straight line, as they are measured, published and planned with."""

from typing import Final, NamedTuple


class ShardCosts(NamedTuple):
    """Seconds of a step: `step_s`, plus `row_s` for each row, plus `pair_s` for each pair of a row
    and a position that it attends to. All 0 if they are unknown."""

    step_s: float = 0.0
    row_s: float = 0.0
    pair_s: float = 0.0


NO_COSTS: Final = ShardCosts()
