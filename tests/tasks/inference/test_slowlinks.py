"""Which links are too slow for exact hidden states."""

import pytest

from shoal.tasks.inference.slowlinks import LINKS, RATE_S, RecentRates, SlowLinks

PART = 1_000_000  # bytes


def sent(rate: float, every: float, round_trip: float, parts: int = 8) -> float:
    """Return the measured rate of a link that carries `rate` byte/s, on which a part is sent every
    `every` seconds."""
    links, waiting, now = SlowLinks(), 0.0, 100.0
    for _ in range(parts):
        links.sends("peer", PART, int(waiting), round_trip, now)
        waiting = max(0.0, waiting + PART - rate * every)
        now += every
    return links.rate("peer", now)


@pytest.mark.parametrize("rate", [50_000.0, 400_000.0, 900_000.0])
def test_a_link_slower_than_the_stage_is_measured(rate: float) -> None:
    assert sent(rate, 1.0, 0.04) == pytest.approx(rate, rel=0.35)


def test_a_fast_link_is_not() -> None:
    assert sent(3_000_000.0, 1.0, 0.04) == 0
    assert sent(400_000.0, 10.0, 0.04) == 0  # nor a slow one behind a slower stage


def test_what_is_on_its_way_does_not_count() -> None:
    """A part is not acknowledged before a round trip has passed, however fast the link is."""
    links = SlowLinks()
    for turn in range(20):
        links.sends("peer", PART, PART if turn else 0, 0.2, 100 + 0.1 * turn)
    assert links.rate("peer", 102) == 0
    for at in (103, 103.5, 104):
        links.sends("peer", PART, PART, 0.02, at)
    assert links.rate("peer", 104) > 0


def test_a_round_trip_that_a_full_link_has_made_longer_does_not_count() -> None:
    links = SlowLinks()
    for turn in range(3):
        links.sends("peer", PART, PART * turn, 0.02 if not turn else 9.0, 100 + turn)
    assert links.rate("peer", 102) > 0


def test_a_link_is_not_measured_while_tcp_starts() -> None:
    links = SlowLinks()
    for now, slow in ((100.0, False), (100.3, False), (100.9, False), (101.3, True)):
        links.sends("peer", PART, PART if now > 100 else 0, 0.1, now)
        assert (links.rate("peer", now) > 0) == slow


def test_drafts_behind_a_part_do_not_make_a_link_slow() -> None:
    """Windows of drafts are on their way at any time, also on the fastest link."""
    links = SlowLinks()
    for turn in range(20):
        links.sends("peer", PART, 2 * PART if turn else 0, 0.001, 100 + turn)
        for _ in range(2):
            links.passes("peer", PART)
    assert links.rate("peer", 120) == 0


def test_small_parts_are_not_measured() -> None:
    """A prompt of a few positions is smaller than what else may wait on a link."""
    links = SlowLinks()
    for turn in range(20):
        links.sends("peer", 8_192, 8_192 if turn else 0, 0.001, 100 + turn)
    assert links.rate("peer", 120) == 0


def test_a_new_link_begins_empty() -> None:
    links = SlowLinks()
    links.sends("peer", PART, 0, 0.0, 100)
    links.lost("peer")
    links.sends("peer", PART, PART, 0.0, 101)
    assert links.rate("peer", 101) == 0


def test_rates_are_forgotten_after_a_time_and_within_a_bound() -> None:
    rates = RecentRates[int]()
    rates.note(0, 5.0, 0.0)
    assert rates.rate(0, RATE_S - 1) == 5
    assert rates.rate(0, RATE_S) == 0
    for number in range(1, LINKS + 1):
        rates.note(number, 1.0, 10.0)
    assert rates.rate(0, 10.0) == 0
    assert rates.rate(1, 10.0) == 1
