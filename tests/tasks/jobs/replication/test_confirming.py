"""Tests of the replication of own jobs: "another node has it" is about all pieces and rows."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.world import World
from shoal.state.feeds.entry import FeedName
from shoal.tasks.jobs import defaults
from shoal.tasks.jobs.desk import Desk, JobNode
from shoal.tasks.jobs.replication.confirming import OwnReplication, rows_blob
from shoal.tasks.jobs.results import Results
from shoal.tasks.jobs.spec import BlobPart, JobSpec
from shoal.tasks.jobs.submitting import Submitter
from shoal.tasks.jobs.wholes import NewJob
from tests.tasks.jobs.fake_state import AUTHOR, OTHER, FakeState
from tests.tasks.jobs.replication.test_replication import MODEL, Node


class Author:
    """A node that submits jobs, beside one node that may have received some of its entries."""

    def __init__(self, world: World, nursery: trio.Nursery) -> None:
        host = SimulatedHost(world.host("one"), PROFILES["desktop"], nursery, 0)
        self.state = FakeState(nursery, AUTHOR)
        node = JobNode(host, self.state.state, AUTHOR)
        self.desk = Desk(node, Results(host, Path("/jobs")))
        self.submitter = Submitter(node, self.desk)
        self.helpers = [OTHER]
        self.node, self.helper = Node(self.helpers), Node()
        self.node.courier.nodes[OTHER] = self.helper
        self.own = OwnReplication(self.node.replication, self.desk, rows_blob)

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


def spec(number: int = 1, blob: str = "") -> JobSpec:
    if blob:
        return JobSpec(MODEL, blob=BlobPart(blob, 100, 0, 100))
    return JobSpec(MODEL, b'{"prompt": "hi"}', first=number, last=number)


async def test_a_job_is_elsewhere_once_its_last_piece_is(world: World) -> None:
    """A job of many pieces takes several updates of a feed."""
    async with author(world) as made:
        (job,) = await made.submit([spec(number) for number in range(1, 9)])
        made.spread(without=3)
        assert not await made.own.confirm([job])
        made.spread()
        assert await made.own.confirm([job])


async def test_jobs_are_elsewhere_once_all_of_them_and_their_rows_are(world: World) -> None:
    blobs = [f"{number:064x}" for number in (1, 2)]
    async with author(world) as made:
        jobs = await made.submit([spec(blob=blobs[0])], [spec(blob=blobs[1])], [spec()])
        made.spread()
        made.helper.shelf.blobs[blobs[1]] = b"x"
        began = trio.current_time()
        assert not await made.own.confirm(jobs), "it lacks the rows of the first job"
        assert trio.current_time() - began <= defaults.KEEP_TIME + defaults.KEEP_MORE
        made.helper.shelf.blobs[blobs[0]] = b"x"
        assert await made.own.confirm(jobs)
        assert set(made.helper.shelf.kept) == set(blobs)


async def test_no_job_is_elsewhere_without_other_nodes(world: World) -> None:
    async with author(world) as made:
        made.helpers.clear()
        (job,) = await made.submit([spec()])
        made.spread()
        assert not await made.own.confirm([job])
        assert not await made.own.confirm(["ab" * 32]), "it is not listed"
