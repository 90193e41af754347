"""Replication of this node's own jobs: which of them other nodes have confirmed.

Entries of a feed reach other nodes in the order in which they were written, in updates of 64 KiB.
A node that has the last piece of a job therefore has all pieces of it, and all earlier jobs.
"""

from collections.abc import Callable, Sequence

import trio

from ....state.views.jobs import Job
from .. import defaults
from ..desk import Desk
from ..errors import BadSpec
from ..spec import read_spec
from .replication import JobReplication, KeepAnswer

Blob = tuple[str, int]
"""(root, bytes) of the blob with the rows of a job. The root is "" if they are in its entries."""
BlobOf = Callable[[Job], Blob]
"""Returns the blob of a job. Raises BadSpec if its spec is invalid."""


class OwnReplication:
    """Replication of the jobs that this node has submitted."""

    def __init__(self, replication: JobReplication, desk: Desk, blob_of: BlobOf) -> None:
        self._replication = replication
        self._desk = desk
        self._blob_of = blob_of
        self._confirmed = set[str]()  # jobs of this run that other nodes have

    async def confirm(self, jobs: Sequence[str]) -> bool:
        """Have other nodes store jobs with their rows. Return whether they have all of them.

        `jobs` are in the order of submission. This takes KEEP_TIME and KEEP_MORE at most.
        """
        asked = self._asked(jobs)  # now, because a job may be done and gone soon
        answers = list[KeepAnswer]()
        few = trio.CapacityLimiter(defaults.KEEP_AT_ONCE)

        async def ask(job: str, blob: Blob) -> None:
            async with few:
                attempt = self._replication.attempt
                answers.append(await attempt(job, *blob, defaults.KEEP_COPIES))

        with trio.move_on_after(defaults.KEEP_TIME + defaults.KEEP_MORE):
            async with trio.open_nursery() as nursery:
                for job, blob in asked:
                    nursery.start_soon(ask, job, blob)
        confirmed = len(answers) == len(asked) > 0 and all(each.is_stored for each in answers)
        if confirmed:
            self._confirmed.update(jobs)
        return confirmed

    def is_confirmed(self, job: str) -> bool:
        """Return whether other nodes have said since the start of this node that they have a
        job."""
        return job in self._confirmed

    def _asked(self, jobs: Sequence[str]) -> list[tuple[str, Blob]]:
        """Return what other nodes are asked to store: the last pieces of the jobs that have a blob,
        and of the last job."""
        last = [piece for piece in map(self._last_piece, jobs) if piece is not None]
        pieces = [(piece, self._blob(piece)) for piece in last]
        return [(piece.id, blob) for piece, blob in pieces if blob[0] or piece is last[-1]]

    def _last_piece(self, job: str) -> Job | None:
        """Return the last listed piece of a job, or None if none is listed."""
        standings = map(self._desk.standing, self._desk.pieces(job))
        pieces = [each.job for each in standings if each is not None and each.job is not None]
        return max(pieces, key=lambda piece: piece.part, default=None)

    def _blob(self, piece: Job) -> Blob:
        try:
            return self._blob_of(piece)
        except BadSpec:
            return "", 0


def rows_blob(job: Job) -> Blob:
    """Return the blob with the rows of a job whose kind works on rows. Raises BadSpec if its spec
    is invalid."""
    blob = read_spec(job.spec).blob
    return ("", 0) if blob is None else (blob.root, blob.size)
