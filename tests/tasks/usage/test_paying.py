"""A node that names a job makes the author of the job pay only by the claim that counts."""

import pytest
import trio

from shoal.state.feeds.entry import FeedName
from shoal.state.views.jobs import CLAIMS, Claim, Job, Jobs, claim_fact, job_fact, job_id, new_claim
from shoal.tasks.defaults import USAGE_CLAIM, USAGE_WAITING, USAGE_WAITS
from shoal.tasks.usage.metering import Use
from shoal.tasks.usage.paying import Payers
from shoal.transport.guard import Guard
from shoal.transport.identity import Identity, PeerId

AUTHOR, TRAINER, THIEF = (Identity.from_seed(bytes([seed]) * 32).peer for seed in (1, 2, 3))
NONCE = b"n" * 16
JOB = Job(job_id(AUTHOR, NONCE), AUTHOR, "finetune", b"spec")


def claimed(jobs: Jobs, claim: Claim | None, claimant: PeerId) -> None:
    fact = None if claim is None else claim_fact(claim)
    jobs.changed(FeedName(claimant, CLAIMS, 0), JOB.id, fact)


def submitted(job: Job = JOB) -> Jobs:
    jobs = Jobs()
    jobs.changed(FeedName(AUTHOR, "jobs", 0), job.id, job_fact(job, NONCE))
    return jobs


async def payer(jobs: Jobs, gateway: PeerId, job: str = JOB.id) -> PeerId:
    return await Payers(jobs, Guard()).soon(Use(gateway, "", job))


@pytest.mark.trio
async def test_the_claim_that_counts_makes_the_author_pay(autojump_clock: object) -> None:
    jobs = submitted()
    claimed(jobs, new_claim(TRAINER, JOB.id, 1), TRAINER)
    assert await payer(jobs, TRAINER) == AUTHOR and trio.current_time() < USAGE_CLAIM
    assert await payer(jobs, THIEF, "") == THIEF


@pytest.mark.parametrize("how", ["behind", "done", "refused", "left", "none"])
@pytest.mark.trio
async def test_other_claims_do_not(how: str, autojump_clock: object) -> None:
    job = JOB if how != "refused" else Job(
        JOB.id, AUTHOR, "finetune", b"spec", refused=(THIEF,)
    )  # fmt: skip
    jobs = submitted(job)
    claimed(jobs, new_claim(TRAINER, JOB.id, 2), TRAINER)
    claims = {
        "behind": new_claim(THIEF, JOB.id, 1),
        "done": new_claim(THIEF, JOB.id, 3, done=True),
        "refused": new_claim(THIEF, JOB.id, 3),
        "left": Claim(THIEF, JOB.id, 3, left=True),
        "none": None,
    }
    claimed(jobs, claims[how], THIEF)
    assert await payer(jobs, THIEF) == THIEF
    assert await payer(jobs, TRAINER) == (TRAINER if how == "done" else AUTHOR)


def test_a_use_is_charged_by_the_claim_that_counts() -> None:
    """Uses of sessions are looked up afterwards, also those at the end of a job."""
    jobs = submitted()
    payers, trained, stolen = (
        Payers(jobs, Guard()),
        Use(TRAINER, "", JOB.id),
        Use(THIEF, "", JOB.id),
    )
    assert payers.now(trained) is None and payers.now(Use(THIEF, "")) == THIEF
    claimed(jobs, new_claim(TRAINER, JOB.id, 2), TRAINER)
    claimed(jobs, new_claim(THIEF, JOB.id, 1), THIEF)
    assert payers.now(trained) == AUTHOR and payers.now(stolen) is None
    claimed(jobs, new_claim(TRAINER, JOB.id, 2, done=True), TRAINER)
    claimed(jobs, new_claim(THIEF, JOB.id, 3), THIEF)
    assert payers.now(trained) == AUTHOR and payers.now(stolen) is None


@pytest.mark.trio
async def test_a_claim_may_arrive_after_the_request(autojump_clock: object) -> None:
    jobs, found = Jobs(), list[PeerId]()

    async def ask() -> None:
        found.append(await payer(jobs, TRAINER))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(USAGE_CLAIM / 2)
        claimed(jobs, new_claim(TRAINER, JOB.id, 1), TRAINER)
        await trio.sleep(1)
        jobs.changed(FeedName(AUTHOR, "jobs", 0), JOB.id, job_fact(JOB, NONCE))
    assert found == [AUTHOR]


@pytest.mark.trio
async def test_few_uses_wait_for_claims(autojump_clock: object) -> None:
    """Each waiting use looks at every change of jobs, so too many would stall the event loop."""
    payers, ended = Payers(submitted(), Guard()), list[float]()

    async def ask(gateway: PeerId) -> None:
        assert await payers.soon(Use(gateway, "", JOB.id)) == gateway
        ended.append(trio.current_time())

    for _ in range(2):
        ended.clear()
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(ask, TRAINER)
            for number in range(100):
                nursery.start_soon(ask, PeerId(f"peer{number}"))
        waited = [at for at in ended if at >= began + USAGE_CLAIM]
        assert len(waited) == USAGE_WAITING
        assert len(ended) == 110
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(ask, TRAINER)
    assert len([at for at in ended[110:] if at >= began + USAGE_CLAIM]) == USAGE_WAITS
