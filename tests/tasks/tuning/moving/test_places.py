"""Places of trainers between authors: no author keeps them all while another one waits."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from shoal.state.views.jobs import Job
from shoal.tasks.jobs.fairness import FairQueue
from shoal.tasks.tuning.moving import defaults
from shoal.tasks.tuning.moving.places import TrainerPlaces
from shoal.tasks.tuning.trainer.defaults import RUNNING_AT_ONCE
from shoal.transport.identity import PeerId

GREEDY, MODEST, THIRD = (PeerId(letter * 52) for letter in "abc")


class Node:
    """A node that trains waiting jobs, and looks for one every second. The jobs of the greedy
    author come first on its ring."""

    def __init__(self, jobs: dict[PeerId, int], weight: dict[PeerId, float] | None = None) -> None:
        self.now = 0.0
        queue = FairQueue(lambda user: (weight or {}).get(user, 1.0))
        self.places = TrainerPlaces(lambda: self.now, queue)
        self.waiting = [
            Job(f"{author[0]}{number}", author, "finetune")
            for author, count in jobs.items()
            for number in range(count)
        ]
        self.running: dict[str, tuple[Job, ExitStack]] = {}
        self.trained: dict[PeerId, float] = dict.fromkeys(jobs, 0.0)
        self.moves = 0

    def seconds(self, count: int) -> Iterator[int]:
        for second in range(count):
            self._begin()
            for job, _ in self.running.values():
                self.trained[job.author] += 1
            self.now += 1
            if not self.now % defaults.PLACE_LOOK:
                self._look()
            yield second

    def run(self, count: int) -> None:
        for _ in self.seconds(count):
            pass

    def _begin(self) -> None:
        for job in list(self.waiting):
            self.places.queue.came(job.author, job.id, 1.0, self.now)
            if self.places.has_one(job):
                stack = ExitStack()
                stack.enter_context(self.places.taken(job))
                self.running[job.id] = job, stack
                self.waiting.remove(job)

    def _look(self) -> None:
        for job, stack in list(self.running.values()):
            self.places.charge(job)
            if self.places.must_leave(job):
                self.moves += 1
                stack.close()
                del self.running[job.id]
                self.waiting.append(job)


def test_an_author_alone_keeps_all_places() -> None:
    node = Node({GREEDY: 5})
    node.run(3600)
    assert node.trained[GREEDY] == RUNNING_AT_ONCE * 3600 and not node.moves


def test_another_author_gets_a_place_within_minutes_and_keeps_it() -> None:
    node = Node({GREEDY: 40, MODEST: 1})
    late = node.waiting.pop()
    node.run(7200)
    node.waiting.append(late)
    node.run(240)
    assert [job.author for job, _ in node.running.values()].count(MODEST) == 1
    before = node.trained[MODEST]
    node.run(3600)
    assert node.trained[MODEST] - before == 3600 and node.moves == 1


def test_an_author_with_very_many_jobs_does_not_displace_one_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(defaults, "LACKING", 16)
    node = Node({MODEST: 1, GREEDY: 2 * defaults.LACKING})
    late = node.waiting.pop(0)
    node.run(600)
    node.waiting.insert(0, late)
    node.run(600)
    assert node.trained[MODEST] > 300


def test_an_author_whose_jobs_end_at_once_does_not_stop_others_for_ever() -> None:
    """Jobs without rows, for example, end before their author is charged for anything."""
    node, empty = Node({GREEDY: RUNNING_AT_ONCE}), Job("empty", MODEST, "finetune")
    for _ in node.seconds(3600):
        node.places.queue.came(MODEST, empty.id, 1.0, node.now)
        if node.places.has_one(empty):
            with node.places.taken(empty):
                pass
    assert node.moves <= RUNNING_AT_ONCE * 3600 / defaults.PLACE_LEAD


def test_authors_without_a_place_take_turns_with_the_others() -> None:
    node = Node({GREEDY: 40, MODEST: 2, THIRD: 2})
    node.run(36_000)
    shares = [seconds / (RUNNING_AT_ONCE * 36_000) for seconds in node.trained.values()]
    assert all(abs(share - 1 / 3) < 0.03 for share in shares), shares
    assert node.moves <= 36_000 / defaults.PLACE_LEAD * RUNNING_AT_ONCE


def test_a_weight_counts() -> None:
    node = Node({GREEDY: 40, MODEST: 4, THIRD: 4}, {THIRD: 2.0})
    node.run(36_000)
    shares = [seconds / (RUNNING_AT_ONCE * 36_000) for seconds in node.trained.values()]
    assert abs(shares[2] - 0.5) < 0.04 and abs(shares[0] - shares[1]) < 0.04, shares


def test_a_job_that_asks_no_more_lacks_nothing() -> None:
    node = Node({GREEDY: 2})
    node.run(60)
    node.places.queue.came(MODEST, "gone", 1.0, node.now)
    assert not node.places.has_one(Job("gone", MODEST, "finetune"))
    node.run(3600)
    assert not node.moves


def test_the_rows_of_an_author_wait_behind_its_fine_tuning() -> None:
    """Its time on this node is one account."""
    node = Node({GREEDY: 1})
    queue = node.places.queue
    queue.came(MODEST, "rows", 10.0, node.now)
    for _ in node.seconds(60):
        queue.came(MODEST, "rows", 10.0, node.now)
    assert queue.lead(GREEDY, MODEST) >= 60
    assert queue.order(MODEST, "rows", 10.0) < queue.order(GREEDY, "more", 1.0)
    node.run(120)  # nothing of the modest author waits any more
    assert queue.lead(GREEDY, MODEST) == 0, "an author without work saves up nothing"


def test_what_is_remembered_is_bounded() -> None:
    node = Node({GREEDY: 2})
    node.run(1)
    for number in range(2 * defaults.LACKING):
        node.places.has_one(Job(str(number), PeerId(f"peer{number}"), "finetune"))
    assert len(node.places.lacking) == defaults.LACKING
