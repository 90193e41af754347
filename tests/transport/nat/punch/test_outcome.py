"""Outcomes of attempts."""

from shoal.transport.identity import PeerId
from shoal.transport.nat.punch.outcome import Outcome, Result, StrategyOutcome, failed


def test_one_strategy_is_enough() -> None:
    strategies = {
        "tcp": StrategyOutcome(Result.NO_ANSWER),
        "udp": StrategyOutcome(Result.WORKED, "", 0.3),
    }
    assert Outcome(PeerId("bert"), strategies, 1).worked
    assert not Outcome(PeerId("bert")).worked


def test_a_refused_offer_fails_every_strategy() -> None:
    outcome = failed(PeerId("bert"), Result.REFUSED, "busy")
    assert not outcome.worked and set(outcome.strategies) == {"tcp", "udp", "prediction"}
    assert {strategy.reason for strategy in outcome.strategies.values()} == {"busy"}
