"""The daemon's part in jobs: submits its own jobs, works on those of other nodes, and counts
usage."""

from contextlib import suppress
from functools import partial

import trio

from ...state.errors import FeedFull
from ...state.group.facts import Role
from ...state.group.group import Group
from ...state.views.jobs import CLAIMS, Job
from ...state.views.jobs import JobState as Stand
from ...state.views.members import JOBS
from ...tasks.jobs.checking.checks import ResultChecks
from ...tasks.jobs.checking.trust import Trust
from ...tasks.jobs.collecting import Collector
from ...tasks.jobs.crew import IdleTime, WorkTerms, does_jobs
from ...tasks.jobs.defaults import KEPT_AFTER
from ...tasks.jobs.desk import Desk, JobNode
from ...tasks.jobs.kinds.table import KINDS
from ...tasks.jobs.models import JobModels
from ...tasks.jobs.outputs import PieceOutputs
from ...tasks.jobs.replication.confirming import OwnReplication, rows_blob
from ...tasks.jobs.replication.replication import JobReplication, ReplicationTerms
from ...tasks.jobs.results import Results
from ...tasks.jobs.runner import Workshop, runners
from ...tasks.jobs.sealing.seals import JobSeals
from ...tasks.jobs.services import RowServices
from ...tasks.jobs.shelf import Shelf, Storage
from ...tasks.jobs.submitting import Submitter
from ...tasks.jobs.worker import Worker
from ...tasks.serving.slots import Slots
from ...tasks.tuning.moving.defaults import KIND as TUNING
from ...tasks.tuning.moving.spec import read_tuning
from ...tasks.usage.accounting import Accounting
from ...tasks.usage.paying import Payers
from ...transport.identity import PeerId
from ..folder import disk_errors
from .base import Base
from .content import ContentParts
from .moving import Moving, Trainers
from .network import NetworkParts


