"""Which peers are asked for which feeds, even if several of them lie."""

from collections.abc import Callable
from math import inf
from random import Random

import pytest

from shoal.state import defaults
from shoal.state.replication.gossip import Told
from shoal.state.replication.wanted import Place, Pull, Wanted
from shoal.transport.identity import PeerId

A, B, C = (PeerId(name) for name in "ABC")
PLOT = ("jobs", 0)


def head(author: int, seq: int = 1) -> Told:
    return Told(author.to_bytes(32), *PLOT, 1, seq, bytes(16))


def place(author: int) -> tuple[bytes, tuple[str, int]]:
    return author.to_bytes(32), PLOT


class Lacking:
    """A scheduler of pulls, with the sequence number of each author that is known here."""

    def __init__(self, draw: Callable[[int], int] = lambda n: 0) -> None:
        self.have: dict[bytes, int] = {}
        self.wanted = Wanted(lambda told: told.seq > self.have.get(told.key, 0), draw)
        self.pulls: list[Pull] = []

    def next(self, now: float) -> dict[PeerId, list[Place]]:
        found = self.wanted.next(now)
        self.pulls += found
        assert len({pull.peer for pull in found}) == len(found)
        return {pull.peer: list(pull.places) for pull in found}

    def ended(self, peer: PeerId, vain: bool, now: float) -> None:
        """End the first pull in flight from this peer, with or without a result."""
        pull = next(pull for pull in self.pulls if pull.peer == peer)
        self.pulls.remove(pull)
        self.wanted.ended(pull, pull.places if vain else (), now)


def test_a_feed_is_pulled_from_one_peer_at_a_time() -> None:
    it = Lacking()
    it.wanted.heard(A, [head(1)], 0.0)
    it.wanted.heard(B, [head(1)], 0.0)
    assert it.next(0.0) == {A: [place(1)]}
    assert it.next(0.1) == {}
    it.ended(A, True, 0.2)
    assert it.next(0.2) == {B: [place(1)]}
    it.have[place(1)[0]] = 1
    it.wanted.settle(place(1))
    it.ended(B, False, 0.3)
    assert it.next(0.3) == {}
    assert it.wanted.next_at(0.3) == inf


def test_another_peer_is_asked_if_one_is_slow() -> None:
    it = Lacking()
    it.wanted.heard(A, [head(1)], 0.0)
    it.wanted.heard(B, [head(1)], 0.0)
    it.next(0.0)
    assert it.wanted.next_at(0.0) == defaults.PULL_PATIENCE[1]
    assert it.next(defaults.PULL_PATIENCE[1]) == {B: [place(1)]}


def test_two_other_peers_are_asked_if_one_is_slow() -> None:
    """Over far links each useless pull costs a second."""
    it = Lacking()
    for peer in (A, B, C, PeerId("D")):
        it.wanted.heard(peer, [head(1)], 0.0)
    assert it.next(0.0) == {A: [place(1)]}
    late = defaults.PULL_PATIENCE[1]
    assert it.next(late) == {B: [place(1)], C: [place(1)]}
    assert it.next(late + 0.1) == {}  # no third one


def test_the_same_peer_is_not_asked_for_the_same_twice_at_once() -> None:
    it = Lacking()
    for peer in (A, B):
        it.wanted.heard(peer, [head(1)], 0.0)
    it.next(0.0)
    late = defaults.PULL_PATIENCE[1]
    assert it.next(late) == {B: [place(1)]}
    assert it.next(10.0) == {}
    it.ended(A, True, 10.0)
    it.wanted.heard(A, [head(1)], 20.0)
    assert it.next(20.0) == {A: [place(1)]}


def test_a_failed_pull_does_not_repeat_pending_ones() -> None:
    it = Lacking()
    for peer in (A, B, C):
        it.wanted.heard(peer, [head(1)], 0.0)
    it.next(0.0)
    late = defaults.PULL_PATIENCE[1]
    it.next(late)
    it.ended(A, True, late + 0.1)
    assert it.next(late + 0.1) == {}  # replies of B and C are pending


