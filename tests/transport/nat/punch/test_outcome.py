"""Outcomes of attempts."""

from shoal.transport.identity import PeerId
from shoal.transport.nat.punch.outcome import PunchOutcome, StrategyOutcome, StrategyResult, failed


def test_one_strategy_is_enough() -> None:
    strategies = {
        "tcp": StrategyOutcome(StrategyResult.NO_ANSWER),
        "udp": StrategyOutcome(StrategyResult.WORKED, "", 0.3),
    }
    assert PunchOutcome(PeerId("bert"), strategies, 1).worked
    assert not PunchOutcome(PeerId("bert")).worked


def test_a_refused_offer_fails_every_strategy() -> None:
    outcome = failed(PeerId("bert"), StrategyResult.REFUSED, "busy")
    assert not outcome.worked and set(outcome.strategies) == {"tcp", "udp", "prediction"}
    assert {strategy.reason for strategy in outcome.strategies.values()} == {"busy"}