class Working:
    """Job service of one node. It is created after the parts that compute."""

    def __init__(
        self,
        base: Base,
        network: NetworkParts,
        content: ContentParts,
        services: RowServices,
        serving: Slots,
        tuning: Trainers,
        payers: Payers,
    ) -> None:
        gateway = services.gateway
        host, state, own = base.host, network.state, base.identity.peer
        self._host, self._state = host, state
        self._directory = network.directory
        self._own = own
        self._folder = base.config.folder
        shelf = _shelf(base, content)
        local, stage = JobNode(host, state, own, network.endpoint.guard), network.stage
        self.local = local
        trust = Trust(host, state, own)
        self._accounting = Accounting(state, own, stage.meter, payers.now, write_more=trust.write)
        turn = IdleTime(lambda: gateway.waited_for + stage.waited_for)
        models = JobModels(
            network.directory.members,
            host.now,
            works_for=lambda root: serving.is_for(root) or base.library.is_named(root),
        )
        self.seals = JobSeals(base.identity, host, self._group)
        """Keys of sealed jobs."""
        self.shop = Workshop(
            services, models, shelf, turn, network.directory.members, self.seals,
            outputs=PieceOutputs(host, self._folder.pieces),
        )  # fmt: skip
        """What jobs of all kinds use on this node."""
        self.checks = ResultChecks(host, own, self.shop, KINDS, trust)
        """Checks of the results of this node's jobs."""
        results = Results(host, self._folder.results)
        self.desk = Desk(local, results, self.seals)
        self.submitter = Submitter(local, self.desk, trust.liars)
        self._collector = Collector(local, self.desk, shelf, self.checks, self.seals)
        self.replication = JobReplication(
            host,
            network.courier,
            state.views.jobs,
            shelf,
            ReplicationTerms(
                self._helpers,
                self._serving,
                keeps=lambda peer: self.does_jobs and self._is_member(peer),
                works_for=models.works_for,
            ),
        )
        """Replication of jobs, their inputs and their outputs."""
        self.own_replication = OwnReplication(host, self.replication, self.desk, _blob_of)
        """Replication of the jobs that this node has submitted."""
        self.shelf = shelf
        self.moving = Moving(base, network, models, shelf, tuning, self.seals)
        """Fine-tunings that this node trains for any node."""
        self._wanted = base.config.jobs
        self.worker = Worker(
            local,
            WorkTerms(turn, self._is_ready, self._is_member),
            {**runners(KINDS, self.shop), self.moving.runner.kind: self.moving.runner},
            shelf,
            live=network.directory.members,
            health=partial(base.health.show, "jobs"),
            replicate=self.replication.replicate,
            weight=trust.weight,
            seals=self.seals,
        )
        self.moving.connect(
            lambda job: self.worker.crew.heirs(job.id, own),
            lambda peer: self.does_jobs and self._is_member(peer),
            self.worker.queue,
        )
        self._does_jobs = base.works

    def _group(self) -> Group | None:
        """Return the private group of this node, or None."""
        upkeep = self._state.upkeep
        return None if upkeep is None else upkeep.group

    @property
    def does_jobs(self) -> bool:
        """Whether this node works on other nodes' jobs when it is idle."""
        return self._does_jobs and not self._is_client()

    def _is_ready(self) -> bool:
        """Return whether this node may begin a job now."""
        serves = bool(self._directory.own().shards)
        return (self._wanted is True or serves) and not self._is_client()

    def _helpers(self) -> list[PeerId]:
        """Return the live peers that do jobs."""
        members, own = self._state.views.members, self._own
        return [p for p in self._directory.members() if p != own and does_jobs(members, p)]

    def _serving(self, root: str) -> frozenset[PeerId]:
        """Return the live peers that serve a part of the model with this root."""
        members = self._directory.members().items()
        return frozenset(p for p, said in members if any(s.root == root for s in said.shards))

    def _is_member(self, author: PeerId) -> bool:
        """Return whether jobs of this author are accepted. In a private group, the author must be a
        member that is not revoked."""
        group = self._group()
        return group is None or group.order.role(author) is not None

    def _is_client(self) -> bool:
        """Return whether this node is a client of a private group. Members ignore what clients
        publish about jobs."""
        group = self._group()
        return group is not None and group.role is Role.CLIENT

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the job service until cancelled. `nursery.start` returns once the results of earlier
        runs are loaded."""
        with disk_errors(self._folder):
            await self.desk.results.open()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._collect)
            nursery.start_soon(self._accounting.run)
            self.local.guard.start_repeated(nursery, "authors of jobs", self._tidy)
            self.local.guard.start_repeated(nursery, "own jobs", self._confirm)
            nursery.start_soon(self.worker.run if self._does_jobs else self._withdraw)
            task_status.started()

    async def _collect(self) -> None:
        """Collect the results of this node's jobs, as soon as it is known which claimants lied."""
        await self._state.shown.wait()
        self.checks.trust.load()
        await self._collector.run()

    async def _confirm(self) -> None:
        """Have other nodes store this node's jobs that none has yet."""
        await self._state.shown.wait()
        await self.own_replication.run()

    async def _tidy(self) -> None:
        """Delete what is kept for authors that have had no jobs for a while, and outputs of pieces
        that are done."""
        await self._state.shown.wait()
        gone = dict[PeerId, float]()
        while True:
            await trio.sleep(KEPT_AFTER / 4)
            await self.shop.outputs.tidy(self._is_unfinished)
            await self.shelf.tidy_kept(partial(self._keeps, gone))
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
        if self._does_jobs:
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


def _blob_of(job: Job) -> tuple[str, int]:
    """Return the root and the bytes of the blob with the rows of a job. Raises BadSpec if its spec
    is invalid."""
    if job.kind == TUNING:
        rows = read_tuning(job.spec).rows
        return rows.root, rows.size
    return rows_blob(job)


def _shelf(base: Base, content: ContentParts) -> Shelf:
    return Shelf(
        base.host,
        Storage(base.library, content.quota, content.holdings.withdraw),
        content.exchange,
        base.config.folder.shelf,
        own=base.identity.peer,
        linked=content.holdings.linked,
    )