def test_if_pulls_are_quick_the_next_peer_is_asked_sooner() -> None:
    """Pulls without a result do not count for the average duration."""
    it = Lacking()
    for number in range(40):
        now = 10.0 * number
        it.wanted.heard(A, [head(number)], now)
        assert it.next(now) == {A: [place(number)]}
        it.have[place(number)[0]] = 1
        it.ended(A, False, now + 0.2)
    it.wanted.heard(A, [head(100)], 500.0)
    it.wanted.heard(B, [head(100)], 500.0)
    assert it.next(500.0) == {B: [place(100)]}
    assert 500.24 < it.wanted.next_at(500.0) < 500.3
    assert it.next(500.5) == {A: [place(100)]}
    for peer in (A, B):
        it.ended(peer, True, 600.0)
    it.wanted.heard(A, [head(101)], 700.0)
    it.next(700.0)
    assert it.wanted.next_at(700.0) < 700.5


def test_concurrent_pulls_are_limited() -> None:
    it = Lacking()
    peers = [PeerId(f"p{number}") for number in range(2 * defaults.PULLS + 1)]
    for number, peer in enumerate(peers):
        it.wanted.heard(peer, [head(number)], 0.0)
    assert len(it.next(0.0)) == defaults.PULLS
    assert it.next(0.1) == {}
    assert len(it.next(defaults.PULL_PATIENCE[1])) == defaults.PULLS  # the others are slow


def test_a_far_link_has_several_pulls_in_flight() -> None:
    it = Lacking()
    it.wanted.heard(A, [head(number) for number in range(8 * defaults.PULL_FEEDS)], 0.0)
    asked: list[Place] = []
    now = 0.0
    while now < 0.4:
        asked += it.next(now).get(A, [])
        now = it.wanted.next_at(now)
    assert len(set(asked)) == len(asked) == defaults.PULLS_OF_ONE * defaults.PULL_FEEDS
    assert it.next(now) == {} and it.wanted.next_at(now) > now
    it.ended(A, False, 0.5)
    assert len(it.next(0.5)[A]) == defaults.PULL_FEEDS


def test_nodes_told_the_same_pull_different_parts_first() -> None:
    count = 8 * defaults.PULL_FEEDS
    asked: set[Place] = set()
    for seed in range(8):
        it = Lacking(Random(seed).randrange)
        it.wanted.heard(A, [head(number) for number in range(count)], 0.0)
        asked |= set(it.next(0.0)[A])
    assert len(asked) > count / 2


def test_peers_with_all_their_pulls_leave_capacity_for_others() -> None:
    it = Lacking()
    liars = [PeerId(f"p{number}") for number in range(5)]
    for number, peer in enumerate(liars):
        heads = [head(1000 * number + author) for author in range(1000)]
        it.wanted.heard(peer, heads, 0.0)
    for step in range(9):
        it.next(step / 100)
    assert len(it.pulls) == defaults.PULLS_MORE
    it.wanted.heard(A, [head(9_999)], 0.1)
    assert it.next(0.1) == {A: [place(9_999)]}


def test_without_that_capacity_they_take_all_pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "PULLS_MORE", defaults.PULLS)
    with pytest.raises(AssertionError):
        test_peers_with_all_their_pulls_leave_capacity_for_others()


def test_a_new_link_is_independent_of_earlier_pulls() -> None:
    it = Lacking()
    it.wanted.heard(A, [head(1)], 0.0)
    it.next(0.0)
    it.wanted.lost(A)
    it.wanted.heard(A, [head(1)], 0.1)
    it.ended(A, True, 0.2)
    assert it.next(0.2) == {A: [place(1)]}


def test_a_liars_offers_do_not_block_an_honest_peer() -> None:
    """It offers ever higher heads and delivers nothing at once. The honest peer still gets its
    turn."""
    it = Lacking()
    it.wanted.heard(B, [head(1)], 0.0)
    for number in range(5):
        it.wanted.heard(A, [head(1, seq=1000 + number)], number / 10)
        for peer in it.next(number / 10):
            if peer == B:
                return
            it.ended(peer, True, number / 10)
    raise AssertionError("the honest one was never asked")


def test_feeds_that_were_not_given_are_not_asked_for_again_soon() -> None:
    it = Lacking()
    it.wanted.heard(A, [head(1)], 0.0)
    it.next(0.0)
    it.ended(A, True, 0.1)
    it.wanted.heard(A, [head(1)], 0.2)
    assert it.next(0.2) == {}
    it.wanted.heard(A, [head(1)], 0.2 + defaults.VAIN_S)
    assert it.next(0.2 + defaults.VAIN_S) == {A: [place(1)]}


def test_an_author_that_floods_waits_and_no_other() -> None:
    it = Lacking()
    it.wanted.came(place(1)[0], 2 * int(defaults.AUTHOR_BURST_S * defaults.AUTHOR_RATE), 0.0)
    it.wanted.heard(A, [head(1), head(2)], 0.0)
    assert it.next(0.0) == {A: [place(2)]}
    it.ended(A, True, 0.0)
    assert it.wanted.next_at(0.0) == defaults.AUTHOR_BURST_S
    assert it.next(defaults.AUTHOR_BURST_S) == {A: [place(1)]}


