"""The schedule of checks for each plan."""

from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.transport.host.datagrams import Place
from shoal.transport.nat.punch import schedule
from shoal.transport.nat.punch.candidates import Candidate, CandidateKind, CandidateTransport
from shoal.transport.nat.punch.checks import Checks
from shoal.transport.nat.punch.defaults import BIRTHDAY_PROBES, PunchLimits
from shoal.transport.nat.punch.needs import Socket
from shoal.transport.nat.punch.offer import Counting, PunchOffer
from shoal.transport.nat.punch.predict import NatProfile

HARD = "11.0.0.2"


class FakeSocket:
    """A fake socket, which sends nothing."""

    port = 1


def new() -> Checks[Socket]:
    permits: Any = SimpleNamespace(may_check=lambda ip: True, spend=lambda ip, now: True)
    checks: Checks[Socket] = Checks(
        b"attempt!",
        b"a" * 20,
        permits,
        controlling=True,
        entropy=Random(1).randbytes,
        limits=PunchLimits(),
    )
    checks.theirs = b"b" * 20
    return checks


def sent(checks: Checks[Socket], until: float) -> list[tuple[float, Socket, Place]]:
    found = []
    now = 0.0
    while (now := max(now, checks.due)) <= until:
        found += [(now, send.socket, send.to) for send in checks.take(now)]
    return found


def sockets(count: int) -> Sequence[Socket]:
    return [FakeSocket() for _ in range(count)]  # type: ignore[misc]


@pytest.mark.parametrize("skew", [-0.15, -0.1, -0.03, 0.0, 0.05, 0.12, 0.15])
def test_in_some_pair_of_the_comb_no_side_is_early(skew: float) -> None:
    """At any difference of the clocks, two first packets cross within 30 ms of way."""
    firsts = []
    for first, offset in ((True, 0.0), (False, skew)):
        checks = new()
        places: list[Place | None] = [(HARD, 5000 + i) for i in range(7)]
        mine = sockets(7)
        pairs = schedule.Comb(mine, places, None)  # type: ignore[arg-type]
        schedule.comb(checks, pairs, 1.0 + offset, 0.025, first=first)
        found: dict[Place, float] = {}
        for at, _, place in sent(checks, 1.5):
            found.setdefault(place, at)
        firsts.append(found)
    apart = [firsts[0][place] - firsts[1][place] for place in firsts[0]]
    assert len(apart) == 7
    assert min(map(abs, apart)) < 0.03
    assert min(apart) < -0.03 + abs(skew) and max(apart) > 0.03 - abs(skew)


def test_a_side_without_comb_uses_its_own_port() -> None:
    checks = new()
    places: list[Place | None] = [(HARD, 5000), None, (HARD, 5002)]
    schedule.comb(checks, schedule.Comb([], places, (HARD, 4001)), 0.0, 0.02, first=True)
    assert {(s, p) for _, s, p in sent(checks, 0.1)} == {(None, (HARD, 5000)), (None, (HARD, 5002))}
    fresh = sockets(3)
    pairs = schedule.Comb(fresh, [], (HARD, 4001))  # type: ignore[arg-type]
    schedule.comb(checks, pairs, 0.0, 0.02, first=True)
    late = {(s, p) for _, s, p in sent(checks, 0.2) if s is not None}
    assert late == {(socket, (HARD, 4001)) for socket in fresh}


def test_the_spray_is_within_the_budget_and_its_sockets_come_between() -> None:
    checks = new()
    schedule.spray(checks, None, HARD, BIRTHDAY_PROBES, Random(1).randbytes, 0.0)
    found = sent(checks, 10.0)
    assert len({place for _, _, place in found}) == len(found) == 1400
    early = [at for at, _, _ in found if at < schedule.OPEN_AFTER_S]
    late = [at for at, _, _ in found if at >= schedule.REST_AFTER_S]
    assert len(early) == 1200 and len(late) == 200
    many = new()
    schedule.open_many(many, sockets(256), (HARD, 4001), 0.0)  # type: ignore[arg-type]
    assert len(sent(many, 10.0)) == 512


def test_following_a_counting_nat() -> None:
    checks = new()
    offer = PunchOffer(b"attempt!", 1, b"", NatProfile(), counting=Counting(HARD, 5000, 2))
    schedule.follow(checks, offer, 0.0)
    found = sent(checks, 5.0)
    assert [place for _, _, place in found[:3]] == [(HARD, 5002), (HARD, 5004), (HARD, 5006)]
    assert len(found) == 128
    schedule.follow(checks, PunchOffer(b"attempt!", 1, b"", NatProfile()), 0.0)
    schedule.walk(checks, PunchOffer(b"attempt!", 1, b"", NatProfile()), 0.0)
    assert sent(checks, 5.0) == []


def test_walking_in_step_keeps_the_order() -> None:
    checks = new()
    offer = PunchOffer(b"attempt!", 1, b"", NatProfile(), counting=Counting(HARD, 5000, 1))
    schedule.walk(checks, offer, 0.0)
    first = list(dict.fromkeys(place for _, _, place in sent(checks, 0.3)))
    assert first == [(HARD, port) for port in range(5001, 5001 + schedule.STEPS)]


def test_targets_are_where_the_port_itself_is_seen() -> None:
    remote = [
        Candidate((HARD, 1), CandidateKind.OBSERVED, CandidateTransport.TCP),
        Candidate(("192.168.1.2", 2), CandidateKind.LAN, CandidateTransport.UDP),
        Candidate(("2600::1", 3), CandidateKind.PUBLIC, CandidateTransport.UDP),
        Candidate((HARD, 4), CandidateKind.OBSERVED, CandidateTransport.UDP),
    ]
    assert schedule.targets(remote) == [(HARD, 4)]
    assert schedule.places(remote, CandidateTransport.TCP) == [(HARD, 1)]
