"""Sealed jobs at the desk of their author: what it accepts, and what is done again."""

import pytest
import trio

from shoal.netsim.world import World
from shoal.state.views.jobs import Job, JobState
from shoal.tasks.jobs import defaults
from shoal.tasks.jobs.results import JobOutcome, failed, pack_outcome
from shoal.tasks.jobs.sealing.drafts import sealed_draft
from shoal.tasks.jobs.sealing.seals import JobSeals
from shoal.tasks.jobs.spec import JobSpec
from shoal.tasks.jobs.submitting import row_of
from shoal.tasks.jobs.wholes import NewJob
from shoal.transport.identity import Identity
from tests.tasks.jobs.fake_state import OTHER
from tests.tasks.jobs.sealing.keys import ME, PEOPLE, ROOT, piece, seals, with_spec
from tests.tasks.jobs.test_desk import DONE, HONEST, Desk, desk, line, text

WORKER, HONEST_ONE = PEOPLE[2], Identity.from_seed(bytes([9]) * 32)


async def submit(made: Desk, mine: JobSeals) -> Job:
    spec = JobSpec(ROOT, row_of("generate", "secret"), name="tiny", abstract="secret")
    new = NewJob("generate", [(spec, 1)], nonce=made.submitter.nonce())
    draft = sealed_draft(mine, ME.peer, new, b"", mine.newest())
    (number,) = await made.submitter.submit([draft.sealed("")], lease=100.0)
    standing = made.state.views.jobs.get(number)
    assert standing is not None and standing.job is not None
    assert standing.job.id == draft.jobs[0].id
    found: Job = standing.job
    return found


def outcome(by: Identity, of: Job, said: JobOutcome) -> bytes:
    sealed = seals(by).seal_outcome(of, said)
    assert sealed is not None
    return pack_outcome(JobOutcome(sealed=sealed))


GOOD = JobOutcome(text=line("in the well"), tokens=3, reason="stop")


async def test_the_author_reads_the_result_after_a_restart(world: World) -> None:
    """The author is off while the job is done, and has only its identity and its feed left."""
    mine = seals(ME, 7)
    async with desk(world, mine) as made:
        asked = await submit(made, mine)
        facts = dict(made.state.facts)
    assert b"secret" not in repr(facts).encode()
    async with desk(world, seals(ME, 7)) as again:
        for (kind, key), fact in facts.items():
            again.state.set(kind, key, fact)
        again.claim(asked.id, outcome(WORKER, asked, GOOD))
        await trio.sleep(5)
        found = await again.desk.result(asked.id, wait=True)
        assert (text(found), found.outcome.tokens, found.model) == ("in the well", 3, "tiny")
        assert (found.abstract, found.prompt) == ("secret", "secret")


async def test_a_long_output_is_a_sealed_blob(world: World) -> None:
    mine = seals(ME, 7)
    async with desk(world, mine) as made:
        asked = await submit(made, mine)
        sealed = seals(WORKER).seal_outcome(asked, JobOutcome(text=line("well " * 1000)))
        assert sealed is not None
        root = await made.shelf.put(sealed)
        made.claim(asked.id, pack_outcome(JobOutcome(blob=root, size=len(sealed))))
        await trio.sleep(5)
        assert text(await made.desk.result(asked.id, wait=True)) == "well " * 1000


@pytest.mark.parametrize("lie", ["plain", "error", "cut", "stolen", "other", "lines", "bad-seal"])
async def test_a_worker_whose_output_cannot_be_opened_is_replaced(world: World, lie: str) -> None:
    """The author refuses the worker, another node does the piece, and nothing is lost."""
    mine = seals(ME, 7)
    async with desk(world, mine) as made:
        asked, other = await submit(made, mine), await submit(made, mine)
        sealed = seals(WORKER).seal_outcome(asked, GOOD) or b""
        lies = {
            "plain": DONE,  # a node of an earlier version
            "error": pack_outcome(failed("bad-spec", "no rows")),  # the same
            "cut": pack_outcome(JobOutcome(sealed=sealed[:-9])),
            "stolen": outcome(HONEST_ONE, asked, GOOD),  # copied from another node's claim
            "other": outcome(WORKER, other, GOOD),
            "lines": outcome(WORKER, asked, JobOutcome(text=line("x", 5))),
            "bad-seal": outcome(WORKER, asked, failed("bad-seal", "cannot be opened")),
        }
        made.claim(asked.id, lies[lie])
        await trio.sleep(5)
        standing = made.state.views.jobs.get(asked.id)
        assert standing is not None and standing.job is not None
        assert OTHER in standing.job.refused
        assert made.stands(asked.id) is JobState.OPEN
        assert await made.code(asked.id) == "not-done"
        made.claim(asked.id, outcome(HONEST_ONE, standing.job, GOOD), by=HONEST, attempt=2)
        await trio.sleep(defaults.COLLECT_PAUSE + 5)
        assert text(await made.desk.result(asked.id, wait=False)) == "in the well"


async def test_the_specs_of_own_jobs_are_shown_and_those_of_others_are_not(world: World) -> None:
    mine = seals(ME, 7)
    async with desk(world, mine) as made:
        asked = await submit(made, mine)
        shown = made.desk.spec_of(asked)
        assert shown is not None and shown.abstract == "secret" and b"secret" in shown.lines
        of_other = seals(PEOPLE[1], 7)
        spec = of_other.with_seal(piece(), JobSpec(ROOT, b"x", abstract="x"), of_other.newest())
        others = made.desk.spec_of(with_spec(piece(), spec))
        assert others is not None and (others.abstract, others.lines) == ("", b"")
