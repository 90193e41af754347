"""One attempt, from its first round to its outcome."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.transport.nat.punch import schedule
from shoal.transport.nat.punch.attempt import PunchAttempt, PunchRole
from shoal.transport.nat.punch.candidates import Candidate, CandidateKind, CandidateTransport
from shoal.transport.nat.punch.defaults import PunchLimits
from shoal.transport.nat.punch.offer import PunchOffer
from shoal.transport.nat.punch.outcome import StrategyResult
from shoal.transport.nat.punch.predict import NatProfile, PredictionPlan
from shoal.transport.nat.punch.preparing import PreparedRound
from tests.transport.nat.punch.street import APD, EI, Street, meet


def alone(body: Callable[[PunchAttempt], Awaitable[Any]], **settings: Any) -> Any:
    """An attempt of `anna` with a silent peer."""

    async def main(street: Street) -> Any:
        side = street.a
        peer = side.other.endpoint.peer
        attempt = PunchAttempt(
            side.puncher.tools,
            peer,
            side.seen(peer),
            PunchRole(b"12345678", client=True, offering=True),
        )

        async def run() -> Any:
            async with trio.open_nursery() as nursery:
                await nursery.start(attempt.run)
                return await body(attempt)

        return await side.computer.run(run)

    return Street(("linux-drop", "linux-drop"), **settings).run(main)


def test_an_attempt_ends_by_itself() -> None:
    async def body(attempt: PunchAttempt) -> None:
        began = trio.current_time()
        await attempt.over.wait()
        assert trio.current_time() - began == pytest.approx(PunchLimits().attempt_s)
        assert attempt.settled.is_set() and not attempt.outcome().worked

    alone(body)


def test_an_abandoned_attempt_ends_at_once() -> None:
    async def body(attempt: PunchAttempt) -> None:
        attempt.give_up()
        await trio.testing.wait_all_tasks_blocked()
        assert attempt.over.is_set()

    alone(body)


def test_another_path_to_the_peer_ends_the_attempt_after_a_moment() -> None:
    async def body(attempt: PunchAttempt) -> None:
        attempt.met("tcp")
        began = trio.current_time()
        await attempt.over.wait()
        assert trio.current_time() - began == pytest.approx(PunchLimits().grace_s)
        strategies = attempt.outcome().strategies
        assert strategies["tcp"].result is StrategyResult.WORKED
        assert strategies["udp"].result is StrategyResult.NOT_NEEDED
        assert strategies["prediction"].result is StrategyResult.NOT_NEEDED

    alone(body)


def test_a_hard_side_sends_nothing_before_the_easy_side() -> None:
    """A packet that comes too early would make some routers redirect all later ones."""

    async def body(attempt: PunchAttempt) -> None:
        place = next(iter(attempt._seen.vouched)), 4001
        easy = [Candidate(place, CandidateKind.OBSERVED, CandidateTransport.UDP)]
        theirs = PunchOffer(attempt.name, 1, bytes(20), NatProfile(EI, APD), easy, (), None, 0.1)
        began = trio.current_time()
        assert attempt.reserve_search()
        await attempt.begin(PreparedRound(NatProfile(APD, APD), []), theirs, began)
        assert attempt.plan is PredictionPlan.OPEN
        assert attempt.checks._queue[0][0] == began + schedule.OPEN_AFTER_S
        attempt.give_up()

    alone(body)


def test_a_peer_that_gets_in_where_others_cannot_came_through_our_hole() -> None:
    async def body(attempt: PunchAttempt) -> None:
        ip = next(iter(attempt._seen.vouched))
        theirs = PunchOffer(attempt.name, 1, bytes(20), NatProfile(), [])
        assert not attempt.opens(ip), "nothing was sent yet"
        for kind, opens in (
            (CandidateKind.OBSERVED, True),
            (CandidateKind.PUBLIC, False),
            (CandidateKind.MAPPED, False),
        ):
            ours = [Candidate(("198.51.100.7", 4001), kind, CandidateTransport.TCP)]
            await attempt.begin(PreparedRound(NatProfile(), ours), theirs, trio.current_time())
            assert attempt.opens(ip) is opens
            assert not attempt.opens("203.0.113.99")
        attempt.give_up()

    alone(body)


def test_the_outcome_of_prediction_for_each_plan() -> None:
    async def body(attempt: PunchAttempt) -> None:
        for plan, result, reason in (
            (PredictionPlan.CHECKS, StrategyResult.NOT_NEEDED, ""),
            (PredictionPlan.FOLLOW, StrategyResult.NO_ANSWER, ""),
            (PredictionPlan.SPRAY, StrategyResult.NOT_POSSIBLE, "busy"),
            (PredictionPlan.HOPELESS, StrategyResult.NOT_POSSIBLE, "symmetric-both"),
        ):
            attempt.plan = plan
            strategy = attempt.outcome().strategies["prediction"]
            assert (strategy.result, strategy.reason) == (result, reason)
        attempt.plan = PredictionPlan.BLOCKED
        assert attempt.outcome().strategies["udp"].reason == "udp-blocked"
        attempt.give_up()

    alone(body)


def test_no_round_begins_once_the_attempt_has_ended() -> None:
    async def body(attempt: PunchAttempt) -> None:
        theirs = PunchOffer(b"12345678", 1, b"k" * 20, NatProfile(), [])
        attempt.give_up()
        await attempt.begin(PreparedRound(NatProfile(), []), theirs, trio.current_time() + 1)
        assert attempt.over.is_set() and attempt.kept is None

    alone(body)


def test_a_lossy_link_takes_longer_but_works() -> None:
    lossy = LinkSpec(up=PipeSpec(delay=0.02, loss=0.1), down=PipeSpec(delay=0.02, loss=0.1))
    for seed in range(10):
        met = meet(("linux-drop", "linux-drop"), links=(lossy, lossy), seed=seed, tcp=False)
        assert met.connected, seed
