"""Outcomes of attempts."""

from shoal.transport.identity import PeerId
from shoal.transport.punch.outcome import Outcome, Result, RungOutcome, failed


def test_one_strategy_is_enough() -> None:
    rungs = {"tcp": RungOutcome(Result.NO_ANSWER), "udp": RungOutcome(Result.WORKED, "", 0.3)}
    assert Outcome(PeerId("bert"), rungs, 1).worked
    assert not Outcome(PeerId("bert")).worked


def test_a_refused_offer_fails_every_strategy() -> None:
    outcome = failed(PeerId("bert"), Result.REFUSED, "busy")
    assert not outcome.worked and set(outcome.rungs) == {"tcp", "udp", "prediction"}
    assert {rung.reason for rung in outcome.rungs.values()} == {"busy"}
