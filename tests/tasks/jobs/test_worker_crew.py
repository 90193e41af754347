"""Tests of the members that do jobs, and of their silence."""

from shoal.state.defaults import CLAIM_PATIENCE
from shoal.state.feeds.entry import FeedName
from shoal.state.views.members import JOBS, Members, jobs_fact
from shoal.tasks.jobs.crew import Crew
from shoal.transport.identity import Identity, PeerId

ONE, TWO, THREE = [Identity.from_seed(bytes([n]) * 32).peer for n in (1, 2, 3)]
BRIEF, LONG = CLAIM_PATIENCE


class Desk:
    def __init__(self) -> None:
        self.members = Members()
        self.live: set[PeerId] = set()
        self.now = 500.0
        self.crew = Crew(self.members, ["prompt"], live=lambda: self.live, now=lambda: self.now)

    def say(self, peer: PeerId, *kinds: str) -> None:
        self.members.changed(FeedName(peer, "member", 0), JOBS, jobs_fact(kinds) if kinds else None)
        self.crew.changed(peer)

    def look_at_all(self) -> None:
        for peer in self.crew.known():
            self.crew.changed(peer)


def test_a_member_that_does_a_kind_has_a_share() -> None:
    desk = Desk()
    desk.say(ONE, "sum", "prompt")
    desk.say(TWO, "sum")
    assert ONE in desk.crew.shares and TWO not in desk.crew.shares
    desk.say(ONE)
    assert not len(desk.crew.shares)


def test_all_members_may_be_read_again() -> None:
    desk = Desk()
    desk.members.changed(FeedName(ONE, "member", 0), JOBS, jobs_fact(["prompt"]))
    assert ONE not in desk.crew.shares
    desk.look_at_all()
    assert ONE in desk.crew.shares
    desk.members.forgotten(FeedName(ONE, "member", 0))
    desk.look_at_all()
    assert ONE not in desk.crew.shares


def test_silence_is_counted_from_the_last_answer() -> None:
    desk = Desk()
    desk.say(ONE, "prompt")
    desk.live = {ONE}
    desk.crew.look()
    assert desk.crew.silent(ONE) == 0
    desk.now += 50
    desk.crew.look()
    desk.live = set()
    desk.now += 7
    desk.crew.look()
    assert desk.crew.silent(ONE) == 7


def test_a_new_node_takes_no_member_for_dead() -> None:
    desk = Desk()
    desk.say(ONE, "prompt")
    desk.crew.look()
    assert desk.crew.silent(ONE) == desk.crew.silent(TWO) == 0 < LONG
    desk.now += LONG
    assert desk.crew.silent(ONE) >= LONG


def test_patience_is_long_if_many_recently_live_members_fell_silent() -> None:
    desk = Desk()
    desk.live = {ONE, TWO, THREE}
    for peer in desk.live:
        desk.say(peer, "prompt")
    desk.crew.look()
    assert desk.crew.patience() == BRIEF
    for live, seconds in (({ONE, TWO}, BRIEF), ({ONE}, LONG), ({ONE, THREE}, BRIEF)):
        desk.live = live
        desk.now += 10
        desk.crew.look()
        assert desk.crew.patience() == seconds
    desk.now += LONG - 10  # TWO is dead: one of two live members falls silent now
    desk.live = {ONE}
    desk.crew.look()
    assert desk.crew.silent(TWO) > LONG > desk.crew.silent(THREE) > 0
    assert desk.crew.patience() == BRIEF
