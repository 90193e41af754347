"""Where work stands: the places of this node's jobs among those of all users, and the jobs and
fine-tunings that run here or were submitted here."""

from collections import Counter
from collections.abc import Callable, Mapping

import trio

from ....state.views.jobs import Job, Jobs, JobState
from ....tasks.jobs.fairness import FairQueue
from ....transport.identity import PeerId
from ... import defaults
from ...daemon.work.jobs import Working
from ...daemon.work.tuning import TuningParts
from ..messages.node import DoneHere, TuningHere, WorkView
from .tuning import tuning_state


async def places(
    own: PeerId, jobs: Jobs, queue: FairQueue, made: Callable[[str], int]
) -> Mapping[str, int]:
    """Return the place of the next piece of each of this node's jobs that waits, from 1 on.

    Only the first JOBS_PLACED jobs are looked at. `made` returns the time at which a job was
    submitted, which decides between jobs that are equal otherwise.
    """
    first: dict[str, Job] = {}
    open_pieces = Counter[str]()
    for number, piece in enumerate(tuple(jobs.waiting.get(own, ())), 1):
        standing = jobs.get(piece)
        if standing is not None and standing.job is not None and standing.state is JobState.OPEN:
            first.setdefault(standing.job.whole, standing.job)
            open_pieces[standing.job.whole] += 1
        if number % defaults.JOBS_COUNTED == 0:
            await trio.lowlevel.checkpoint()
    others = {author: len(pieces) for author, pieces in jobs.waiting.items() if author != own}
    found, mine = dict[str, int](), 0
    order = sorted(first.values(), key=lambda job: (_order(queue, job), made(job.whole)))
    for job in order[: defaults.JOBS_PLACED]:
        found[job.whole] = queue.ahead(own, mine, others) + 1
        mine += open_pieces[job.whole]
        await trio.lowlevel.checkpoint()
    return found


def _order(queue: FairQueue, job: Job) -> tuple[float, ...]:
    work = float(job.parts * job.rows)
    return queue.order(job.author, job.whole, work, priority=job.priority, deadline=job.deadline)


async def work_view(
    own: PeerId, jobs: Jobs, working: Working, tuning: TuningParts, passes: int
) -> WorkView:
    """Describe the jobs and fine-tunings at this node. `passes` is the number of fine-tunings for
    which its layers are open."""
    here: dict[str, Job] = {}
    pieces = Counter[str]()
    for job in working.worker.running():
        here.setdefault(job.whole, job)
        pieces[job.whole] += 1
    waiting = set[str]()
    for number, piece in enumerate(tuple(jobs.waiting.get(own, ())), 1):
        standing = jobs.get(piece)
        if standing is not None and standing.job is not None:
            waiting.add(standing.job.whole)
        if number % defaults.JOBS_COUNTED == 0:
            await trio.lowlevel.checkpoint()
    counts = [working.own.desk.progress(job) for job in sorted(waiting)]
    return WorkView(
        doing=tuple(
            DoneHere(job.whole, job.kind, job.author, pieces[job.whole]) for job in here.values()
        ),
        jobs=len(counts),
        rows=sum(count.rows for count in counts),
        rows_done=sum(count.rows_done for count in counts),
        tunings=tuple(
            TuningHere(
                each.id,
                each.plan.name,
                tuning_state(each),
                each.progress.step,
                each.plan.settings.steps,
            )
            for each in tuning.tunings.all()
            if each.is_active
        ),
        tuned_for=passes,
    )
