"""Speed of the shard that this node serves: what was measured after loading, corrected by its
steps."""

from ..costs.shardcosts import NO_COSTS, ShardCosts
from ..costs.steps import MANY
from ..costs.tracker import Deviation, Tracker
from ..defaults import COSTS_CHANGE


class ServedSpeed:
    """Predicted against measured steps of one shard, of running texts and of prompts.

    The worker predicts each step by the costs that it measured after loading. Waiting times are not
    included.
    """

    def __init__(self, costs: ShardCosts = NO_COSTS) -> None:
        self._costs = costs
        self._text, self._prompt = Tracker(), Tracker()

    def note(self, rows: int, predicted: float, seconds: float) -> None:
        """Record the predicted and measured seconds of a span of `rows` rows."""
        (self._text if rows == 1 else self._prompt).note(predicted, seconds)

    @property
    def error(self) -> Deviation:
        """The error of the predictions of both kinds, weighted by their samples."""
        text, prompt = self._text.error, self._prompt.error
        samples = text.samples + prompt.samples
        total = text.mean * text.samples + prompt.mean * prompt.samples
        return Deviation(total / samples if samples else 0.0, samples)

    @property
    def costs(self) -> ShardCosts:
        """The costs of a step as measured steps correct them: those of one row by running texts,
        and those of many rows by prompts, once there were any."""
        step_s, row_s, pair_s = self._costs
        text = self._text.factor
        prompt = self._prompt.factor if self._prompt.samples else text
        one, many = text * (step_s + row_s), prompt * (step_s + MANY * row_s)
        row = min(max(0.0, many - one) / (MANY - 1), one)
        return ShardCosts(one - row, row, prompt * pair_s)

    def differs(self, published: tuple[float, float, float]) -> bool:
        """Return whether published costs are wrong by more than COSTS_CHANGE, for a text or for a
        prompt."""
        now, said = self.costs, ShardCosts(*published)
        return any(
            abs(now.seconds(rows) - said.seconds(rows)) > COSTS_CHANGE * said.seconds(rows)
            for rows in (1, MANY)
        )

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of one session whose text is short, or 0 if it is unknown."""
        costs = self.costs
        one = costs.step_s + costs.row_s
        return 1.0 / one if one > 0.0 else 0.0
