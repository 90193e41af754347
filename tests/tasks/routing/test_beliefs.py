"""Beliefs of a gateway about stages: claims, replies to probes, and measurements."""

import pytest

from shoal.tasks.engine.interface import Parts
from shoal.tasks.routing.beliefs import Beliefs, Load, Observed, Shard, StageTimes, Times
from shoal.tasks.routing.defaults import (
    LATE_ANSWERS,
    LATE_HALF_LIFE,
    LOAD_FRESH,
    MISSED_FIRST,
    MISSED_LONGEST,
    STAGES_KNOWN,
    WAIT_LONGEST,
)
from shoal.transport.identity import PeerId

ROOT = "ab" * 32
CLAIMED = Times(1e-3, 0.05)
LIAR = Times(1e-6, 5e-5)  # a thousand times as fast


def shard(name: str) -> Shard:
    return Shard(PeerId(name), ROOT, Parts(True, 0, 4, True))


def test_a_claim_counts_until_the_first_answer() -> None:
    beliefs = Beliefs()
    assert beliefs.times(shard("a"), LIAR) == LIAR
    answer = Observed(1.04, 0.04, 500, 0.05, 0.0, 20)
    beliefs.observed([StageTimes(shard("a"), LIAR, 0.0)], answer, 0.0)
    measured = beliefs.times(shard("a"), LIAR)
    assert measured.row_s == pytest.approx(0.002, rel=0.1)
    assert measured.token_s == pytest.approx(0.05, rel=0.1)
    assert beliefs.times(shard("a"), Times(1e-9, 1e-9)) == measured


def test_a_liar_in_a_chain_takes_what_the_measured_stages_leave() -> None:
    beliefs = Beliefs()
    honest, liar = StageTimes(shard("a"), CLAIMED, None), StageTimes(shard("b"), LIAR, None)
    beliefs.observed([honest], Observed(0.0, 0.0, 0, 0.05, 0.0, 50), 0.0)
    beliefs.observed([honest, liar], Observed(0.0, 0.0, 0, 0.25, 0.0, 50), 0.0)
    assert beliefs.times(shard("a"), CLAIMED).token_s == pytest.approx(0.05)
    assert beliefs.times(shard("b"), LIAR).token_s == pytest.approx(0.2)


def test_two_stages_that_were_never_measured_share_the_time() -> None:
    beliefs = Beliefs()
    both = [StageTimes(shard("a"), CLAIMED, None), StageTimes(shard("b"), LIAR, None)]
    beliefs.observed(both, Observed(0.0, 0.0, 0, 0.3, 0.1, 50), 0.0)
    assert beliefs.times(shard("b"), LIAR).token_s == pytest.approx(0.1)
    assert beliefs.times(shard("a"), CLAIMED).token_s == CLAIMED.token_s  # within a factor of two


def test_waits_explain_at_most_nine_tenths_of_the_time_of_a_prompt() -> None:
    beliefs = Beliefs()
    both = [StageTimes(shard(name), LIAR, 10.0) for name in "ab"]
    beliefs.observed(both, Observed(10.0, 0.0, 1000, 0.1, 0.2, 50), 0.0)
    assert beliefs.times(shard("a"), LIAR).row_s > 8e-4


def test_a_stage_whose_time_links_hide_is_no_slower_than_one_that_was_not_measured() -> None:
    """Else each new chain looks better than the one that was just measured."""
    beliefs, fast = Beliefs(), Times(1e-3, 2e-3)
    both = [StageTimes(shard(name), fast, None) for name in "ab"]
    beliefs.observed(both, Observed(0.0, 0.0, 0, 0.1, 0.11, 50), 0.0)
    assert [beliefs.times(shard(name), fast) for name in "ab"] == [fast, fast]


def test_a_liar_that_reports_long_links_first_gains_one_answer() -> None:
    beliefs = Beliefs()
    both = [StageTimes(shard(name), LIAR, None) for name in "ab"]
    beliefs.observed(both, Observed(0.0, 0.0, 0, 0.1, 0.2, 50), 0.0)
    beliefs.observed(both, Observed(0.0, 0.0, 0, 0.1, 0.01, 50), 0.0)  # now they report short ones
    assert sum(beliefs.times(shard(name), LIAR).token_s for name in "ab") == pytest.approx(0.09)


def test_a_machine_that_becomes_slower_is_believed_to_be_slower() -> None:
    beliefs = Beliefs()
    slow, other = StageTimes(shard("a"), CLAIMED, None), StageTimes(shard("b"), CLAIMED, None)
    for each in (slow, other):
        beliefs.observed([each], Observed(1.0, 0.0, 1000, 0.05, 0.0, 50), 0.0)
    for _ in range(30):
        beliefs.observed([slow], Observed(9.0, 0.0, 1000, 0.5, 0.0, 50), 0.0)
        beliefs.observed([other], Observed(1.0, 0.0, 1000, 0.05, 0.0, 50), 0.0)
    row, token = beliefs.times(shard("a"), CLAIMED)
    assert row > 3 * CLAIMED.row_s and token > 3 * CLAIMED.token_s
    assert beliefs.times(shard("b"), CLAIMED) == CLAIMED


def test_a_busy_time_makes_no_stage_slow() -> None:
    """All stages need four times as long as they claim, and one of them twenty times."""
    beliefs = Beliefs()
    for number in range(90):
        name = "abc"[number % 3]
        took = 20.0 if name == "a" else 4.0
        stages = [StageTimes(shard(name), CLAIMED, None)]
        beliefs.observed(stages, Observed(took, 0.0, 1000), 0.0)
    assert beliefs.times(shard("b"), CLAIMED) == CLAIMED
    assert beliefs.times(shard("a"), CLAIMED).row_s > 2 * CLAIMED.row_s


