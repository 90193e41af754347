"""Tests of the replication of own jobs: "another node has it" is about all pieces and rows."""

import trio

from shoal.netsim.world import World
from shoal.tasks.jobs import defaults
from shoal.tasks.jobs.spec import BlobPart, JobSpec
from tests.tasks.jobs.replication.author import author
from tests.tasks.jobs.replication.test_replication import MODEL


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
