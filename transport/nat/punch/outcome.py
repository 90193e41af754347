"""Outcome of an attempt. It is shown to people, and decides when the next attempt is made."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from ...identity import PeerId


class StrategyResult(StrEnum):
    """Result of one strategy in an attempt."""

    WORKED = "worked"
    REFUSED = "refused"  # the peer refused the offer, or a router reset the TCP dials
    NO_ANSWER = "no-answer"
    NOT_POSSIBLE = "not-possible"  # this node could not try it, or had to stop
    NOT_NEEDED = "not-needed"  # another strategy succeeded first


@dataclass(frozen=True, slots=True)
class StrategyOutcome:
    """Outcome of one strategy."""

    result: StrategyResult
    reason: str = ""  # a code (docs/spec/punch.md, section 7); "" if there is nothing to add
    after: float | None = None  # seconds from the attempt's beginning to a byte stream


@dataclass(frozen=True, slots=True)
class PunchOutcome:
    """Outcome of one attempt. The keys of `strategies` are "tcp", "udp" and "prediction"."""

    peer: PeerId
    strategies: Mapping[str, StrategyOutcome] = field(default_factory=lambda: MappingProxyType({}))
    rounds: int = 0

    @property
    def worked(self) -> bool:
        """Whether some strategy has opened a direct path."""
        return any(
            strategy.result is StrategyResult.WORKED for strategy in self.strategies.values()
        )


def failed(peer: PeerId, result: StrategyResult, reason: str, rounds: int = 0) -> PunchOutcome:
    """Return an outcome of some rounds in which all strategies have the same result and reason."""
    return PunchOutcome(
        peer, dict.fromkeys(("tcp", "udp", "prediction"), StrategyOutcome(result, reason)), rounds
    )
