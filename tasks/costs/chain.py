"""Predicted times of a chain: the first token, each further token, and speculative windows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from .rates import DeviceRates, LinkRates
from .seconds import sending_seconds, step_seconds, transfer_seconds
from .shardcosts import ShardCosts
from .work import EqualRows, ShardWork

TOKEN_BYTES = 64
"""Bytes of a message with one token."""
CHUNK = 512
"""Positions of a prompt that go through a chain together."""


@dataclass(frozen=True, slots=True)
class CostedStage:
    """A stage of a chain: its shard, its device, the link from the stage before it (or from the
    gateway), and the running texts of other sessions that share its steps.

    `row_bytes` are those of a row on the link: 0 stands for a hidden state in the model's dtype.
    """

    work: ShardWork
    device: DeviceRates
    link: LinkRates
    others: tuple[EqualRows, ...] = ()
    row_bytes: int = 0

    def seconds(self, rows: EqualRows, heads: int) -> float:
        """Return the seconds of a step with these rows and those of the others. The last stage
        computes logits for `heads` of them."""
        logits = heads if self.work.head_bytes else 0
        if not self.others:
            return step_seconds(self.device, self.work, (rows,), logits)
        if logits:
            logits += sum(each.sessions for each in self.others)
        return step_seconds(self.device, self.work, (rows, *self.others), logits)

    def bytes_of(self, count: int) -> int:
        """Return the bytes of `count` rows on the link."""
        return count * (self.row_bytes or self.work.hidden_bytes)


class ChainTimes(NamedTuple):
    """Predicted seconds: until the first token, and for each further token (without drafts)."""

    first_token_s: float
    token_s: float


class WindowTimes(NamedTuple):
    """Predicted seconds of a speculative window in a chain: until its tokens are back, and between
    two windows, because the slowest stage computes or sends one at a time."""

    latency_s: float
    interval_s: float


class WindowPrices(NamedTuple):
    """Predicted seconds of windows of drafts: a window of one row takes `round_s` around the chain,
    and `row_s` more for each further row. With one row, the slowest stage is busy for `step_s`."""

    round_s: float
    row_s: float
    step_s: float


NO_PRICES: Final = WindowPrices(0.0, 0.0, 0.0)
"""Nothing is known yet."""


def window_prices(
    stages: Sequence[ShardCosts], ring: Sequence[LinkRates], row_bytes: int, position: int
) -> WindowPrices:
    """Return the prices of windows from `position` on. `ring` are the links from each stage to the
    next, and from the last one to the first, which carries tokens. The others carry `row_bytes` for
    each row."""
    steps = [stage.seconds(1, position) for stage in stages]
    rows = [stage.seconds(2, position) - step for stage, step in zip(stages, steps, strict=True)]
    sending = [sending_seconds(link, row_bytes) for link in ring[:-1]]
    ways = [transfer_seconds(link, row_bytes) for link in ring[:-1]]
    round_s = sum(steps) + sum(ways) + transfer_seconds(ring[-1], TOKEN_BYTES)
    return WindowPrices(round_s, sum(rows) + sum(sending), max((*steps, *sending)))


def chain_times(
    stages: Sequence[CostedStage], back: LinkRates, prompt: int, cached: int = 0
) -> ChainTimes:
    """Return the predicted times of an answer to a prompt of `prompt` positions, of which `cached`
    are cached in every stage.

    `back` is the link from the last stage to the gateway, or to the first stage in a ring.
    """
    token = window_times(stages, back, 1, prompt).latency_s
    left = max(1, prompt - cached)
    size = min(left, CHUNK)
    first = window_times(stages, back, size, cached, heads=1)
    later = window_times(stages, back, size, cached + left // 2, heads=0)
    return ChainTimes(first.latency_s + (left / size - 1) * later.interval_s, token)


def window_times(
    stages: Sequence[CostedStage],
    back: LinkRates,
    rows: int,
    position: int,
    heads: int | None = None,
) -> WindowTimes:
    """Return the predicted times of a window of `rows` positions from `position` on: drafts that
    are verified together, or a part of a prompt. `heads` of them need logits; None: all."""
    window = EqualRows(rows, position)
    logits = rows if heads is None else heads
    computing = [stage.seconds(window, logits) for stage in stages]
    arriving = [transfer_seconds(stage.link, stage.bytes_of(rows)) for stage in stages]
    answer = transfer_seconds(back, TOKEN_BYTES)
    sending = [sending_seconds(stage.link, stage.bytes_of(rows)) for stage in stages]
    busiest = max((*computing, *sending), default=0.0)
    return WindowTimes(sum(computing) + sum(arriving) + answer, busiest)
