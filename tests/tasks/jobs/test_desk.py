"""Tests of own jobs: their submission, results and removal."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.world import World
from shoal.state import defaults as state_defaults
from shoal.state.views.jobs import Job, JobState, claim_fact, job_fact, job_id, new_claim
from shoal.tasks.jobs import defaults
from shoal.tasks.jobs.collecting import Collector
from shoal.tasks.jobs.desk import Desk as Made
from shoal.tasks.jobs.desk import JobNode
from shoal.tasks.jobs.errors import BadSpec, JobError
from shoal.tasks.jobs.kinds.rows import output_line
from shoal.tasks.jobs.results import JobOutcome, Results, StoredResult, failed, pack_outcome
from shoal.tasks.jobs.sealing.seals import JobSeals
from shoal.tasks.jobs.spec import BlobPart, JobSpec
from shoal.tasks.jobs.submitting import Submitter, row_of
from shoal.tasks.jobs.wholes import NewJob
from shoal.transport.identity import Identity, PeerId
from shoal.transport.shortid import BadId
from tests.tasks.jobs.fake_state import ME, OTHER, FakeShelf, FakeState

ROOT = "ab" * 32
SPEC = JobSpec(ROOT, row_of("generate", "hello"), name="tiny", abstract="hello")


def line(text: str, number: int = 1) -> str:
    """Return the output of a row."""
    return output_line(number, {"text": text}).decode()


def text(result: StoredResult) -> str:
    found: str = json.loads(result.outcome.text)["text"]
    return found


DONE = pack_outcome(JobOutcome(text=line("so be it"), tokens=3, reason="stop"))
LIES = [
    pack_outcome(JobOutcome(text=text))
    for text in ("", "so be it", line("a", 2), line("a") * 2, line("a") + line("b", 2), "[1]", "{}")
]
HONEST = Identity.from_seed(bytes([9]) * 32).peer
BLOB = pack_outcome(JobOutcome(blob="cd" * 32, size=5000, tokens=900))


class Desk:
    def __init__(self, world: World, nursery: trio.Nursery, seals: JobSeals | None = None) -> None:
        if "one" not in world.hosts:
            world.host("one")
        machine = world.hosts["one"]
        host = SimulatedHost(machine, PROFILES["desktop"], nursery, 0)
        assert machine.disk is not None
        self.disk = machine.disk
        self.state, self.shelf = FakeState(nursery), FakeShelf()
        node = JobNode(host, self.state.state, ME)
        self.desk = Made(node, Results(host, Path("/jobs")), seals)
        self.submitter = Submitter(node, self.desk)
        self.collector = Collector(node, self.desk, self.shelf, seals=seals)

    async def submit(self, *specs: JobSpec) -> list[str]:
        jobs = [NewJob("generate", [(spec, 1)]) for spec in specs or [SPEC]]
        return await self.submitter.submit(jobs, lease=100.0)

    def claim(self, job: str, result: bytes = DONE, by: PeerId = OTHER, attempt: int = 1) -> None:
        claim = new_claim(by, job, attempt, done=True, result=result)
        self.state.hear(by, "claims", job, claim_fact(claim))

    def stands(self, job: str) -> JobState | None:
        standing = self.state.views.jobs.get(job)
        return None if standing is None else standing.state

    async def code(self, job: str) -> str:
        with pytest.raises(JobError) as raised:
            await self.desk.result(job, wait=False)
        return raised.value.code


@asynccontextmanager
async def desk(world: World, seals: JobSeals | None = None) -> AsyncIterator[Desk]:
    async with trio.open_nursery() as nursery:
        made = Desk(world, nursery, seals)
        await made.desk.results.open()
        nursery.start_soon(made.collector.run)
        await trio.sleep(0.1)
        yield made
        nursery.cancel_scope.cancel()


async def test_a_job_is_on_disk_when_it_has_an_id(world: World) -> None:
    async with desk(world) as made:
        (job,) = await made.submit()
        assert made.stands(job) is JobState.OPEN
        assert await made.code(job) == "not-done"
        assert await made.code("ab" * 32) == "unknown-job"


async def test_a_result_is_stored_before_its_job_is_removed(world: World) -> None:
    async with desk(world) as made:
        (job,) = await made.submit()
        made.claim(job)
        await trio.sleep(5)
        assert made.stands(job) is JobState.DONE and job in made.desk.results
        await trio.sleep(defaults.SETTLE + 10)
        assert ("jobs", job) not in made.state.facts
        found = await made.desk.result(job, wait=True)
        assert (text(found), found.claimant, found.model) == ("so be it", OTHER, "tiny")
        assert found.abstract == "hello"


async def test_an_invalid_job_has_an_error_as_its_result(world: World) -> None:
    """An earlier version, or another program with the same key, may have submitted the job."""
    async with desk(world) as made:
        random = bytes(16)
        job = job_id(ME, random)
        fact = job_fact(Job(job, ME, "generate", b"rubbish"), random)
        made.state.set("jobs", job, fact)
        made.claim(job, pack_outcome(failed("bad-spec", "invalid job")))
        await trio.sleep(5)
        assert (await made.desk.result(job, wait=False)).outcome.error == "bad-spec"


async def test_own_jobs_stay_in_the_order_of_submission(world: World) -> None:
    """Whether they are done or not, and before a restart or after it."""
    async with desk(world) as made:
        jobs = [job for _ in range(3) for job in await made.submit(SPEC, SPEC)]
        for job in jobs[3:0:-1]:
            made.claim(job)
        await trio.sleep(defaults.SETTLE + 10)
        assert len(made.desk.results) == 3
        assert await made.desk.own() == jobs
        times = [made.desk.made(job) for job in jobs]
        assert times == sorted(set(times))
        random = b"\xff" * 16  # as earlier versions made them
        old = job_id(ME, random)
        made.state.set("jobs", old, job_fact(Job(old, ME, "generate"), random))
        await trio.sleep(1)
        assert (await made.desk.own(), made.desk.made(old)) == ([old, *jobs], 0)
        found = await made.desk.results.take(jobs[1])
        assert found is not None and found.prompt == "hello"
        state = made.state
    async with desk(world) as again:
        for (kind, job), fact in state.facts.items():
            again.state.set(kind, job, fact)
        await trio.sleep(1)
        assert await again.desk.own() == [old, *jobs]


async def test_all_jobs_without_a_result_are_cancelled(world: World) -> None:
    async with desk(world) as made:
        done, *others = await made.submit(SPEC, SPEC, SPEC)
        made.claim(done)
        await trio.sleep(5)
        assert set(await made.desk.cancel_unfinished()) == set(others)
        assert await made.desk.own() == [done] and made.desk.knows(done)
        assert not made.desk.knows(others[0])


async def test_a_waiting_caller_gets_the_result_when_it_arrives(world: World) -> None:
    async with desk(world) as made:
        (job,) = await made.submit()

        async def later() -> None:
            await trio.sleep(50)
            made.claim(job, pack_outcome(failed("bad-spec", "no")))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(later)
            found = await made.desk.result(job, wait=True)
        assert found.outcome.error == "bad-spec"


async def test_an_earlier_attempt_replaces_a_result_until_it_is_final(
    world: World,
) -> None:
    async with desk(world) as made:
        (job,) = await made.submit()
        made.claim(job, attempt=2)
        await trio.sleep(5)
        earlier = pack_outcome(JobOutcome(text=line("I was first")))
        made.claim(job, earlier, PeerId("1" * 52), 1)
        await trio.sleep(10)
        assert text(await made.desk.result(job, wait=True)) == "I was first"


async def test_a_blob_is_fetched_and_kept_as_text(world: World) -> None:
    async with desk(world) as made:
        (job,) = await made.submit()
        made.shelf.blobs["cd" * 32] = line("é" * 2500).encode()
        made.claim(job, BLOB)
        await trio.sleep(5)
        found = await made.desk.result(job, wait=False)
        assert text(found) == "é" * 2500 and found.outcome.tokens == 900


@pytest.mark.parametrize("lie", [b"", b"rubbish", pack_outcome(JobOutcome()) + b"x", BLOB, *LIES])
async def test_a_lying_claimant_is_refused_and_the_job_is_redone(lie: bytes, world: World) -> None:
    async with desk(world) as made:
        (job,) = await made.submit()
        made.shelf.blobs["cd" * 32] = b"\xff"
        made.claim(job, lie)
        await trio.sleep(5)
        assert made.stands(job) is JobState.OPEN
        fact = made.state.facts["jobs", job]
        assert fact["refused"] == [OTHER] and fact["spec"] and fact["lease"] == 100.0
        made.claim(job, DONE, PeerId("1" * 52))
        assert text(await made.desk.result(job, wait=True)) == "so be it"


async def test_a_missing_blob_is_fetched_several_times(world: World) -> None:
    """Its claimant may be behind a partition."""
    async with desk(world) as made:
        (job,) = await made.submit()
        made.claim(job, BLOB)
        await trio.sleep(2 * (defaults.FETCH_PATIENCE + defaults.REFUSE_PAUSE))
        assert made.stands(job) is JobState.DONE and made.shelf.asked == 2
        await trio.sleep(2 * (defaults.FETCH_PATIENCE + defaults.REFUSE_PAUSE))
        assert made.stands(job) is JobState.OPEN and made.shelf.asked == 3


async def test_missing_blobs_do_not_delay_other_results(world: World) -> None:
    async with desk(world) as made:
        jobs = await made.submit(*[SPEC] * (defaults.FETCHES - 1), SPEC)
        for job in jobs[:-1]:
            made.claim(job, BLOB)
        await trio.sleep(1)
        made.claim(jobs[-1])
        await trio.sleep(3)
        assert text(await made.desk.result(jobs[-1], wait=False)) == "so be it"


async def test_too_many_refusals_are_the_result(world: World) -> None:
    async with desk(world) as made:
        (job,) = await made.submit()
        for number in range(state_defaults.JOB_REFUSED + 1):
            made.claim(job, b"rubbish", PeerId("1" * 50 + f"{11 + number}".replace("0", "z")))
            await trio.sleep(2 * defaults.COLLECT_PAUSE + 2)
        found = await made.desk.result(job, wait=False)
        assert found.outcome.error == "no-result"


async def test_all_or_none_are_written(world: World) -> None:
    async with desk(world) as made:
        before = dict(made.state.facts)
        with pytest.raises(BadSpec):
            await made.submit(SPEC, replace(SPEC, lines=b"x" * state_defaults.JOB_SPEC_BYTES))
        with pytest.raises(BadSpec):
            await made.submit(SPEC, replace(SPEC, root="no root"))
        made.state.full = "jobs"
        with pytest.raises(JobError) as raised:
            await made.submit(SPEC, SPEC)
        assert raised.value.code == "jobs-full" and made.state.facts == before


async def test_a_disk_that_takes_no_job_is_an_error_and_leaves_nothing(world: World) -> None:
    async with desk(world) as made:
        made.state.stored = False
        with pytest.raises(JobError) as raised:
            await made.submit()
        assert raised.value.code == "not-stored" and not made.state.facts


async def test_a_cancelled_submission_leaves_nothing(world: World) -> None:
    async with desk(world) as made:
        with trio.move_on_after(0.1):
            await made.submit()
        assert not made.state.facts


async def test_unread_results_are_not_evicted_for_new_jobs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "RESULTS", 2)
    async with desk(world) as made:
        for job in await made.submit(SPEC, SPEC):
            made.claim(job)
        await trio.sleep(defaults.SETTLE + 15)
        with pytest.raises(JobError) as raised:
            await made.submit()
        assert raised.value.code == "results-full"
        await made.desk.result(job, wait=False)
        await made.submit()


async def test_a_full_disk_keeps_the_job_until_there_is_room(world: World) -> None:
    async with desk(world) as made:
        (job,) = await made.submit()
        spec = made.disk.spec
        made.disk.spec = replace(spec, capacity=made.disk.used)
        made.claim(job)
        await trio.sleep(2 * defaults.SETTLE)
        assert made.stands(job) is JobState.DONE and job not in made.desk.results
        made.disk.spec = spec
        await trio.sleep(2 * defaults.REFUSE_PAUSE)
        assert job in made.desk.results and ("jobs", job) not in made.state.facts


async def test_cancelling_removes_job_and_result(world: World) -> None:
    async with desk(world) as made:
        one, two = await made.submit(SPEC, SPEC)
        made.claim(two)
        await trio.sleep(2)
        for job in (one, two):
            assert await made.desk.cancel(job)
            assert ("jobs", job) not in made.state.facts
            await trio.sleep(1)
            assert await made.code(job) == "unknown-job"
        assert not await made.desk.cancel(one)


async def test_results_survive_a_restart(world: World) -> None:
    async with desk(world) as made:
        (job,) = await made.submit()
        made.claim(job)
        await trio.sleep(5)
    async with desk(world) as made:
        assert text(await made.desk.result(job, wait=False)) == "so be it"
        made.state.submit(0, OTHER)
        assert made.desk.find(job[:6]) == job


async def test_the_beginning_of_an_id_is_enough(world: World) -> None:
    async with desk(world) as made:
        jobs = await made.submit(*[SPEC] * 40)
        assert made.desk.find(jobs[0]) == jobs[0]
        for asked, code in (
            ("", "short-job"),
            (jobs[0][:3], "short-job"),
            ("0" * 12, "unknown-job"),
        ):
            with pytest.raises(BadId) as raised:
                made.desk.find(asked)
            assert raised.value.code == code


async def test_jobs_of_other_authors_are_ignored(world: World) -> None:
    async with desk(world) as made:
        job = made.state.submit(5, OTHER)
        made.claim(job)
        await trio.sleep(defaults.SETTLE + 20)
        assert job not in made.desk.results and made.stands(job) is JobState.DONE
        assert await made.code(job) == "unknown-job" and not await made.desk.cancel(job)


async def test_a_liars_blobs_do_not_delay_other_results(world: World) -> None:
    async with desk(world) as made:
        jobs = await made.submit(*[SPEC] * 40)
        for job in jobs[2:]:
            made.claim(job, BLOB)
        await trio.sleep(5)
        made.shelf.blobs["ef" * 32] = line("so be it").encode()
        made.claim(jobs[0], DONE, HONEST)
        made.claim(jobs[1], pack_outcome(JobOutcome(blob="ef" * 32, size=8)), HONEST)
        await trio.sleep(10)
        assert [made.desk.results.about(job) is not None for job in jobs[:3]] == [True, True, False]


async def test_changing_attempts_do_not_keep_a_job_forever(world: World) -> None:
    async with desk(world) as made:
        (job,) = await made.submit()
        for attempt in range(20, 0, -1):
            made.claim(job, attempt=attempt)
            await trio.sleep(defaults.SETTLE / 5)
        assert ("jobs", job) not in made.state.facts


async def test_a_claimant_is_not_refused_for_this_nodes_full_disk(world: World) -> None:
    async with desk(world) as made:
        (job,) = await made.submit()
        made.shelf.full = True
        made.claim(job, BLOB)
        await trio.sleep((defaults.FETCH_TRIES + 1) * (defaults.REFUSE_PAUSE + 10))
        assert made.shelf.asked > defaults.FETCH_TRIES and made.stands(job) is JobState.DONE
        made.shelf.full, made.shelf.blobs["cd" * 32] = False, line("so be it").encode()
        await trio.sleep(defaults.REFUSE_PAUSE + 10)
        assert (await made.desk.result(job, wait=False)).claimant == OTHER


ROWS = b"".join(b'{"prompt": "row %d"}\n' % number for number in range(1, 6))


def piece(first: int, last: int) -> tuple[JobSpec, int]:
    """Return the piece with these lines of ROWS, each of which has 20 bytes."""
    lines = ROWS.splitlines(keepends=True)[first - 1 : last]
    return JobSpec(ROOT, b"".join(lines), first=first, last=last), last - first + 1


def output(first: int, last: int) -> bytes:
    lines = (line(f"text {number}", number) for number in range(first, last + 1))
    return pack_outcome(JobOutcome(text="".join(lines), tokens=1))


async def in_pieces(made: Desk) -> list[str]:
    """Submit a job of three pieces, and return their ids."""
    pieces = [piece(1, 2), piece(3, 4), piece(5, 5)]
    (job,) = await made.submitter.submit([NewJob("generate", pieces)], lease=100.0)
    found = made.desk.pieces(job)
    views = [made.state.views.jobs.get(each) for each in found]
    parts = {each.job.part: each.id for each in views if each is not None and each.job is not None}
    assert parts[0] == job and len(parts) == 3
    return [parts[number] for number in range(3)]


async def test_pieces_are_joined_in_the_order_of_rows_exactly_once(world: World) -> None:
    async with desk(world) as made:
        pieces = await in_pieces(made)
        assert await made.desk.own() == pieces[:1]
        made.claim(pieces[2], output(5, 5))
        made.claim(pieces[0], output(1, 2), attempt=2)
        await trio.sleep(5)
        count = made.desk.progress(pieces[0])
        assert (count.rows, count.rows_done, count.complete) == (5, 3, False)
        assert await made.code(pieces[0]) == "not-done"
        made.claim(pieces[0], output(1, 2), HONEST, 1)
        made.claim(pieces[1], output(3, 4))
        await trio.sleep(defaults.SETTLE + 15)
        assert not [key for key in made.state.facts if key[0] == "jobs"], "no piece is listed"
        parts = [part async for part in made.desk.output(pieces[0], wait=True)]
        assert b"".join(parts) == "".join(line(f"text {n}", n) for n in range(1, 6)).encode()
        found = await made.desk.result(pieces[0], wait=False)
        assert (found.rows, found.outcome.tokens, found.read > 0) == (5, 3, True)
        assert await made.desk.own() == pieces[:1] and made.desk.find(pieces[0][:9]) == pieces[0]
        with pytest.raises(BadId):
            made.desk.find(pieces[1])


async def test_a_piece_that_failed_has_an_error_for_each_row(world: World) -> None:
    async with desk(world) as made:
        pieces = await in_pieces(made)
        made.claim(pieces[0], output(1, 2))
        made.claim(pieces[1], pack_outcome(failed("too-long", "it took over an hour")))
        made.claim(pieces[2], output(5, 5))
        await trio.sleep(5)
        assert made.desk.progress(pieces[0]).rows_failed == 2
        found = await made.desk.result(pieces[0], wait=False)
        rows = [json.loads(each) for each in found.outcome.text.splitlines()]
        assert [row["line"] for row in rows] == [1, 2, 3, 4, 5]
        assert [row.get("error") for row in rows] == [None, None, "too-long", "too-long", None]


async def test_the_results_of_a_cancelled_job_do_not_come_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its removal is visible a moment later. Until then, a finished piece must not be fetched."""
    monkeypatch.setattr(defaults, "PAUSE", 0.01)
    async with desk(world) as made:
        new = NewJob("generate", [(SPEC, 1)] * 3)
        (job,) = await made.submitter.submit([new], lease=100.0)
        made.claim(job)
        await trio.sleep(2)
        assert made.desk.progress(job).parts_done == 1
        assert await made.desk.cancel(job)
        await trio.sleep(2)
        assert not made.desk.knows(job) and not list(made.desk.results)
        await trio.sleep(defaults.TIDY + 1)
        assert not made.desk.cancelled, "ids of pieces that no longer exist are forgotten"


async def test_cancelling_a_job_removes_all_its_pieces(world: World) -> None:
    async with desk(world) as made:
        pieces = await in_pieces(made)
        made.claim(pieces[1], output(3, 4))
        await trio.sleep(5)
        assert await made.desk.cancel_unfinished() == pieces[:1]
        assert not made.desk.knows(pieces[0]) and not len(made.desk.results)
        assert not [key for key in made.state.facts if key[0] == "jobs"]


async def test_a_spec_whose_rows_are_not_in_its_blob_is_refused(world: World) -> None:
    async with desk(world) as made:
        for start, stop in ((0, 11), (5, 5), (0, 0)):
            with pytest.raises(BadSpec):
                await made.submit(JobSpec(ROOT, blob=BlobPart("cd" * 32, 10, start, stop)))