def test_offers_of_one_peer_are_limited() -> None:
    it = Lacking()
    it.wanted.heard(A, [head(number) for number in range(defaults.TOLD + 10)], 0.0)
    assert it.wanted.room(A) == 0
    assert len(it.wanted.tellers(place(0))) == 0  # the oldest was evicted
    it.wanted.lost(A)
    assert it.wanted.room(A) == defaults.TOLD


def test_a_choice_is_quick_and_reaches_all_offers() -> None:
    """Offers that cannot be asked for do not hide the offers after them."""
    it, looks = Lacking(), 0
    lacks = it.wanted.lacks

    def counted(told: Told) -> bool:
        nonlocal looks
        looks += 1
        return lacks(told)

    tellers = [PeerId(f"p{number}") for number in range(7)]
    flood = [Told((1).to_bytes(32), kind, 0, 1, 1, bytes(16)) for kind in ("claims", "jobs")]
    for number, peer in enumerate(tellers):
        numbers = range(2 + number * 3_000, 2 + number * 3_000 + defaults.TOLD - 9)
        it.wanted.heard(peer, [head(author) for author in numbers], 0.0)
        for author in numbers:
            it.wanted.came(author.to_bytes(32), defaults.AUTHOR_RATE * 1_000, 0.0)
    it.wanted.heard(tellers[-1], [*flood], 0.0)
    it.wanted.lacks = counted
    now, found = 0.0, dict[PeerId, list[tuple[bytes, tuple[str, int]]]]()
    while not found and now < 10:
        looks = 0
        found = it.next(now)
        assert looks <= defaults.LOOKED_AT
        after = it.wanted.next_at(now)
        assert found or after == now + defaults.LOOK_AGAIN
        now = after
    assert found == {tellers[-1]: [((1).to_bytes(32), (told.kind, 0)) for told in flood]}


def test_without_capacity_no_offers_are_checked() -> None:
    it = Lacking()
    for number in range(defaults.PULLS_MORE + 1):
        it.wanted.heard(PeerId(f"p{number}"), [head(number)], 0.0)
    it.next(0.0)
    it.wanted.lacks = lambda told: 1 / 0 > 0
    assert it.next(0.1) == {}


def member(author: int, seq: int = 1) -> Told:
    return Told(author.to_bytes(32), "member", 0, 1, seq, bytes(16))


def asked_by(it: Lacking, until: float, now: float = 0.0) -> dict[Place, float]:
    """Pull all feeds that may be pulled, each at once, and return when each was asked for."""
    found: dict[Place, float] = {}
    while now <= until:
        while pulls := it.wanted.next(now):
            for pull in pulls:
                for at in pull.places:
                    found[at] = now
                    it.have[at[0]] = 10**6
                    it.wanted.settle(at)
                it.wanted.ended(pull, (), now)
        after = it.wanted.next_at(now)
        assert after > now
        now = after
    return found


def test_feeds_of_many_joining_members_are_pulled_in_turn() -> None:
    """In a small swarm that is at once. Feeds of other kinds never wait."""
    it = Lacking()
    burst, per_s = (defaults.PATIENT_LOT * rate for rate in defaults.PATIENT_LOTS)
    for peer in (A, B):
        it.wanted.heard(peer, [member(number) for number in range(60)], 0.0)
    assert set(asked_by(it, 0.1).values()) == {0.0}
    for peer in (A, B):
        it.wanted.heard(peer, [member(number) for number in range(100, 500)], 1000.0)
    asked = asked_by(it, 1060.0, 1000.0)
    assert burst + 59 * per_s <= len(asked) <= burst + 60 * per_s
    assert len(set(asked.values())) <= 1 + 60 * per_s / defaults.PATIENT_LOT  # some together
    it.wanted.heard(C, [head(1_000)], 1061.0)
    assert it.next(1061.0) == {C: [place(1_000)]}  # the others wait until they are a lot


