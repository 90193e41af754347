"""Seconds of a token over whole chains, and from one stage to the next, as a gateway measured them.

A prediction adds up what members claim and report, so the best of many predictions is mostly too
good. A measurement counts before it, and less and less as it gets older. A chain that was not
measured is predicted with the measured pairs of stages that it shares with others. No I/O.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from .defaults import (
    CHAINS_LOOKED,
    CHAINS_MEASURED,
    MEASURED_HALF_LIFE,
    MEASURED_TOKENS,
    MODELS_MEASURED,
    PAIRS_MEASURED,
    UNMEASURED,
)
from .paths import Hop

_LONGEST_S: Final = 3600.0
_Pair = tuple[str, str, int, int]  # the peer before, and the peer and layers of a stage
Key = TypeVar("Key")


class _Timing(NamedTuple):
    """Measured seconds, from 0 to 1 how sure they were, and when that was."""

    seconds: float
    sure: float
    at: float

    def weight(self, now: float) -> float:
        """Return from 0 to 1 how much the measurement counts."""
        return float(self.sure * 0.5 ** (max(0.0, now - self.at) / MEASURED_HALF_LIFE))

    def beside(self, predicted: float, now: float) -> float:
        """Return the seconds to believe if others are predicted."""
        weight = self.weight(now)
        return weight * self.seconds + (1.0 - weight) * predicted


class MeasuredModel:
    """Measurements of the chains of one model, and of their pairs of stages. If there are too many,
    the oldest ones are forgotten."""

    def __init__(self) -> None:
        self._chains: OrderedDict[tuple[Hop, ...], _Timing] = OrderedDict()
        self._pairs: OrderedDict[_Pair, _Timing] = OrderedDict()

    def note(
        self, chain: tuple[Hop, ...], parts: Sequence[float], seconds: float, tokens: int,
        now: float,
    ) -> None:  # fmt: skip
        """Record that `tokens` tokens took `seconds` each around a chain of several stages.

        `parts` are the predicted seconds from each stage to the next, and from the last one to the
        first: the measured seconds are divided in their proportion.
        """
        predicted = sum(parts)
        if not 0.0 < seconds <= _LONGEST_S or not 0.0 < predicted <= _LONGEST_S:
            return
        sure = min(1.0, tokens / MEASURED_TOKENS)
        _enter(self._chains, chain, _Timing(seconds, sure, now), CHAINS_MEASURED)
        for one, other, part in zip(chain, (*chain[1:], chain[0]), parts, strict=True):
            known = _Timing(seconds * part / predicted, sure, now)
            _enter(self._pairs, _pair(one, other), known, PAIRS_MEASURED)

    def pair_s(self, one: Hop, other: Hop, predicted: float, now: float) -> float:
        """Return the seconds to believe from the end of one stage to the end of the next.

        A pair that was not measured counts as slower than predicted if others were measured, since
        the best of several predictions is mostly too good.
        """
        if not self._pairs:
            return predicted
        known = self._pairs.get(_pair(one, other))
        return UNMEASURED * predicted if known is None else known.beside(predicted, now)

    def chain_s(self, chain: tuple[Hop, ...], predicted: float, now: float) -> float:
        """Return the seconds to believe of a token around a chain. `predicted` is the sum of its
        pairs."""
        known = self._chains.get(chain)
        return predicted if known is None else known.beside(predicted, now)

    def latest(self) -> list[tuple[Hop, ...]]:
        """Return the chains that were measured last, CHAINS_LOOKED at most."""
        return list(islice(reversed(self._chains), CHAINS_LOOKED))


@dataclass(frozen=True, slots=True)
class MeasuredNow:
    """The measurements of a model, as `Search` takes them at one moment."""

    model: MeasuredModel
    now: float

    def pair_s(self, one: Hop, other: Hop, predicted: float) -> float:
        """Return the seconds to believe from the end of one stage to the end of the next."""
        return self.model.pair_s(one, other, predicted, self.now)

    def chain_s(self, chain: tuple[Hop, ...], predicted: float) -> float:
        """Return the seconds to believe of a token around a chain."""
        return self.model.chain_s(chain, predicted, self.now)


class MeasuredChains:
    """Memory of one gateway: measurements of the MODELS_MEASURED models that it used last."""

    def __init__(self) -> None:
        self._models: OrderedDict[str, MeasuredModel] = OrderedDict()

    def of(self, root: str) -> MeasuredModel:
        """Return the measurements of a model."""
        model = self._models.setdefault(root, MeasuredModel())
        self._models.move_to_end(root)
        if len(self._models) > MODELS_MEASURED:
            self._models.popitem(last=False)
        return model


def _pair(one: Hop, other: Hop) -> _Pair:
    return one.peer, other.peer, other.parts.start, other.parts.stop


def _enter(table: OrderedDict[Key, _Timing], key: Key, known: _Timing, most: int) -> None:
    """Enter what was measured last, as a mean with what was measured before."""
    before = table.pop(key, None)
    if before is not None and (old := before.weight(known.at)):
        share = known.sure / (known.sure + old)
        seconds = share * known.seconds + (1.0 - share) * before.seconds
        known = _Timing(seconds, max(known.sure, old), known.at)
    table[key] = known
    if len(table) > most:
        table.popitem(last=False)