def test_waits_in_busy_times_are_not_taken_for_slowness() -> None:
    beliefs, taken = Beliefs(), [StageTimes(shard("a"), CLAIMED, None)]
    for took in (9.0, 3.0, 1.2, 8.0, 8.0):
        beliefs.observed(taken, Observed(took, 0.0, 1000), 0.0)
    assert beliefs.times(shard("a"), CLAIMED).row_s == CLAIMED.row_s


def test_a_few_tokens_or_rows_prove_nothing() -> None:
    beliefs = Beliefs()
    stages = [StageTimes(shard("a"), CLAIMED, None)]
    beliefs.observed(stages, Observed(5.0, 0.0, 3, 9.0, 0.0, 2), 0.0)
    assert beliefs.times(shard("a"), CLAIMED) == CLAIMED


def test_a_stage_that_says_it_has_no_load_is_found_out() -> None:
    """It says that nothing waits, and each prompt of 1,000 rows takes 4 s longer than that."""
    beliefs = Beliefs()
    taken = [StageTimes(shard("a"), CLAIMED, 0.0)]
    beliefs.observed(taken, Observed(1.0, 0.0, 1000), 0.0)  # once it was true
    assert beliefs.late(shard("a"), 0.0) == pytest.approx(0.0, abs=1e-9)
    for number in range(LATE_ANSWERS):
        beliefs.observed(taken, Observed(5.0, 0.0, 1000), float(number))
    late = beliefs.late(shard("a"), 3.0)
    assert late > 2.0
    assert beliefs.late(shard("a"), 3.0 + LATE_HALF_LIFE) < 0.6 * late


def test_a_stage_is_not_late_if_all_are() -> None:
    beliefs = Beliefs()
    for number in range(60):
        taken = [StageTimes(shard("abc"[number % 3]), CLAIMED, 0.0)]
        beliefs.observed(taken, Observed(6.0, 0.0, 1000), 0.0)
    assert [beliefs.late(shard(name), 0.0) for name in "abc"] == [0.0, 0.0, 0.0]
    for _ in range(LATE_ANSWERS):
        beliefs.observed([StageTimes(shard("a"), CLAIMED, 0.0)], Observed(30.0, 0.0, 1000), 0.0)
    assert beliefs.late(shard("a"), 0.0) > 8.0
    assert beliefs.late(shard("b"), 0.0) == 0.0


def test_one_liar_does_not_change_what_is_usual() -> None:
    beliefs = Beliefs()
    liar, honest = StageTimes(shard("a"), CLAIMED, 0.0), StageTimes(shard("b"), CLAIMED, 0.0)
    for each in (liar, honest):
        beliefs.observed([each], Observed(1.0, 0.0, 1000), 0.0)
    for _ in range(8):
        for _ in range(LATE_ANSWERS):
            beliefs.observed([liar], Observed(101.0, 0.0, 1000), 0.0)
        beliefs.observed([honest], Observed(1.0, 0.0, 1000), 0.0)
    assert beliefs.late(shard("a"), 0.0) > 50.0


def test_what_a_stage_said_beforehand_is_no_lateness() -> None:
    beliefs = Beliefs()
    taken = [StageTimes(shard("a"), CLAIMED, 0.0)]
    beliefs.observed(taken, Observed(1.0, 0.0, 1000), 0.0)
    taken = [StageTimes(shard("a"), CLAIMED, 4.0)]
    beliefs.observed(taken, Observed(5.0, 0.0, 1000), 1.0)
    assert beliefs.late(shard("a"), 1.0) == pytest.approx(0.0, abs=1e-9)


def test_a_load_is_used_while_it_is_fresh_and_with_what_was_sent_since() -> None:
    beliefs = Beliefs()
    beliefs.told(shard("a"), Load(2.0, 512), 10.0)
    beliefs.give(shard("a"), 1.5)
    assert beliefs.load(shard("a"), 10.0 + LOAD_FRESH) == Load(3.5, 512)
    assert beliefs.load(shard("a"), 10.1 + LOAD_FRESH) is None
    beliefs.told(shard("a"), Load(1e300, 0), 20.0)
    assert beliefs.load(shard("a"), 20.0) == Load(WAIT_LONGEST, 0)


def test_a_silent_stage_is_asked_ever_more_seldom() -> None:
    beliefs, now, pauses = Beliefs(), 0.0, []
    for _ in range(12):
        beliefs.missed(shard("a"), now)
        pauses.append(beliefs.silent(shard("a"), now))
        assert not beliefs.may_ask(shard("a"), now)
        now += pauses[-1]
        assert beliefs.may_ask(shard("a"), now)
    assert pauses[:3] == [MISSED_FIRST, 2 * MISSED_FIRST, 4 * MISSED_FIRST]
    assert pauses[-1] == MISSED_LONGEST
    beliefs.told(shard("a"), Load(0.0, 0), now)
    beliefs.missed(shard("a"), now)
    assert beliefs.silent(shard("a"), now) == MISSED_FIRST


def test_invented_peers_take_no_memory_without_end() -> None:
    beliefs = Beliefs()
    for number in range(STAGES_KNOWN + 100):
        beliefs.told(shard(f"peer-{number}"), Load(0.0, 0), 0.0)
    assert len(beliefs) == STAGES_KNOWN
