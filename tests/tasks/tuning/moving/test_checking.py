"""The check of a result: a trainer that says a lower held-out loss than is true is found."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from shoal.tasks.engine.families import Architecture
from shoal.tasks.errors import NoRoute, SessionError
from shoal.tasks.tuning.moving import defaults
from shoal.tasks.tuning.moving.checking import HeldOutCheck
from shoal.tasks.tuning.trainer.errors import TuningError
from shoal.tasks.tuning.trainer.optimiser import Learned
from shoal.tasks.tuning.trainer.plan import Errand
from shoal.tasks.tuning.trainer.training import Progress
from tests.tasks.tuning.moving.nodes import SHAPES, World
from tests.tasks.tuning.numpy_chain import ARCH, NumpyChain

pytestmark = pytest.mark.trio
Clock = trio.testing.MockClock


class TurnedChain(NumpyChain):
    """A chain whose losses are what a function makes of them."""

    def __init__(self, turn: Callable[[float], float] | None) -> None:
        super().__init__()
        self._turn = turn

    async def loss(self, *args: Any) -> tuple[float, int]:
        if self._turn is None:
            raise NoRoute("no node has layer 1")
        loss, count = await super().loss(*args)
        return self._turn(loss), count


class Author:
    """The node of the user, with the result of another node."""

    def __init__(self, world: World, learned: Learned) -> None:
        self.learned = learned
        terms = world.terms
        self.errand = Errand(world.settings, SHAPES, terms.run, world.folder / "rows", world.data,
                             "tiny", False)  # fmt: skip
        self.turns: list[Callable[[float], float] | None] = []
        """Functions that change the losses of the next chains. Later ones return the true loss."""
        self.chains: list[NumpyChain] = []
        self.progress = Progress()
        self._check = HeldOutCheck(world.me.host, self, self._arch_of)

    async def _arch_of(self, root: str) -> Architecture:
        await trio.lowlevel.checkpoint()
        return ARCH

    def chain(self, root: str, arch: Architecture) -> NumpyChain:
        turn = self.turns.pop(0) if self.turns else lambda loss: loss
        self.chains.append(TurnedChain(turn))
        return self.chains[-1]

    async def check(self, **lie: Any) -> str:
        """Check the result with these fields changed. Return the code of the refusal, or ""."""
        try:
            await self._check.check(self.errand, replace(self.learned, **lie), self.progress)
        except TuningError as error:
            assert "resume" in (error.hint or "")
            return error.code
        return ""


@pytest.fixture
async def author(tmp_path: Path, autojump_clock: Clock) -> Author:
    world = await World(tmp_path / "world", rate=0.05).prepare()
    loaded = await world.last(await world.other.train())
    return Author(world, loaded.learned)


async def test_what_was_trained_is_accepted_and_lies_are_not(
    author: Author, autojump_clock: Clock
) -> None:
    learned = author.learned
    said = learned.best_loss
    assert await author.check() == ""
    assert await author.check(best_loss=0.97 * said) == "false-result"
    zeros = {name: np.zeros_like(each) for name, each in learned.best.items()}
    assert await author.check(best=zeros) == "false-result", "an adapter that learned nothing"
    assert await author.check(best={}) == "false-result"
    assert await author.check(best_loss=0.995 * said) == "", "stages may have rounded weights"
    assert all(chain.closed for chain in author.chains)
    assert len(author.chains) == 1 + 2 + 2 + 0 + 1


async def test_one_chain_that_is_wrong_refuses_nothing(
    author: Author, autojump_clock: Clock
) -> None:
    author.turns = [lambda loss: 2 * loss]
    assert await author.check() == "" and len(author.chains) == 2


IMPOSSIBLE = [float("nan"), float("inf"), -1.0]


@pytest.mark.parametrize("impossible", IMPOSSIBLE)
async def test_one_impossible_loss_is_computed_again(
    author: Author, impossible: float, autojump_clock: Clock
) -> None:
    author.turns = [lambda loss: impossible]
    assert await author.check() == "" and len(author.chains) == 2


@pytest.mark.parametrize("impossible", IMPOSSIBLE)
async def test_tensors_without_a_loss_on_two_chains_are_refused(
    author: Author, impossible: float, autojump_clock: Clock
) -> None:
    author.turns = [lambda loss: impossible] * 10_000
    assert await author.check() == "false-result" and len(author.chains) == 2


@pytest.mark.parametrize("code", ["bad-adapter", "bad-result", "not-finite"])
async def test_tensors_that_two_chains_refuse_are_refused(
    author: Author, code: str, autojump_clock: Clock
) -> None:
    """Tensors of 1e38 are finite, and no chain can compute with them."""

    def refuse(loss: float) -> float:
        raise SessionError(code, "values that are not finite")

    author.turns = [refuse]
    assert await author.check() == "" and len(author.chains) == 2, "a stage of one may lie"
    author.turns = [None, *[refuse] * 10_000]
    assert await author.check() == "false-result" and len(author.chains) == 2 + 3


async def test_without_a_chain_it_waits_and_then_believes(
    author: Author, autojump_clock: Clock
) -> None:
    author.turns = [None, None]
    assert await author.check() == "" and author.progress.trouble == "no node has layer 1"
    author.turns = [None] * 10_000
    began = trio.current_time()
    assert await author.check(best_loss=0.1) == ""
    assert trio.current_time() - began <= defaults.CHECK_PATIENCE + 2


async def test_without_held_out_rows_nothing_is_checked(tmp_path: Path) -> None:
    world = await World(tmp_path / "none", held_out=0).prepare()
    learned = Learned(12, {}, {}, {}, 1.0, [])
    author = Author(world, learned)
    assert await author.check() == "" and not author.chains
