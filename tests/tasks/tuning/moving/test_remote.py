"""The author of a fine-tuning that moves: submitting it, and telling where its rows are."""

import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import trio

from shoal.netsim.world import World
from shoal.state.views.jobs import claim_fact, new_claim
from shoal.tasks.jobs.kinds.rows import output_line
from shoal.tasks.jobs.results import JobOutcome, StoredResult
from shoal.tasks.jobs.shelf import Shelves
from shoal.tasks.tuning.moving.checking import HeldOutCheck
from shoal.tasks.tuning.moving.defaults import KIND
from shoal.tasks.tuning.moving.remote import RemoteParts, RemoteTunings
from shoal.tasks.tuning.moving.state import Vault
from shoal.tasks.tuning.trainer.checkpoint import run_digest
from shoal.tasks.tuning.trainer.curve import Point
from shoal.tasks.tuning.trainer.errors import TuningError
from shoal.tasks.tuning.trainer.optimiser import Learned, tensor_shapes
from shoal.tasks.tuning.trainer.plan import Errand
from shoal.tasks.tuning.trainer.training import Progress
from shoal.transport.identity import PeerId
from tests.tasks.jobs.fake_state import AUTHOR, OTHER
from tests.tasks.jobs.replication.author import Author, author
from tests.tasks.jobs.sealing.keys import AUTHOR as AUTHOR_IDENTITY
from tests.tasks.jobs.sealing.keys import seals
from tests.tasks.tuning.moving.nodes import SHAPES, NodeShelf
from tests.tasks.tuning.moving.nodes import World as Nodes
from tests.tasks.tuning.numpy_chain import settings

DATA = "ef" * 32
ERRAND = Errand(
    settings(), SHAPES, run_digest(settings(), DATA), Path("/rows"), DATA, "tiny", False
)


class Runner:
    """The trainer of a node, which trains nothing."""

    def progress_of(self, job: str) -> None:
        return None


class Home:
    """The node of a user whose fine-tunings move."""

    def __init__(self, made: Author, folder: Path) -> None:
        self.made = made
        self.jobs = made.state.views.jobs
        host = made.local.host
        host.files.write(ERRAND.rows, b"rows of some lines")
        shelf = cast(Shelves, NodeShelf(Nodes(folder)))
        self.vault = Vault(host, shelf)
        parts = RemoteParts(made.desk, made.submitter, shelf, made.own, cast(Any, None),
                            cast(Any, Runner()), seals(AUTHOR_IDENTITY),
                            cast(HeldOutCheck, self))  # fmt: skip
        self.remote = RemoteTunings(made.local, parts, self.vault)
        self.shelf = shelf
        self.false = False

    async def check(self, errand: Errand, learned: Learned, progress: Progress) -> None:
        """Stands for the check of a result."""
        await trio.lowlevel.checkpoint()
        assert errand is ERRAND and learned.step == ERRAND.settings.steps
        if self.false:
            raise TuningError("false-result", "a test says so")

    async def end(self, job: str, by: PeerId) -> None:
        """Let a node have done the last step."""
        learned, points = start()
        learned.step = ERRAND.settings.steps
        saved = await self.vault.save("theirs", self.remote.terms(ERRAND, job), learned, points)
        claim = new_claim(by, job, 1, step=learned.step, saved=saved.work.packed())
        self.made.state.hear(by, "claims", job, claim_fact(claim))
        text = output_line(1, {"saved": saved.work.packed().hex()}).decode()
        outcome = JobOutcome(text=text, size=len(text))
        result = StoredResult(job, KIND, "tiny", "", by, 1, outcome, 1e9)
        await self.made.desk.results.put(result)


@asynccontextmanager
async def home(world: World, folder: Path) -> AsyncIterator[Home]:
    async with author(world) as made:
        yield Home(made, folder)


def start() -> tuple[Learned, list[Point]]:
    zeros = {name: np.zeros(shape, np.float32) for name, shape in
             tensor_shapes(settings(), SHAPES).items()}  # fmt: skip
    return Learned(3, zeros, dict(zeros), dict(zeros), 1.0, [1.0]), []


async def test_the_job_has_the_priority_and_deadline_of_the_fine_tuning(
    world: World, tmp_path: Path
) -> None:
    async with home(world, tmp_path) as node:
        urgent = dataclasses.replace(ERRAND, priority=9, deadline=4_000_000_000)
        for errand, expected in ((ERRAND, (5, 0)), (urgent, (9, 4_000_000_000))):
            standing = node.jobs.get(await node.remote.submit(errand, None))
            assert standing is not None and standing.job is not None
            job = standing.job
            assert (job.priority, job.deadline) == expected


async def test_the_user_hears_that_only_this_node_has_the_rows(
    world: World, tmp_path: Path
) -> None:
    async with home(world, tmp_path) as node:
        progress = Progress()
        job = await node.remote.submit(ERRAND, None)
        assert node.made.desk.knows(job)
        await node.remote.replicate(job, progress)
        assert "only this node has the rows" in progress.trouble
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.remote.follow, job, ERRAND, progress, lambda points: None)
            await trio.sleep(30)
            assert "only this node has the rows" in progress.trouble, "while no node trains it"
            node.made.spread()
            standing = node.jobs.get(job)
            assert standing is not None and standing.job is not None
            root, size = node.made.own.blob(standing.job)
            node.made.helper.shelf.blobs[root] = b"x" * size
            await node.remote.replicate(job, progress)
            await trio.sleep(60)
            assert progress.trouble == "no node trains it yet; one will continue it"
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("when", ["save", "hold", "forget"])
async def test_a_submission_that_is_cancelled_leaves_no_job(
    world: World, tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id would be known nowhere else."""
    async with home(world, tmp_path) as node:
        scope = trio.CancelScope()
        monkeypatch.setattr(node.vault, when, cancelling(scope, getattr(node.vault, when)))
        with scope:
            await node.remote.submit(ERRAND, start())
        assert scope.cancelled_caught
        await trio.sleep(10)
        assert not node.jobs.of(PeerId(AUTHOR))


def cancelling(scope: trio.CancelScope, real: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **more: Any) -> Any:
        scope.cancel()
        return await real(*args, **more)

    return call


@pytest.mark.parametrize("by", [OTHER, AUTHOR])
async def test_a_result_of_another_node_is_checked(
    world: World, tmp_path: Path, by: PeerId
) -> None:
    async with home(world, tmp_path) as node:
        for number in range(2):
            job = await node.remote.submit(ERRAND, None)
            await node.end(job, by)
            node.false = number == 1
            follow = node.remote.follow
            if node.false and by == OTHER:
                with pytest.raises(TuningError) as raised:
                    await follow(job, ERRAND, Progress(), lambda points: None)
                assert raised.value.code == "false-result"
                assert await node.remote.take_back(job, ERRAND) is None, "no state of a liar"
            else:
                learned, _ = await follow(job, ERRAND, Progress(), lambda points: None)
                assert learned.step == ERRAND.settings.steps
                assert await node.remote.take_back(job, ERRAND) is not None
            await trio.sleep(1)
            assert not node.jobs.of(PeerId(AUTHOR))
