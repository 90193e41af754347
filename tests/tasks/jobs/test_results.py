"""Tests of the results on disk."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import trio

from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.world import World
from shoal.tasks.jobs import defaults
from shoal.tasks.jobs.results import JobOutcome, Results, StoredResult
from shoal.transport.identity import PeerId

FOLDER = Path("/data/jobs")
RESULT = StoredResult(
    "ab" * 32, "prompt", "tiny", "Once\nupon é", PeerId("1" * 52), 2,
    JobOutcome(text="a\x1bb", size=3, tokens=7, reason="length"), came=1e9,
    made=1_700_000_000_000_001, prompt="Once\nupon é" * 200,
)  # fmt: skip


@asynccontextmanager
async def disk(world: World) -> AsyncIterator[SimulatedHost]:
    machine = world.host("one")
    async with trio.open_nursery() as nursery:
        yield SimulatedHost(machine, PROFILES["desktop"], nursery, 0)
        nursery.cancel_scope.cancel()


async def opened(host: SimulatedHost) -> Results:
    made = Results(host, FOLDER)
    await made.open()
    return made


async def test_results_survive_the_daemon(world: World) -> None:
    async with disk(world) as host:
        results = await opened(host)
        assert len(results) == 0 and await results.take(RESULT.job) is None
        await results.put(RESULT)
        assert results.unread == 1
        again = await opened(host)
        assert await again.take(RESULT.job) == RESULT
        about = again.about(RESULT.job)
        assert about is not None and about.read > 0 and about.outcome.text == about.prompt == ""
        assert again.unread == 0 and (await opened(host)).unread == 0


async def test_the_longest_result_is_read_back(world: World) -> None:
    long = JobOutcome(text="x" * defaults.RESULT_BYTES, size=defaults.RESULT_BYTES, tokens=9)
    async with disk(world) as host:
        results = await opened(host)
        await results.put(replace(RESULT, outcome=long))
        found = await (await opened(host)).take(RESULT.job)
        assert found is not None and found.outcome == long


async def test_invalid_files_are_ignored(world: World) -> None:
    async with disk(world) as host:
        results = await opened(host)
        await results.put(RESULT)
        for name, data in (("cd" * 32, b"\xc1"), ("ef" * 32, b"\x80"), ("note", b"")):
            host.files.write(FOLDER / name, data)
        again = await opened(host)
        assert [result.job for result in again] == [RESULT.job]
        assert RESULT.job in again


async def test_read_results_expire_after_a_day_and_others_after_a_month(world: World) -> None:
    async with disk(world) as host:
        results = await opened(host)
        now = host.wall()
        for number, job in enumerate(("ab" * 32, "cd" * 32)):
            await results.put(
                StoredResult(job, "prompt", "tiny", "", RESULT.claimant, 1, JobOutcome(), came=now)
            )
            if number == 0:
                await results.take(job)
        await trio.sleep(defaults.RESULT_READ_KEPT - 60)
        await results.tidy()
        assert len(results) == 2
        await trio.sleep(120)
        await results.tidy()
        assert "ab" * 32 not in results and "cd" * 32 in results
        await trio.sleep(defaults.RESULT_KEPT)
        await results.tidy()
        assert len(results) == 0 == len(await opened(host))
