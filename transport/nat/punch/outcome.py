"""Outcome of an attempt, for people and for the code that decides on the next attempt."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from ...identity import PeerId


class Result(StrEnum):
    WORKED = "worked"
    REFUSED = "refused"
    NO_ANSWER = "no-answer"
    NOT_POSSIBLE = "not-possible"
    NOT_NEEDED = "not-needed"  # another method succeeded first


@dataclass(frozen=True, slots=True)
class StrategyOutcome:
    """Outcome of one strategy. `reason` is a code, or "". `after` is the time from the first offer
    to a byte stream, in seconds."""

    result: Result
    reason: str = ""
    after: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of one attempt. The keys of `strategies` are "tcp", "udp" and "prediction"."""

    peer: PeerId
    strategies: Mapping[str, StrategyOutcome] = field(default_factory=lambda: MappingProxyType({}))
    rounds: int = 0

    @property
    def worked(self) -> bool:
        """Whether there is a direct path now."""
        return any(strategy.result is Result.WORKED for strategy in self.strategies.values())


def failed(peer: PeerId, result: Result, reason: str, rounds: int = 0) -> Outcome:
    """Return an outcome in which every strategy failed for the same reason."""
    return Outcome(
        peer, dict.fromkeys(("tcp", "udp", "prediction"), StrategyOutcome(result, reason)), rounds
    )
