"""Order of jobs by two-level fair queueing in virtual time, after UWFQ (arXiv 2510.15485). No I/O.

The nodes' time is shared between users first, and then between the jobs of one user. A user's
virtual time advances by the work that was begun for it, divided by its weight; the user with the
least comes first. A user that had no work is advanced to the virtual time of the others, so it
saves up nothing. A user that lists thousands of jobs only lengthens its own queue.

Of one user's jobs, those with a higher priority come first, then those with an earlier deadline,
and then the one that a fair sharing of the user's part would end first: the finish tag of a job is
the user's virtual time when the job came, plus the work of all its pieces. So a short job is never
behind a giant one of the same user, and a giant one is not overtaken without end, because the tags
of later jobs grow.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import nlargest

from ...transport.identity import PeerId
from . import defaults

Order = tuple[float, int, float, float]
"""Sort key of a job: its user's virtual time, its priority, its deadline, and its finish tag. The
lowest comes first."""


@dataclass(slots=True)
class _User:
    """Virtual time of a user in seconds of work, the finish tags of its jobs, and when one of these
    was last considered."""

    time: float
    tags: dict[str, float] = field(default_factory=dict)
    seen: float = -math.inf


class FairQueue:
    """Virtual times of the users whose jobs one node begins.

    `weight` returns a user's share beside that of others: 1, or more if the user has given work to
    others.
    """

    def __init__(self, weight: Callable[[PeerId], float] = lambda user: 1.0) -> None:
        self._weight = weight
        self.users: dict[PeerId, _User] = {}
        self._now = 0.0  # virtual time of the user that was served last

    def order(
        self, user: PeerId, job: str, work: float, *, priority: int = 0, deadline: float = 0.0
    ) -> Order:
        """Return the sort key of a piece of a job.

        `work` is that of the whole job, in any unit that is the same for all jobs. `deadline` is 0
        if there is none.
        """
        known, time = self.users.get(user), self._time_of(user)
        tag = time + work if known is None else known.tags.get(job, time + work)
        return time, -priority, deadline or math.inf, tag

    def came(self, user: PeerId, job: str, work: float, now: float = 0.0) -> None:
        """Record that a job waits. Its finish tag is decided when that is recorded first."""
        self._prune()
        known = self.users.setdefault(user, _User(self._now))
        known.time, known.seen = max(known.time, self._now), now
        known.tags.setdefault(job, known.time + work)
        if len(known.tags) > defaults.TAGS:
            known.tags.pop(next(iter(known.tags)))

    def begin(self, user: PeerId, work: float) -> None:
        """Charge a user for a piece that begins. `work` is in the unit of whole jobs."""
        known = self.users.setdefault(user, _User(self._now))
        self._now = max(known.time, self._now)
        known.time = self._now + max(work, defaults.LEAST_WORK) / self._weight_of(user)
        self._prune()

    def spend(self, user: PeerId, work: float, now: float) -> None:
        """Charge a user for work that goes on, such as the steps of a fine-tuning.

        Users without work are advanced to the one that was served least of those that have some.
        """
        known = self.users.setdefault(user, _User(self._now))
        known.time = max(known.time, self._now) + work / self._weight_of(user)
        waiting = [u.time for u in self.users.values() if now - u.seen <= defaults.WAITS_FOR]
        self._now = max(self._now, min([known.time, *waiting]))
        self._prune()

    def lead(self, user: PeerId, other: PeerId) -> float:
        """Return by how many seconds of virtual time a user was served more than another one."""
        return self._time_of(user) - self._time_of(other)

    def share(self, user: PeerId, others: Iterable[PeerId]) -> float:
        """Return the part of the time that a user gets beside these other users with jobs."""
        weight = self._weight_of(user)
        return weight / (weight + math.fsum(map(self._weight_of, others)))

    def ahead(self, user: PeerId, mine: int, waiting: Mapping[PeerId, int]) -> int:
        """Return how many pieces come before a piece that waits, as far as this node can tell.

        `mine` of them are the user's own. `waiting` has the numbers of pieces of the other users,
        each of which is assumed to take PIECE_TIME.
        """
        start = self._time_of(user) + mine * defaults.PIECE_TIME / self._weight_of(user)
        found = mine
        for other, pieces in waiting.items():
            room = (start - self._time_of(other)) * self._weight_of(other) / defaults.PIECE_TIME
            found += min(pieces, max(0, math.ceil(room)))
        return found

    def gone(self, user: PeerId, job: str) -> None:
        """Forget a job that has ended."""
        if (known := self.users.get(user)) is not None:
            known.tags.pop(job, None)

    def _time_of(self, user: PeerId) -> float:
        known = self.users.get(user)
        return self._now if known is None else max(known.time, self._now)

    def _weight_of(self, user: PeerId) -> float:
        return min(max(self._weight(user), 1.0), defaults.MOST_WEIGHT)

    def _prune(self) -> None:
        """Forget the users with the least virtual time if there are too many: a new user begins
        about where they are."""
        if len(self.users) > defaults.USERS:
            users = self.users
            most = nlargest(defaults.USERS // 2, users, key=lambda user: users[user].time)
            self.users = {user: users[user] for user in most}


def weight_of(given: float) -> float:
    """Return the weight of a user that has given this many seconds of checked work to others.

    It doubles with the first hour and grows by one with each tenfold, so that a large giver
    does not shut out users that give nothing.
    """
    return 1.0 + math.log10(1.0 + 9.0 * max(given, 0.0) / 3600.0)
