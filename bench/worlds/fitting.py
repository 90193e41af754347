"""Fits the efficiencies of the cost model to measured steps, and measures its error on others."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from shoal.tasks.costs.rates import DeviceRates
from shoal.tasks.costs.seconds import step_seconds
from shoal.tasks.costs.work import EqualRows, ShardWork

LEAST = 1e-9
"""Below this, seconds and rows are as good as none."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured step of a shard."""

    work: ShardWork
    rows: tuple[EqualRows, ...]
    heads: int
    seconds: float

    def predicted(self, device: DeviceRates) -> float:
        """The seconds that the model predicts."""
        return step_seconds(device, self.work, self.rows, self.heads)


def error(device: DeviceRates, steps: Iterable[Measured]) -> float:
    """Return the mean of |predicted - measured| / measured."""
    wrong = [abs(each.predicted(device) / each.seconds - 1.0) for each in steps]
    return sum(wrong) / len(wrong)


def fitted(device: DeviceRates, steps: Sequence[Measured], names: Sequence[str]) -> DeviceRates:
    """Return the device with those efficiencies among `names` that minimise the mean |log| of the
    ratio of predicted and measured seconds. The others stay as they are."""

    def cost(logs: Sequence[float]) -> float:
        known = _with(device, names, logs)
        ratios = (each.predicted(known) / each.seconds for each in steps)
        return sum(abs(math.log(ratio)) for ratio in ratios)

    start = [math.log(max(getattr(device.efficiency, name), LEAST)) for name in names]
    return _with(device, names, _least(cost, start))


def _with(device: DeviceRates, names: Sequence[str], logs: Sequence[float]) -> DeviceRates:
    values = dict(zip(names, map(math.exp, logs), strict=True))
    known = replace(device.efficiency, **values)  # type: ignore[arg-type]  # `tile` is not fitted
    return replace(device, efficiency=known)


def _least(cost: Callable[[Sequence[float]], float], start: list[float]) -> list[float]:
    """Return where `cost` is least near `start`: a search along each coordinate, whose steps grow
    after a success and shrink after a failure."""
    at, best = start, cost(start)
    steps = [0.5] * len(at)
    while max(steps) > 0.005:
        for index in range(len(at)):
            for way in (steps[index], -steps[index]):
                tried = [*at[:index], at[index] + way, *at[index + 1 :]]
                found = cost(tried)
                if found < best:
                    at, best = tried, found
                    steps[index] *= 1.5
                    break
            else:
                steps[index] *= 0.6
    return at
