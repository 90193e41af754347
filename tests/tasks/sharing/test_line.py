"""The line of requests at one engine: order, fairness and bounds."""

import pytest

from shoal.tasks.sharing import defaults
from shoal.tasks.sharing.errors import ShareError
from shoal.tasks.sharing.line import EngineLine, PeerStanding, Ticket
from tests.tasks.fake_swarm import peer_of

ME, ALICE, BOB, EVE = map(peer_of, range(1, 5))


def join(
    line: EngineLine, peer: str, standing: PeerStanding = PeerStanding.MEMBER, now: float = 0.0
) -> Ticket:
    return line.join(peer, standing, now)  # type: ignore[arg-type]


def called(*tickets: Ticket) -> list[bool]:
    return [ticket.called.is_set() for ticket in tickets]


def test_as_many_run_as_the_owner_allows() -> None:
    line = EngineLine(2)
    tickets = [join(line, peer) for peer in (ALICE, BOB, EVE)]
    assert called(*tickets) == [True, True, False] and (line.running, line.waiting) == (2, 1)
    assert line.leave(tickets[0], 3.0) == 3.0
    assert called(tickets[2]) == [True] and line.answered == 1


def test_one_peer_leaves_a_place_to_others_but_the_owner_takes_all() -> None:
    line = EngineLine(3)
    hers = [join(line, ALICE) for _ in range(4)]
    assert called(*hers) == [True, True, False, False]
    assert called(join(line, BOB)) == [True]
    mine = EngineLine(3)
    assert called(*(join(mine, ME, PeerStanding.OWN) for _ in range(3))) == [True] * 3


def test_a_single_place_goes_to_anybody() -> None:
    line = EngineLine(1)
    first, second = join(line, ALICE), join(line, ALICE)
    line.leave(first, 1.0)
    assert called(second) == [True]


def test_the_owner_goes_before_members_and_these_before_strangers() -> None:
    line = EngineLine(1)
    first = join(line, BOB)
    stranger = join(line, EVE, PeerStanding.STRANGER)
    member, own = join(line, ALICE), join(line, ME, PeerStanding.OWN)
    assert line.ahead(BOB, PeerStanding.MEMBER) == 2 and line.ahead(BOB, PeerStanding.STRANGER) == 3
    for before, after in ((first, own), (own, member), (member, stranger)):
        assert called(after) == [False]
        line.leave(before, 1.0)
        assert called(after) == [True]


def test_who_has_used_less_goes_first_and_old_use_is_forgotten() -> None:
    line = EngineLine(1)
    line.leave(join(line, ALICE, now=0.0), 60.0)
    line.leave(join(line, BOB, now=60.0), 80.0)
    running = join(line, EVE, now=80.0)
    hers, his = join(line, ALICE, now=80.0), join(line, BOB, now=80.0)
    line.leave(running, 81.0)
    assert called(hers, his) == [False, True]
    line.leave(his, 82.0)
    line.leave(hers, 82.0)
    later = 82.0 + 100 * defaults.SPENT_HALF
    running = join(line, EVE, now=later)
    hers, his = join(line, ALICE, now=later), join(line, BOB, now=later)
    line.leave(running, later)
    assert called(hers, his) == [True, False]  # she came first


def test_requests_of_a_peer_of_strangers_and_of_all_are_bounded() -> None:
    line = EngineLine(1)
    for _ in range(defaults.PER_PEER):
        join(line, ALICE)
    with pytest.raises(ShareError, match="this node") as caught:
        join(line, ALICE)
    assert caught.value.code == "busy"
    for number in range(defaults.STRANGERS):
        join(line, peer_of(100 + number), PeerStanding.STRANGER)
    with pytest.raises(ShareError, match="not members"):
        join(line, peer_of(99), PeerStanding.STRANGER)
    with pytest.raises(ShareError, match="too many"):
        for number in range(defaults.WAITING):
            join(line, peer_of(10 + number))
    assert line.waiting == defaults.WAITING
    join(line, ME, PeerStanding.OWN)  # the owner is never refused


def test_who_gives_up_costs_nothing_and_the_used_time_is_bounded() -> None:
    line = EngineLine(1)
    first, second = join(line, ALICE), join(line, BOB)
    assert line.leave(second, 5.0) == 0.0 and line.answered == 0
    line.leave(first, 5.0)
    for number in range(300):
        line.leave(join(line, f"p{number}"), 1.0)
    assert len(line.spent) <= defaults.SPENT_PEERS


def test_used_time_is_kept_for_few_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "SPENT_PEERS", 3)
    line = EngineLine(1)
    for number in range(9):
        line.leave(join(line, f"p{number}"), 1.0)
    assert len(line.spent) == 3
