"""The daemon's part in jobs: submits its own jobs, works on those of other nodes, and counts
usage."""

from contextlib import suppress
from functools import partial

import trio

from ....state.errors import FeedFull
from ....state.views.jobs import CLAIMS, Job
from ....state.views.jobs import JobState as Stand
from ....state.views.members import JOBS
from ....tasks.jobs.checking.checks import ResultChecks
from ....tasks.jobs.checking.trust import Trust
from ....tasks.jobs.collecting import Collector
from ....tasks.jobs.crew import Crew, WorkTerms
from ....tasks.jobs.defaults import KEPT_AFTER
from ....tasks.jobs.desk import Desk
from ....tasks.jobs.fairness import FairQueue
from ....tasks.jobs.kinds.table import KINDS
from ....tasks.jobs.replication.confirming import OwnReplication, rows_blob
from ....tasks.jobs.replication.replication import JobReplication, ReplicationTerms
from ....tasks.jobs.results import Results
from ....tasks.jobs.runner import runners
from ....tasks.jobs.submitting import Submitter
from ....tasks.jobs.worker import OutputStores, Worker
from ....tasks.tuning.moving.defaults import KIND as TUNING
from ....tasks.tuning.moving.spec import read_tuning
from ....tasks.usage.accounting import Accounting
from ....transport.identity import PeerId
from ...folder import disk_errors
from ...settings.config import DataFolder
from ..base import Base
from ..content import ContentParts
from ..network import NetworkParts
from .moving import Moving
from .tools import Computing, JobTools


class Working:
    """Job service of one node. It is created after the parts that compute."""

    def __init__(
        self, base: Base, network: NetworkParts, content: ContentParts, computing: Computing
    ) -> None:
        host, state = base.host, network.state
        self._host, self._state, self._own = host, state, base.identity.peer
        self._folder = base.config.folder
        self.tools = tools = JobTools(base, network, content, computing)
        rules, shelf = tools.rules, tools.shelf
        jobs = state.views.jobs
        stores = ReplicationTerms(
            rules.helpers,
            rules.is_alone,
            rules.serving,
            rules.stores_for,
            tools.models.works_for,
        )
        self.replication = JobReplication(host, network.courier, jobs, shelf, stores)
        """Replication of jobs, their inputs and their outputs."""
        self.own = OwnJobs(tools, self._folder, self.replication)
        """The jobs that this node has submitted."""
        trust, meter = self.own.checks.trust, computing.stage.meter
        self._accounting = Accounting(
            state, self._own, meter, network.payers.now, write_more=trust.write
        )
        live = network.directory.members
        crew = Crew(state.views.members, [*KINDS, TUNING], live=live, now=host.now)
        terms = WorkTerms(tools.turn, rules.is_ready, rules.is_member, FairQueue(trust.weight))
        self.moving = Moving(base, network, tools, computing, crew, terms.queue)
        """Fine-tunings that this node trains for any node."""
        self.worker = Worker(
            tools.node,
            terms,
            {**runners(KINDS, tools.shop), TUNING: self.moving.runner},
            crew,
            OutputStores(shelf, self.replication.replicate, tools.seals),
            partial(base.health.show, "jobs"),
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the job service until cancelled. `nursery.start` returns once the results of earlier
        runs are loaded."""
        with disk_errors(self._folder):
            await self.own.desk.results.open()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._collect)
            nursery.start_soon(self._accounting.run)
            self.tools.node.guard.start_repeated(nursery, "authors of jobs", self._tidy)
            self.tools.node.guard.start_repeated(nursery, "own jobs", self._confirm)
            nursery.start_soon(self.worker.run if self.tools.rules.offers else self._withdraw)
            task_status.started()

    async def _collect(self) -> None:
        """Collect the results of this node's jobs, as soon as it is known which claimants lied."""
        await self._state.shown.wait()
        self.own.checks.trust.load()
        await self.own.collector.run()

    async def _confirm(self) -> None:
        """Have other nodes store this node's jobs that none has yet."""
        await self._state.shown.wait()
        await self.own.replication.run()

    async def _tidy(self) -> None:
        """Delete what is kept for authors that have had no jobs for a while, and outputs of pieces
        that are done."""
        await self._state.shown.wait()
        gone = dict[PeerId, float]()
        while True:
            await trio.sleep(KEPT_AFTER / 4)
            await self.tools.shop.outputs.tidy(self._is_unfinished)
            await self.tools.shelf.tidy_kept(partial(self._keeps, gone))
            await self.moving.checkpoints.tidy()

    def _is_unfinished(self, piece: str) -> bool:
        standing = self._state.views.jobs.get(piece)
        return standing is not None and standing.job is not None and standing.state != Stand.DONE

    def _keeps(self, gone: dict[PeerId, float], text: str) -> bool:
        """Return whether what is kept for an author is still needed. `gone` has the times since
        when authors have no jobs."""
        author, now = PeerId(text), self._host.now()
        if self._state.views.jobs.of(author):
            gone.pop(author, None)
            return True
        return now - gone.setdefault(author, now) < KEPT_AFTER

    async def leave(self) -> None:
        """Stop accepting jobs, because the node is about to end."""
        if self.tools.rules.offers:
            await self.worker.leave()

    def write_usage(self) -> None:
        """Write the usage since the last write, because this node is about to end."""
        self._accounting.write(last=True)

    async def _withdraw(self) -> None:
        """Withdraw the offer to work on jobs, and the unfinished claims, that an earlier run has
        left."""
        await self._state.shown.wait()
        begun = [c.job for c in self._state.views.jobs.claims_by(self._own) if not c.done]
        with suppress(FeedFull):  # a forked feed accepts no entries
            if self._state.get("member", JOBS) is not None:
                self._state.set("member", JOBS, None)
            for job in begun:
                self._state.set(CLAIMS, job, None)


class OwnJobs:
    """What submits this node's jobs, waits for their results, and checks and stores these."""

    def __init__(self, tools: JobTools, folder: DataFolder, replication: JobReplication) -> None:
        node, seals = tools.node, tools.seals
        trust = Trust(node.host, node.state, node.peer)
        self.checks = ResultChecks(node.host, node.peer, tools.shop, KINDS, trust)
        """Checks of the results of this node's jobs."""
        self.desk = Desk(node, Results(node.host, folder.results), seals)
        self.submitter = Submitter(node, self.desk, trust.liars)
        self.collector = Collector(node, self.desk, tools.shelf, self.checks, seals)
        """Collects and checks the results of this node's jobs."""
        self.replication = OwnReplication(node.host, replication, self.desk, _blob_of)
        """Replication of the jobs that this node has submitted."""


def _blob_of(job: Job) -> tuple[str, int]:
    """Return the root and the bytes of the blob with the rows of a job. Raises BadSpec if its spec
    is invalid."""
    if job.kind == TUNING:
        rows = read_tuning(job.spec).rows
        return rows.root, rows.size
    return rows_blob(job)
