"""The agenda of due members, compared with a look at all of them."""

from collections.abc import Callable
from copy import deepcopy
from hashlib import sha256
from math import inf
from random import Random

import pytest

from shoal.state import defaults
from shoal.state.membership.agenda import DueTimes
from shoal.state.membership.liveness import Liveness
from shoal.transport.identity import PeerId, peer_id_of

OWN, *MEMBERS = (peer_id_of(sha256(bytes([n])).digest()) for n in range(25))


@pytest.mark.parametrize("seed", range(4))
def test_the_due_members_are_those_whose_time_has_come(seed: int) -> None:
    random, times, known, now = Random(seed), DueTimes(), dict[PeerId, float](), 0.0
    for _ in range(2_000):
        peer, at = random.choice(MEMBERS), random.choice((inf, now + random.randrange(-2, 9)))
        times.set(peer, at)
        known[peer] = at
        if random.random() < 0.2:
            now += random.randrange(3)
            times.advance(now)
            assert set(times.ready) == {each for each, due in known.items() if due <= now}
        first = min((due for each, due in known.items() if each not in times.ready), default=inf)
        assert times.next_at() == (-inf if times.ready else first)


def test_times_that_change_often_take_little_memory() -> None:
    times = DueTimes()
    for number in range(10_000):
        times.set(MEMBERS[number % 20], float(number))
    assert len(times._heap) < 100


class Story:
    """Random changes of the liveness of many members, as the tasks of a node make them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.node = Liveness(OWN)
        self.now = 1.0
        self.linked = list[PeerId]()
        self.checking = list[PeerId]()
        self.asked = list[PeerId]()
        self.node.watch(frozenset(MEMBERS), self.now)

    def step(self) -> None:
        """Make one random change."""
        changes: list[Callable[[], None]] = [
            self.link, self.unlink, self.doubt, self.sure, self.report, self.rumour, self.bring,
            self.bring, self.end_check, self.end_check, self.end_question, self.look, self.look,
            self.forget, self.know, self.wait,
        ]  # fmt: skip
        self.random.choice(changes)()

    def some(self) -> list[PeerId]:
        return self.random.sample(MEMBERS, self.random.randrange(6))

    def link(self) -> None:
        if len(self.linked) < 8:
            peer = self.random.choice(MEMBERS)
            self.linked.append(peer)
            self.node.linked(peer, str(self.random.randrange(4)), self.now, self.some()[:1])

    def unlink(self) -> None:
        if self.linked and self.random.random() < 0.5:
            peer = self.linked.pop(0)
            self.node.unlinked(peer, self.now)

    def doubt(self) -> None:
        for peer in self.linked[:2]:
            self.node.doubt(peer, self.now)

    def sure(self) -> None:
        for peer in self.linked[:2]:
            self.node.sure(peer)

    def report(self) -> None:
        for peer in self.linked[-3:]:
            whole = self.random.random() < 0.3
            self.node.told(peer, self.some(), self.some(), self.now, whole=whole)

    def rumour(self) -> None:
        for peer in self.linked[:2]:
            self.node.rumoured(peer, self.some(), self.now)

    def bring(self) -> None:
        for peer in self.linked[-2:]:
            for member in self.some():
                self.node.brought(member, peer)

    def forget(self) -> None:
        if self.linked:
            self.node.forget(self.random.choice(self.linked))

    def know(self) -> None:
        gone = set(self.random.sample(MEMBERS, self.random.randrange(3)))
        self.node.watch(frozenset(MEMBERS) - gone, self.now)

    def end_check(self) -> None:
        while self.checking and self.random.random() < 0.8:
            peer, end = self.checking.pop(), self.random.random()
            if end < 0.6:
                self.node.proved(peer, self.now, self.some()[:1])
            elif end < 0.9:
                self.node.failed(peer, self.now, silent=end < 0.7)
            else:
                self.node.void([peer])

    def end_question(self) -> None:
        asked, self.asked = self.asked, []
        for peer in asked:
            if self.random.random() < 0.2:
                self.node.unanswered([peer])
            else:
                proved = self.random.random() < 0.7
                self.node.answered(peer, self.now, self.now, proved=proved)

    def wait(self) -> None:
        self.node.next_due(self.now)

    def look(self) -> None:
        self.now += self.random.choice((0.0, 0.25, 1.0, 4.0, 40.0))
        self.checking += self.node.next_checks(self.now)
        for peers in self.node.next_questions(self.now).values():
            self.asked += peers


@pytest.mark.parametrize("seed", range(8))
def test_no_change_of_a_member_is_missed(seed: int) -> None:
    """A node that determines again when all members are due comes to the same decisions."""
    story = Story(seed)
    for _ in range(600):
        story.step()
        if story.random.random() < 0.3:
            now = story.now + story.random.choice((0.0, 1.0, 30.0))
            one, other = deepcopy(story.node), deepcopy(story.node)
            other._changed = dict.fromkeys(other.watched)
            assert one.next_due(now) == other.next_due(now) >= now + defaults.TURN_S
            assert one.has_unseen(now) == any(
                watched.live or (watched.tried == -inf and watched.since + defaults.UNSEEN_S <= now)
                for peer, watched in one.watched.items()
                if peer not in one._links and not watched.networks
            )
            asked, again = one.next_questions(now), other.next_questions(now)
            assert {by: set(some) for by, some in asked.items()} == {
                by: set(some) for by, some in again.items()
            }
            assert one.next_checks(now) == other.next_checks(now)
            live = [peer for peer, watched in one.watched.items() if watched.live]
            assert live == [peer for peer, watched in other.watched.items() if watched.live]
            one.next_due(now)
            agenda = one._agenda
            counts = agenda.live, agenda.alone, len(agenda.checking)
            assert counts == (
                sum(peer not in one._links for peer in live),
                sum(peer not in one._links and not one.watched[peer].networks for peer in live),
                sum(watched.checking for watched in one.watched.values()),
            )
