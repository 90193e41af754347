"""Replication of this node's own jobs: which of them other nodes have confirmed.

Entries of a feed reach other nodes in the order in which they were written, in updates of 64 KiB.
A node that has the last piece of a job therefore has all pieces of it, and all earlier jobs.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import trio

from ....state.views.jobs import Job
from ....transport.host.seam import Host
from ....transport.identity import PeerId
from .. import defaults
from ..desk import Desk
from ..errors import BadSpec, JobError
from ..spec import read_spec
from .replication import JobReplication, ReplicationRefusal

Blob = tuple[str, int]
"""(root, bytes) of the blob with the rows of a job. The root is "" if they are in its entries."""
BlobOf = Callable[[Job], Blob]
"""Returns the blob of a job. Raises BadSpec if its spec is invalid."""


class OwnReplication:
    """Replication of the jobs that this node has submitted."""

    def __init__(
        self, host: Host, replication: JobReplication, desk: Desk, blob_of: BlobOf
    ) -> None:
        self._host = host
        self._replication = replication
        self._desk = desk
        self._blob_of = blob_of
        self._confirmed = set[str]()  # jobs that other nodes have
        self._asking = Counter[str]()  # jobs for which other nodes are asked now
        self._refusals = dict[str, ReplicationRefusal]()  # the last one, by job

    async def confirm(self, jobs: Sequence[str]) -> bool:
        """Have other nodes store jobs with their rows. Return whether they have all of them.

        `jobs` are in the order of submission. This takes REPLICATE_FIND, REPLICATE_TIME and
        REPLICATE_MORE at most.
        """
        few = trio.CapacityLimiter(defaults.REPLICATE_AT_ONCE)
        pieces = [self._last_piece(job) for job in jobs]
        blobs = [self.blob(piece) for piece in pieces]

        async def ask(at: int, piece: Job) -> None:
            """Ask for one job. A node that has its last piece has the entries of those before."""
            async with few:
                answer = await self._replication.attempt(
                    piece.id, *blobs[at], defaults.REPLICATE_COPIES
                )
            before = [job for job, blob in zip(jobs[:at], blobs[:at], strict=True) if not blob[0]]
            if answer.is_stored:
                self._confirmed.update(before, [jobs[at]])
            elif answer.refusal is not None:
                self._refusals.update(dict.fromkeys([*before, jobs[at]], answer.refusal))

        self._asking.update(jobs)
        try:
            await self._replication.wait_for_helper()
            with trio.move_on_after(defaults.REPLICATE_TIME + defaults.REPLICATE_MORE):
                async with trio.open_nursery() as nursery:
                    for at, piece in enumerate(pieces):
                        if piece is not None and (blobs[at][0] or at == len(jobs) - 1):
                            nursery.start_soon(ask, at, piece)
        finally:
            self._asking -= Counter(jobs)
        return all(map(self.is_confirmed, jobs))

    def is_confirmed(self, job: str) -> bool:
        """Return whether other nodes have said since the start of this node that they have a
        job."""
        return job in self._confirmed

    def trouble(self, jobs: Sequence[str]) -> JobError | None:
        """Return why no other node has some of these jobs, or None if others have all of them."""
        lacking = [job for job in jobs if not self.is_confirmed(job)]
        refusals = [self._refusals[job] for job in lacking if job in self._refusals]
        return not_replicated(refusals[-1] if refusals else None) if lacking else None

    async def run(self) -> None:
        """Go on asking for the unfinished jobs that no other node has, until cancelled.

        Jobs are asked for again when a node comes that does jobs, and else in growing intervals.
        """
        shortest, longest = defaults.REPLICATE_AGAIN
        pause, next_at, asked = shortest, self._host.now(), frozenset[PeerId]()
        while True:
            changed = self._desk.changed
            lacking = self._lacking()
            helpers = frozenset(self._replication.helpers()) if lacking else frozenset[PeerId]()
            is_new = not helpers <= asked
            if lacking and (is_new or self._host.now() >= next_at):
                pause = shortest if is_new else min(2 * pause, longest)
                await self.confirm(lacking)
                next_at, asked = self._host.now() + pause, helpers
            if self._desk.unfinished():
                await trio.sleep(defaults.REPLICATE_AGAIN_LOOK)
            else:
                await changed.wait()

    def _lacking(self) -> list[str]:
        """Return the unfinished jobs that no other node has: the first of those with a blob, and
        the last one of all, whose entry implies all entries."""
        unfinished = self._desk.unfinished()
        known = self._asking.keys() | unfinished
        self._confirmed &= known
        self._refusals = {job: said for job, said in self._refusals.items() if job in known}
        lacking = [job for job in unfinished if job not in self._confirmed | self._asking.keys()]
        return [*lacking[: defaults.REPLICATE_BATCH], *lacking[defaults.REPLICATE_BATCH :][-1:]]

    def _last_piece(self, job: str) -> Job | None:
        """Return the last listed piece of a job, or None if none is listed."""
        standings = map(self._desk.standing, self._desk.pieces(job))
        pieces = [each.job for each in standings if each is not None and each.job is not None]
        return max(pieces, key=lambda piece: piece.part, default=None)

    def blob(self, piece: Job | None) -> Blob:
        """Return the root and the bytes of the blob with a piece's rows, ("", 0) without one."""
        with suppress(BadSpec):
            if piece is not None:
                return self._blob_of(piece)
        return "", 0


def not_replicated(refusal: ReplicationRefusal | None) -> JobError:
    """Return the error that no other node has a job. `refusal` is the last answer, or None if no
    node was asked."""
    lacking = "no other node has the job yet"
    if refusal is None:
        return JobError(
            "not-replicated",
            f"{lacking}: no node that does jobs is in reach",
            hint=f"{_STAY}; another node with `shoal node --jobs` would store the job",
        )
    said = f"`{refusal.code[:32]}` ({refusal.message[:200]})"
    return JobError(
        "not-replicated",
        f"{lacking}; the last one that was asked, {refusal.peer[-8:]}, said {said}",
        hint=f"{_STAY}{_HINTS.get(refusal.code, '')}",
    )


_STAY: Final = "keep this node running, it goes on trying"
_HINTS: Final = {
    "full": "; or give the other node more disk: `shoal node --disk`",
    "busy": "; the other node has stored much for you, and has room again in some minutes",
    "no-replica": "; or start a node that serves the model and does jobs",
}


def rows_blob(job: Job) -> Blob:
    """Return the blob with the rows of a job whose kind works on rows. Raises BadSpec if its spec
    is invalid."""
    blob = read_spec(job.spec).blob
    return ("", 0) if blob is None else (blob.root, blob.size)
