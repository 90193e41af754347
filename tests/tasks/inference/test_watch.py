"""Tests of the choice of the stages that delay a chain."""

from typing import cast

import pytest
import trio

from shoal.tasks.defaults import SPAN_DEADLINE
from shoal.tasks.engine.interface import Parts
from shoal.tasks.inference.conversation.watch import Watch, late_stages
from shoal.tasks.inference.courier import Courier
from shoal.tasks.inference.generation import GenerationRun
from shoal.tasks.inference.messages import StageState
from shoal.tasks.routing.paths import Hop
from shoal.transport.errors import CallRefused
from shoal.transport.host.seam import Host
from tests.tasks.fake_swarm import peer_of

PEERS = tuple(peer_of(number) for number in (1, 2, 3))
ROUTE = (
    Hop(PEERS[0], Parts(True, 0, 2, False), "float32"),
    Hop(PEERS[1], Parts(False, 2, 4, False), "float32"),
    Hop(PEERS[2], Parts(False, 4, 6, True), "float32"),
)
REST, WORK, BUSY = StageState(0, 0), StageState(1, 0), StageState(1, 3)


def a_run(*, known: bool = True) -> GenerationRun:
    run = GenerationRun(bytes(16), ROUTE, [1, 2, 3], 8, now=0.0)
    for now in (1.0, 1.01) if known else ():
        run.pace.note(now)
    return run


def late(run: GenerationRun, silence: float, *states: StageState | None) -> set[str]:
    found = {index: state for index, state in enumerate(states) if state is not None}
    return set(late_stages(run, found, silence))


def test_the_wait_is_never_negative_while_the_clock_goes_on() -> None:
    """A round may be due already. Then the next one begins at once."""

    class Clock:
        def __init__(self) -> None:
            self.time = 0.0

        def now(self) -> float:
            self.time += 1e-6
            return self.time

    clock = Clock()
    watch = Watch(cast(Host, clock), cast(Courier, None), a_run())
    clock.time = 1000.0
    assert watch.pause() == 0.0


def test_a_stage_that_does_not_answer_is_late_at_the_deadline() -> None:
    assert late(a_run(), 0.9, REST, None, REST) == set()
    assert late(a_run(), 1.0, REST, None, REST) == {PEERS[1]}
    assert late(a_run(known=False), 1.0, None, REST, None) == {PEERS[0], PEERS[2]}


def test_a_stage_that_computes_for_this_session_alone_is_late_at_the_deadline() -> None:
    assert late(a_run(), 1.0, REST, WORK, WORK) == {PEERS[1]}


def test_before_the_second_message_slowness_is_judged_by_what_was_predicted() -> None:
    run = a_run(known=False)
    assert late(run, 100.0, REST, WORK, REST) == set()
    run.pace.predict(2.0)
    assert late(run, 15.9, REST, WORK, REST) == set()
    assert late(run, 16.0, REST, WORK, REST) == {PEERS[1]}
    run.pace.predict(0.01)
    assert late(run, 9.9, REST, WORK, REST) == set()


def test_a_stage_that_computes_for_others_is_not_late_for_half_a_minute() -> None:
    assert late(a_run(), 30.0, REST, BUSY, REST) == set()
    assert late(a_run(), 31.0, REST, BUSY, REST) == {PEERS[1]}


def test_a_chain_without_waiting_spans_is_on_its_way() -> None:
    assert late(a_run(), 30.0, REST, REST, REST) == set()


def test_a_stage_that_misses_its_neighbour_makes_it_late() -> None:
    run = a_run()
    run.take_quiet(PEERS[0], PEERS[1], quiet=True)
    assert late(run, 1.0, REST, REST, REST) == {PEERS[1]}


def test_a_stage_at_which_a_chain_crawls_may_say_for_half_a_minute_that_others_wait() -> None:
    run, now = a_run(), 1.01
    run.pace.token_s = 0.01
    for _ in range(8):
        now += 0.95
        run.pace.note(now, token=True)
    assert run.pace.crawls and not run.has_gone_on(0.0)
    assert late(run, run.pace.crawled(now), REST, WORK, REST) == {PEERS[1]}
    assert late(run, run.pace.crawled(now), REST, BUSY, REST) == set()
    assert late(run, run.pace.crawled(now + 30), REST, BUSY, REST) == {PEERS[1]}


class Clock:
    at = 1.01

    def now(self) -> float:
        return self.at


def test_stages_that_answered_before_the_deadline_are_asked_again_at_it() -> None:
    clock, run = Clock(), a_run()
    watch = Watch(cast(Host, clock), cast(Courier, None), run)
    assert watch.pause() == pytest.approx(0.5)
    watch.asked = clock.at = 1.55
    assert clock.at + watch.pause() == pytest.approx(2.01, abs=0.01)
    watch.asked = clock.at = 2.05
    assert watch.pause() == pytest.approx(1.0), "and then each second"


class Silent:
    """A courier whose peers never answer."""

    async def call(self, *_: object, timeout: float) -> None:
        await trio.sleep(timeout)
        raise CallRefused("timeout", "no answer")


class Now:
    def now(self) -> float:
        return trio.current_time()


@pytest.mark.trio
async def test_a_silent_stage_is_late_at_the_deadline_whatever_the_time_is(
    autojump_clock: object,
) -> None:
    """Sums of times are rounded: 7.212 + 1 - 7.212 is less than 1."""
    await trio.sleep(100)
    for _ in range(200):
        await trio.sleep(0.0123)
        run = GenerationRun(bytes(16), ROUTE, [1, 2, 3], 8, now=trio.current_time())
        heard = trio.current_time()
        watch = Watch(cast(Host, Now()), cast(Courier, Silent()), run)
        await trio.sleep(watch.pause())
        await watch.look()
        assert run.suspects == {*PEERS}
        assert trio.current_time() - heard == pytest.approx(SPAN_DEADLINE)
