"""Tests of the replication of own jobs: "another node has it" is about all pieces and rows."""

import pytest
import trio

from shoal.netsim.world import World
from shoal.tasks.jobs import defaults
from shoal.tasks.jobs.spec import BlobPart, JobSpec
from shoal.transport.link.calls import Refusal
from tests.tasks.jobs.fake_state import AUTHOR, OTHER
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
        assert trio.current_time() - began <= defaults.REPLICATE_TIME + defaults.REPLICATE_MORE
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


async def test_this_node_goes_on_asking_until_another_one_has_its_jobs(world: World) -> None:
    blob = "ab" * 32
    async with author(world) as made, trio.open_nursery() as nursery:
        made.helpers.clear()
        jobs = await made.submit([spec()], [spec(blob=blob)], [spec(1), spec(2)])
        assert not await made.own.confirm(jobs)
        nursery.start_soon(made.own.run)
        await trio.sleep(1000)
        assert not any(map(made.own.is_confirmed, jobs)) and not made.node.courier.asked
        made.spread()
        made.helper.shelf.blobs[blob] = b"x"
        made.helpers.append(OTHER)
        await trio.sleep(defaults.REPLICATE_AGAIN_LOOK + 5)
        assert all(map(made.own.is_confirmed, jobs)) and made.own.trouble(jobs) is None
        assert len(made.node.courier.asked) == 2, "the entry of the first job came with the others"
        await trio.sleep(5000)
        assert len(made.node.courier.asked) == 2
        nursery.cancel_scope.cancel()


async def test_a_node_that_refuses_is_asked_again_in_growing_intervals(world: World) -> None:
    async with author(world) as made, trio.open_nursery() as nursery:
        (job,) = await made.submit([spec()])
        made.helper.kept_for.clear()
        nursery.start_soon(made.own.run)
        await trio.sleep(3600)
        assert 8 <= len(made.node.courier.asked) <= 12, len(made.node.courier.asked)
        made.helper.kept_for.add(AUTHOR)
        made.spread()
        await trio.sleep(defaults.REPLICATE_AGAIN[1] + defaults.REPLICATE_AGAIN_LOOK + 1)
        assert made.own.is_confirmed(job)
        nursery.cancel_scope.cancel()


async def test_one_attempt_asks_for_a_bounded_number_of_jobs(world: World) -> None:
    async with author(world) as made, trio.open_nursery() as nursery:
        blobs = [f"{number:064x}" for number in range(3 * defaults.REPLICATE_BATCH)]
        made.helper.shelf.blobs.update(dict.fromkeys(blobs, b"x"))
        jobs = await made.submit(*([spec(blob=blob)] for blob in blobs))
        made.spread()
        nursery.start_soon(made.own.run)
        await trio.sleep(20)
        assert len(made.node.courier.asked) == defaults.REPLICATE_BATCH + 1
        await trio.sleep(3000)
        assert all(map(made.own.is_confirmed, jobs))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("code", "hint"), [("full", "--disk"), ("busy", "some minutes"), ("no-replica", "serves")]
)
async def test_the_last_refusal_is_told_with_what_to_do(world: World, code: str, hint: str) -> None:
    async with author(world) as made:
        (job,) = await made.submit([spec()])

        async def refuse(peer: object, header: object) -> Refusal:
            await trio.lowlevel.checkpoint()
            return Refusal(code, "no\x1b room")

        made.helper.hear = refuse  # type: ignore[method-assign]
        assert not await made.own.confirm([job])
        trouble = made.own.trouble([job])
        assert trouble is not None and trouble.code == "not-replicated"
        assert f"`{code}` (no\x1b room)" in trouble.message and OTHER[-8:] in trouble.message
        assert trouble.hint and hint in trouble.hint and "keep this node running" in trouble.hint


async def test_a_member_that_soon_does_jobs_is_waited_for(world: World) -> None:
    async with author(world) as made:
        made.helpers.clear()
        made.node.is_alone = False
        (job,) = await made.submit([spec()])
        made.spread()

        async def later() -> None:
            await trio.sleep(2)
            made.helpers.append(OTHER)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(later)
            assert await made.own.confirm([job])
        assert made.own.trouble([job]) is None


@pytest.mark.parametrize(("is_alone", "least", "most"), [(True, 0.0, 0.1), (False, 5.0, 5.5)])
async def test_only_a_node_with_company_waits_for_one_that_does_jobs(
    world: World, is_alone: bool, least: float, most: float
) -> None:
    async with author(world) as made:
        made.helpers.clear()
        made.node.is_alone = is_alone
        (job,) = await made.submit([spec()])
        began = trio.current_time()
        assert not await made.own.confirm([job])
        assert least <= trio.current_time() - began <= most


async def test_without_other_nodes_that_is_told(world: World) -> None:
    async with author(world) as made:
        made.helpers.clear()
        (job,) = await made.submit([spec()])
        await made.own.confirm([job])
        trouble = made.own.trouble([job])
        assert trouble is not None and "no node that does jobs is in reach" in trouble.message
