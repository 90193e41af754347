"""Costs of a shard as a straight line, as they are measured, published and planned with."""

from typing import Final, NamedTuple


class ShardCosts(NamedTuple):
    """Seconds of a step: `step_s`, plus `row_s` for each row, plus `pair_s` for each pair of a row
    and a position that it attends to. All 0 if they are unknown."""

    step_s: float = 0.0
    row_s: float = 0.0
    pair_s: float = 0.0

    def seconds(self, rows: int, position: int = 0) -> float:
        """Return the seconds of a step with `rows` rows of one session from `position` on."""
        pairs = rows * (2 * position + rows + 1) / 2
        return self.step_s + rows * self.row_s + pairs * self.pair_s


NO_COSTS: Final = ShardCosts()
