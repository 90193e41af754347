"""A bug that a job or a member triggers costs that job or member, and the worker goes on."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from shoal.state import defaults as state_defaults
from shoal.state.views.jobs import Job, Jobs, JobState
from shoal.state.views.members import JOBS, jobs_fact
from shoal.tasks.jobs.claims import OwnClaims
from shoal.tasks.jobs.crew import Crew
from shoal.tasks.jobs.worker import Worker
from shoal.transport.guard import Guard, Mishap
from tests.tasks.jobs.fake_state import ME, OTHER
from tests.tasks.jobs.test_worker import Runner, desk

pytestmark = pytest.mark.trio


class Bug(Exception):
    """A bug of this program."""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Mishap]]:
    """Let all guards report to the list that is returned."""
    mishaps, begin = list[Mishap](), Guard.__init__

    def reporting(guard: Guard, _report: object = None, *more: Any) -> None:
        begin(guard, mishaps.append, *more)

    monkeypatch.setattr(Guard, "__init__", reporting)
    yield mishaps


@pytest.mark.parametrize("name", ["able", "seconds", "longest"])
async def test_a_job_that_triggers_a_bug_is_left_alone(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch, told: list[Mishap], name: str
) -> None:
    calls, bad, real = Counter[str](), set[str](), getattr(Runner, name)

    def broken(runner: Runner, job: Job) -> Any:
        calls[job.id] += 1
        if job.id in bad:
            raise Bug
        return real(runner, job)

    monkeypatch.setattr(Runner, name, broken)
    async with desk() as made:
        ended = list[str]()
        made.guard.hang_up = ended.append
        job = made.state.submit(0)
        bad.add(job)
        await trio.sleep(5)
        assert calls[job] and {each.subject[:30] for each in told} == {f"job {job}"[:30]}
        standing = made.state.views.jobs.get(job)
        assert standing is not None and standing.job is not None and standing.job.author in ended
        other = made.state.submit(1)
        await trio.sleep(60)
        assert made.stands(other) is JobState.DONE and made.stands(job) is JobState.OPEN
        assert made.worker.pieces == 0 and made.worker.done == 1
        assert calls[job] <= 2, "the job rests for its lease"
        bad.clear()
        await trio.sleep(standing.job.lease + 60)
        assert made.stands(job) is JobState.DONE


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Worker, "_offers"),
        (Worker, "begin_some"),
        (OwnClaims, "weigh"),
        (Crew, "look"),
        (Crew, "changed"),
        (Jobs, "get"),
    ],
)
async def test_the_worker_goes_on_after_a_bug(
    autojump_clock: object,
    monkeypatch: pytest.MonkeyPatch,
    told: list[Mishap],
    owner: type,
    name: str,
) -> None:
    async with desk() as made:
        real, calls = getattr(owner, name), [0]

        def broken(*args: object) -> Any:
            calls[0] += 1
            if calls[0] <= 2:
                raise Bug
            return real(*args)

        monkeypatch.setattr(owner, name, broken)
        job = made.state.submit(0)
        made.state.hear(OTHER, "member", JOBS, jobs_fact(["sum"]))
        await trio.sleep(state_defaults.JOB_LEASE[1] + 60)
        assert calls[0] and made.stands(job) is JobState.DONE
        assert 1 <= len(told) <= 2 and {each.error for each in told} == {"Bug"}


async def test_bugs_at_the_start_are_survived(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch, told: list[Mishap]
) -> None:
    def broken(*_: object) -> None:
        raise Bug

    async with desk() as made:
        monkeypatch.setattr(Crew, "changed", broken)
        monkeypatch.setattr(Crew, "known", lambda crew: [OTHER, ME])
        await made.worker.begin()
        assert [each.subject for each in told] == [OTHER, ME]