def test_news_of_joining_members_are_pulled_together() -> None:
    """In a small swarm each feed is pulled at once, and a lot of feeds always is."""
    it = Lacking()
    most = int(defaults.PATIENT_LOTS[0] * defaults.PATIENT_LOT)

    def news(numbers: range, now: float) -> int:
        it.wanted.heard(A, [member(number) for number in numbers], now)
        return len(asked_by(it, now, now))

    for number in range(most // 2):
        assert news(range(number, number + 1), 0.0) == 1
    assert news(range(500, 501), 0.0) == 1, "half of the budget is used up now"
    assert news(range(501, 504), 0.1) == 0
    assert it.wanted.next_at(0.1) == defaults.PATIENT_PAUSE
    assert news(range(504, 509), 0.2) == 8, "a lot"
    assert news(range(509, 511), 0.3) == 0
    asked = asked_by(it, 10.0, 0.3)
    assert set(asked.values()) == {0.2 + defaults.PATIENT_PAUSE} and len(asked) == 2


def test_superseded_offers_are_never_asked_for() -> None:
    it = Lacking()
    it.wanted.heard(A, [member(number) for number in range(300)], 0.0)
    asked = asked_by(it, 30.0)
    waiting = {number for number in range(300) if (number.to_bytes(32), ("member", 0)) not in asked}
    assert waiting
    it.wanted.heard(A, [member(number, 2) for number in range(300)], 30.0)
    assert all(told.seq == 2 for told in it.wanted.all_tellers[A].patient.values())
    assert it.wanted.room(A) == defaults.TOLD - len(waiting)


def test_empty_offers_spend_no_budget() -> None:
    it = Lacking()
    it.wanted.heard(A, [member(number) for number in range(1_000)], 0.0)
    for _ in range(100):
        for peer in it.next(0.0):
            it.ended(peer, True, 0.0)
    it.wanted.heard(B, [member(number) for number in range(96)], 0.0)
    assert len(asked_by(it, 0.0)) == 96


def test_eight_peers_that_spend_the_budget_leave_the_ninth_its_turn() -> None:
    it = Lacking()
    it.wanted.heard(A, [member(number) for number in range(100)], 0.0)
    asked_by(it, 0.1)  # it is spent
    liars = [PeerId(f"p{number}") for number in range(8)]
    it.wanted.heard(B, [member(9_999)], 0.2)
    now, seq = 0.2, 10**6
    while now < 30:
        seq += 1
        for number, liar in enumerate(liars):
            mine = range(1_000 + 16 * number, 1_016 + 16 * number)
            it.wanted.heard(liar, [member(author, seq) for author in mine], now)
        for pull in it.wanted.next(now):
            if pull.peer == B:
                return
            for at in pull.places:
                it.have[at[0]] = seq
                it.wanted.settle(at)
            it.wanted.ended(pull, (), now)
        now = max(it.wanted.next_at(now), now + 0.01)
    raise AssertionError("the honest one was never asked")


def test_a_peer_with_a_spent_giving_budget_rests() -> None:
    it = Lacking()
    it.wanted.heard(A, [member(1), head(2)], 0.0)
    (pull,) = it.wanted.next(0.0)
    it.wanted.ended(pull, (), 0.0, pull.places)  # there is more, and it gave nothing
    assert it.next(0.1) == {A: [place(2)]}  # of other kinds
    it.ended(A, True, 0.1)
    it.wanted.heard(B, [member(1)], 0.2)
    (other,) = it.wanted.next(0.2)
    assert other.peer == B
    it.wanted.lost(B)
    it.wanted.ended(other, (), 0.3)
    assert it.next(0.3) == {} and it.wanted.next_at(0.3) == defaults.VAIN_S
    assert it.next(defaults.VAIN_S) == {A: [(place(1)[0], ("member", 0))]}


@pytest.mark.parametrize("more", [0, -3])
def test_a_peer_that_gave_all_that_it_may_give_rests_until_it_has_more(more: int) -> None:
    """It gives one feed every few seconds, and each question names many of them. A reply with fewer
    feeds was cut short because they are large."""
    it, (burst, rate) = Lacking(), defaults.PATIENT_GIVEN[0]
    it.wanted.heard(A, [member(number) for number in range(16)], 0.0)
    (pull,) = it.wanted.next(0.0)
    given = int(burst) + more
    for at in pull.places[:given]:
        it.have[at[0]] = 1
        it.wanted.settle(at)
    it.wanted.ended(pull, (), 0.1, pull.places[given:])
    if not more:
        assert it.next(0.2) == {}
        assert it.wanted.next_at(0.2) == 0.1 + defaults.PATIENT_WORTH / rate
    (pull,) = it.wanted.next(0.2 if more else 0.1 + defaults.PATIENT_WORTH / rate)
    assert len(pull.places) == 16 - given
