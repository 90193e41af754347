"""A node that submits jobs, beside one node that may have received some of its entries."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.world import World
from shoal.state.feeds.entry import FeedName
from shoal.state.views.jobs import Job
from shoal.tasks.jobs.desk import Desk, JobNode
from shoal.tasks.jobs.replication.confirming import OwnReplication, rows_blob
from shoal.tasks.jobs.results import Results
from shoal.tasks.jobs.spec import JobSpec
from shoal.tasks.jobs.submitting import Submitter
from shoal.tasks.jobs.wholes import NewJob
from shoal.tasks.tuning.moving.defaults import KIND
from shoal.tasks.tuning.moving.spec import read_tuning
from tests.tasks.jobs.fake_state import AUTHOR, OTHER, FakeState
from tests.tasks.jobs.replication.test_replication import Node


def blob_of(job: Job) -> tuple[str, int]:
    if job.kind != KIND:
        return rows_blob(job)
    rows = read_tuning(job.spec).rows
    return rows.root, rows.size


class Author:
    def __init__(self, world: World, nursery: trio.Nursery) -> None:
        host = SimulatedHost(world.host("one"), PROFILES["desktop"], nursery, 0)
        self.state = FakeState(nursery, AUTHOR)
        self.local = node = JobNode(host, self.state.state, AUTHOR)
        self.desk = Desk(node, Results(host, Path("/jobs")))
        self.submitter = Submitter(node, self.desk)
        self.helpers = [OTHER]
        self.node, self.helper = Node(self.helpers), Node()
        self.node.courier.nodes[OTHER] = self.helper
        self.own = OwnReplication(host, self.node.replication, self.desk, blob_of)

    async def submit(self, *jobs: list[JobSpec]) -> list[str]:
        new = [NewJob("generate", [(spec, 1) for spec in specs]) for specs in jobs]
        return await self.submitter.submit(new, lease=100.0)

    def spread(self, *, without: int = 0) -> None:
        """Give the other node the entries of this one, in their order, without the last ones."""
        entries = [(key, fact) for kind, key, fact in self.state.log if kind == "jobs"]
        for key, fact in entries[: len(entries) - without]:
            assert fact is not None
            self.helper.jobs.changed(FeedName(AUTHOR, "jobs", 0), key, fact)


@asynccontextmanager
async def author(world: World) -> AsyncIterator[Author]:
    async with trio.open_nursery() as nursery:
        made = Author(world, nursery)
        await made.desk.results.open()
        yield made
        nursery.cancel_scope.cancel()
