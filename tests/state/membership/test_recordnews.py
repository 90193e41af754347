from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import pytest

from shoal.state import defaults
from shoal.state.membership.recordnews import RecordNews
from shoal.transport.identity import PeerId, peer_id_of


@dataclass(frozen=True)
class Named:
    """The part of a link that these tests need."""

    peer: PeerId


def name(number: int) -> PeerId:
    return peer_id_of(sha256(str(number).encode()).digest())


LINKS: Sequence[Named] = [Named(name(number)) for number in range(20)]
AUTHOR, OTHER = name(100), name(101)
HAND_ON = defaults.HAND_ON


def told(news: RecordNews[Named], now: float) -> list[Named]:
    return [link for link, *_ in news.take(now)]


def test_a_record_is_announced_once_over_each_link() -> None:
    news, found, now = RecordNews[Named](), [], 0.0
    news.add(AUTHOR, LINKS, 0.0)
    while news.next_at() < float("inf"):
        now = max(now, news.next_at())
        lot = told(news, now)
        assert 0 < len(lot) <= defaults.HAND_ON[0]
        found += lot
    assert found == list(LINKS)
    burst, per_s = defaults.HAND_ON
    assert now <= (len(LINKS) - burst) / per_s + 1


def test_a_record_is_not_announced_to_its_author_or_announcer() -> None:
    news = RecordNews[Named]()
    news.add(LINKS[0].peer, LINKS[:3], 0.0)
    news.heard(LINKS[1], [LINKS[0].peer])
    assert told(news, 0.0) == [LINKS[2]]


def test_news_that_arrives_together_is_sent_together() -> None:
    news = RecordNews[Named]()
    news.add(AUTHOR, LINKS[:1], 0.0)
    news.add(OTHER, LINKS[:1], 0.0)
    assert news.take(0.0) == [(LINKS[0], [AUTHOR, OTHER], False)]


@pytest.mark.parametrize("paced", [True, False])
def test_a_flood_of_news_costs_a_bounded_number_of_messages(
    paced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred new members arrive each second for a minute."""
    if not paced:  # control: without the limit
        monkeypatch.setattr(defaults, "HAND_ON", (1000.0, 1000.0))
    news, messages = RecordNews[Named](), 0
    for number in range(6000):
        news.add(name(number), LINKS, number / 100)
        messages += len(news.take(number / 100))
    burst, per_s = HAND_ON
    assert messages <= burst + 60 * per_s if paced else messages > 4000


def test_after_a_quiet_time_news_is_sent_at_once_again() -> None:
    news = RecordNews[Named]()
    for number in range(1000):
        news.add(name(number), LINKS, number / 100)
        news.take(number / 100)
    now = 1000 / 100
    while news.next_at() < float("inf"):
        now = news.next_at()
        news.take(now)
    news.add(AUTHOR, LINKS[:1], now + 60)
    news.take(now + 60)
    news.add(OTHER, LINKS[:1], now + 60)
    assert told(news, now + 60 + defaults.HAND_ON_PAUSE) == [LINKS[0]]


def test_a_link_that_has_ended_is_forgotten() -> None:
    news = RecordNews[Named]()
    news.add(AUTHOR, LINKS[:1], 0.0)
    news.ended(LINKS[0])
    assert told(news, 0.0) == [] and news.next_at() == float("inf")


def test_a_record_that_changes_often_is_announced_rarely() -> None:
    """A joining node finds its addresses one after the other."""
    news, times = RecordNews[Named](), []
    for second in range(40):
        news.add(AUTHOR, LINKS[:1], float(second))
        if news.take(second + 0.5):
            times.append(second)
    assert times == [0, 15, 30]
    assert news.next_at() == 45.0
    assert news.take(45.0) == [(LINKS[0], [AUTHOR], False)] and news.next_at() == float("inf")


def test_a_new_member_is_announced_with_the_addresses_it_finds() -> None:
    news = RecordNews[Named]()
    news.add(AUTHOR, LINKS[:1], 0.0, new=True)
    news.add(AUTHOR, LINKS[:1], 2.0, new=True)
    news.add(OTHER, LINKS[:1], 2.0)
    assert news.take(2.0) == [(LINKS[0], [OTHER], False)], "the other waited elsewhere"
    assert news.next_at() == defaults.HAND_ON_NEW
    assert news.take(defaults.HAND_ON_NEW) == [(LINKS[0], [AUTHOR], False)]


def test_authors_beyond_the_bound_are_announced_too() -> None:
    news, count = RecordNews[Named](), defaults.MEMBERS + 5
    for number in range(count):
        news.add(name(1000 + number), LINKS[:1], 0.0, new=True)
        news.add(name(9000 + number), LINKS[:1], 1.0)
    news.take(1.0)
    assert len(news.take(defaults.HAND_ON_NEW)[0][1]) == count


def test_a_change_is_not_announced_to_a_peer_that_announced_it() -> None:
    news = RecordNews[Named]()
    news.add(AUTHOR, LINKS[:3], 0.0)
    news.take(0.0)
    news.add(AUTHOR, LINKS[:3], 1.0)
    news.heard(LINKS[0], [AUTHOR])
    news.ended(LINKS[1])
    assert news.take(30.0) == [(LINKS[2], [AUTHOR], False)]


def test_a_change_of_what_an_author_serves_is_announced_at_once() -> None:
    """Routes depend on it, and a flood of other changes must not hold it up."""
    news = RecordNews[Named]()
    news.add(AUTHOR, LINKS[:1], 0.0, serves=1)
    news.take(0.0)
    news.add(AUTHOR, LINKS[:1], 1.0, serves=1)
    assert news.take(1.0) == []
    news.add(AUTHOR, LINKS[:1], 2.0, serves=2)
    assert news.take(2.0) == [(LINKS[0], [AUTHOR], True)]
    assert news.take(30.0) == [], "the earlier change was sent with it"


def test_only_a_change_of_what_an_author_serves_is_urgent() -> None:
    """Other announcements may wait for a frame with which they leave together."""
    news = RecordNews[Named]()
    news.add(AUTHOR, LINKS[:1], 0.0, serves=1)
    news.add(OTHER, LINKS[:2], 0.0)
    assert [urgent for *_, urgent in news.take(0.0)] == [True, False]
    news.add(AUTHOR, LINKS[:1], 20.0, serves=1)
    assert [urgent for *_, urgent in news.take(20.0)] == [False]
    news.add(AUTHOR, LINKS[:1], 21.0)
    assert [urgent for *_, urgent in news.take(21.0)] == [True], "it serves nothing any more"
