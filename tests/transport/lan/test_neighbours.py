"""Tests of the list of neighbours: which are kept, for how long, and how many."""

import math
from dataclasses import replace

from shoal.transport.identity import PeerId
from shoal.transport.lan.defaults import LanLimits
from shoal.transport.lan.neighbours import LanNeighbours
from shoal.transport.lan.service import FoundPeer

BOB = FoundPeer(PeerId("bob"), ("192.168.1.3", 4002), 120, b"bob")


def numbered(number: int, *, host: int = 0, ttl: int = 120) -> FoundPeer:
    place = f"192.168.{host or number // 250}.{number % 250 + 1 if not host else 1}", 4001
    return FoundPeer(PeerId(f"peer{number}"), place, ttl, b"%d" % number)


def keep(**limits: int) -> LanNeighbours:
    return LanNeighbours(LanLimits(**limits), lambda: 0.5)


def hear(kept: LanNeighbours, found: FoundPeer, now: float) -> bool:
    """As the responder does; whether it was news."""
    news = kept.is_news(found)
    if news or kept.knows(found):
        kept.hear(found, now)
    return news


def test_known_once_and_until_its_time_by_our_clock() -> None:
    kept = keep()
    assert kept.due() == math.inf
    assert hear(kept, BOB, 0.0) and not hear(kept, BOB, 60.0)
    assert kept.places(BOB.peer) == [BOB.place]
    kept.pass_time(179.9)
    assert len(kept) == 1
    kept.pass_time(180.0)
    assert len(kept) == 0 and hear(kept, BOB, 200.0), "a peer that comes back is reported again"


def test_a_goodbye_ends_it() -> None:
    kept = keep()
    goodbye = replace(BOB, ttl=0)
    assert not hear(kept, goodbye, 0.0) and len(kept) == 0
    hear(kept, BOB, 0.0)
    assert not hear(kept, goodbye, 10.0)
    assert kept.places(BOB.peer) == [] and kept.known(10.0) == []
    assert kept.due() == 20.0 and not kept.pass_time(20.0) and len(kept) == 0
    assert kept.due() == math.inf


def test_a_flapping_peer_is_reported_rarely() -> None:
    """The twin forgets a peer at its goodbye, and reports each return."""
    for forgets in (False, True):
        kept, told = keep(), 0
        for second in range(100):
            told += hear(kept, BOB, float(second))
            assert kept.places(BOB.peer) == [BOB.place]
            hear(kept, replace(BOB, ttl=0), second + 0.5)
            if forgets:
                kept.pass_time(second + 11.0)
        assert told == (100 if forgets else 1)


def test_it_is_asked_for_again_four_times() -> None:
    kept = keep()
    hear(kept, BOB, 0.0)
    asked = []
    while kept.due() < 120.0:
        now = kept.due()
        assert kept.pass_time(now) and not kept.pass_time(now)
        asked.append(round(now, 1))
    assert asked == [97.2, 103.2, 109.2, 115.2]  # 81 % …: half of the spread above
    hear(kept, BOB, 116.0)
    kept.pass_time(120.0)
    assert round(kept.due(), 1) == 213.2


def test_one_computer_has_so_many_places_and_no_more() -> None:
    kept = keep(per_source=4)
    assert [hear(kept, numbered(n, host=9), 0.0) for n in range(6)] == [True] * 4 + [False] * 2
    hear(kept, numbered(0, host=9, ttl=0), 1.0)
    assert not hear(kept, numbered(7, host=9), 2.0), "nor by saying goodbye"
    assert hear(kept, numbered(7), 2.0)


def test_all_together_are_bounded_and_the_soonest_to_end_gives_way() -> None:
    kept = keep(peers=8)
    for number in range(8):
        hear(kept, numbered(number, ttl=120 - number), 0.0)
    assert hear(kept, numbered(8), 1.0)
    assert len(kept) == 8 and not kept.places(PeerId("peer7")) and kept.places(PeerId("peer0"))
    for number in range(1000):
        hear(kept, numbered(number), 2.0)
    assert len(kept) == 8


def test_a_stolen_name_is_one_more_place_and_takes_nothing_away() -> None:
    kept = keep()
    hear(kept, BOB, 0.0)
    stolen = replace(BOB, place=("192.168.1.66", 4002))
    hear(kept, stolen, 0.0)
    hear(kept, replace(stolen, ttl=0), 0.0)
    assert kept.places(BOB.peer) == [BOB.place]


def test_known_answers_are_those_with_more_than_half_left() -> None:
    kept = keep()
    hear(kept, numbered(1), 0.0)
    hear(kept, numbered(2), 50.0)
    assert kept.known(59.0) == [(b"2", 111), (b"1", 61)]
    assert kept.known(61.0) == [(b"2", 109)]
