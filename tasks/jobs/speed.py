"""Predicted run times of rows on a node: from the costs that stages publish, corrected by what was
measured here. No I/O."""

import math
from collections import OrderedDict
from collections.abc import Iterable

from ..costs.shardcosts import NO_COSTS, ShardCosts
from ..defaults import MAX_STAGES
from ..inference.shards import Members
from . import defaults
from .kinds.kind import RowSize


def chain_costs(members: Members, root: str) -> ShardCosts:
    """Return the costs of the cheapest chain that serves a model, all stages together, or NO_COSTS
    if they are unknown."""
    shards = [shard for record in members.values() for shard in record.shards if shard.root == root]
    best: dict[int, tuple[float, ShardCosts]] = {0: (0.0, NO_COSTS)}  # by end layer
    for shard in sorted(shards, key=lambda each: (each.start, each.stop))[: MAX_STAGES**2]:
        before = best.get(shard.start)
        if before is None or shard.start >= shard.stop:
            continue
        step_s, row_s, pair_s = map(sum, zip(before[1], shard.costs, strict=True))
        found = ShardCosts(step_s, row_s, pair_s)
        price = found.seconds(1)
        if price < best.get(shard.stop, (math.inf, NO_COSTS))[0]:
            best[shard.stop] = price, found
    last = max((shard.stop for shard in shards if shard.head), default=0)
    return best.get(last, (0.0, NO_COSTS))[1]


class JobSpeed:
    """Predictions for this node. Each prediction is multiplied by the factor that was measured for
    its model and kind."""

    def __init__(self) -> None:
        self._factors: OrderedDict[tuple[str, str], float] = OrderedDict()

    def seconds(self, what: tuple[str, str], costs: ShardCosts, sizes: Iterable[RowSize]) -> float:
        """Return the predicted seconds for rows that are computed many at a time.

        `what` is (root of the model, kind).
        """
        return self._factors.get(what, 1.0) * sum(row_seconds(costs, size) for size in sizes)

    def measured(self, what: tuple[str, str], predicted: float, took: float) -> None:
        """Record that work took `took` seconds, for which `predicted` seconds were predicted."""
        if predicted <= 0.0:
            return
        before = self._factors.pop(what, 1.0)
        factor = before * min(max(took / predicted, 0.1), 10.0)
        share = defaults.SPEED_SHARE
        self._factors[what] = min(max((1 - share) * before + share * factor, 1e-3), 1e3)
        if len(self._factors) > defaults.MODELS_WAITED_FOR:
            self._factors.popitem(last=False)


def alone_seconds(costs: ShardCosts, size: RowSize) -> float:
    """Return the seconds from the beginning of a row to its end, however few rows share its
    steps."""
    if costs == NO_COSTS:
        costs = ShardCosts(defaults.UNKNOWN_STEP, defaults.UNKNOWN_STEP / 4)
    prompt = max(1.0, size.characters / defaults.CHARACTERS_A_TOKEN)
    made = min(size.tokens, defaults.EXPECTED_TOKENS)
    return prompt * costs.row_s + made * (costs.step_s + costs.row_s)


def row_seconds(costs: ShardCosts, size: RowSize) -> float:
    """Return the seconds that a row takes of a step's time, if BATCH rows share each step."""
    if costs == NO_COSTS:
        costs = ShardCosts(defaults.UNKNOWN_STEP, defaults.UNKNOWN_STEP / 4)
    prompt = max(1.0, size.characters / defaults.CHARACTERS_A_TOKEN)
    made = min(size.tokens, defaults.EXPECTED_TOKENS)
    step = costs.step_s / defaults.FIRST_ROWS + costs.row_s
    pairs = prompt * prompt / 2 + made * (prompt + made / 2)
    return prompt * costs.row_s + made * step + pairs * costs.pair_s
