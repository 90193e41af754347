"""Places of the fine-tunings that one node trains for others, shared between their authors. No I/O.

A fine-tuning has its place for hours, so the fair queue of jobs, which orders their beginnings, is
not enough. Its author is charged in that queue while it is trained. When another author's
fine-tuning lacks nothing but a place, and its author was served much less, the trainer stops after
a checkpoint, and any node continues.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf

from ....state.views.jobs import Job
from ....transport.identity import PeerId
from ...jobs.fairness import FairQueue
from ..trainer.defaults import RUNNING_AT_ONCE
from . import defaults


class TrainerPlaces:
    """The places of one node.

    `now` returns the monotonic time in seconds. `queue` is the node's order of users, in which
    authors are charged.
    """

    def __init__(self, now: Callable[[], float], queue: FairQueue) -> None:
        self.queue = queue
        self.now = now
        self._held: dict[str, PeerId] = {}  # author, by job
        self._charged: dict[str, float] = {}  # until when, by job
        self.lacking: dict[PeerId, float] = {}  # when one of its jobs last asked, by author
        self._brief: dict[PeerId, float] = {}  # when a place was given up at once, by author

    def has_one(self, job: Job) -> bool:
        """Return whether there is a place for a job. If not, it is remembered for a while that its
        author lacks one: an author with very many jobs must not displace others."""
        self.lacking.pop(job.author, None)
        holds = 1 + Counter(self._held.values())[job.author]
        if len(self._held) < RUNNING_AT_ONCE and not self._is_outranked(job.author, holds):
            return True
        self.lacking[job.author] = self.now()
        if len(self.lacking) > defaults.LACKING:
            del self.lacking[next(iter(self.lacking))]
        return False

    @contextmanager
    def taken(self, job: Job) -> Iterator[None]:
        """Give a job a place until the block ends. Its author is charged for the time.

        An author whose job gave up its place at once, as one without rows does, takes no place of
        others for a while. Otherwise it would stop them again and again, and pay nothing.
        """
        began = self.now()
        self._held[job.id], self._charged[job.id] = job.author, began
        try:
            yield
        finally:
            self.charge(job)
            del self._held[job.id], self._charged[job.id]
            if self.now() < began + defaults.PLACE_LOOK:
                self._brief.pop(job.author, None)
                self._brief[job.author] = self.now()
                if len(self._brief) > defaults.LACKING:
                    del self._brief[next(iter(self._brief))]

    def charge(self, job: Job) -> None:
        """Charge the author of a job that has a place for the time since the last charge."""
        now = self.now()
        self.queue.spend(job.author, now - self._charged[job.id], now)
        self._charged[job.id] = now

    def must_leave(self, job: Job) -> bool:
        """Return whether a job that has a place must leave it to another author."""
        return self._is_outranked(job.author, Counter(self._held.values())[job.author])

    def _is_outranked(self, author: PeerId, holds: int) -> bool:
        """Return whether a fine-tuning of another author, which has fewer places than `holds` and
        was served much less, lacks a place."""
        since, held = self.now() - defaults.LACKS_FOR, Counter(self._held.values())
        self.lacking = {each: at for each, at in self.lacking.items() if at >= since}
        long_ago = self.now() - defaults.PLACE_LEAD
        return any(
            held[other] < holds and self.queue.lead(author, other) >= defaults.PLACE_LEAD
            for other in self.lacking
            if other != author and self._brief.get(other, -inf) < long_ago
        )
