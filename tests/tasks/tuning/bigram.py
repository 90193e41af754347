"""A model whose only weight is a table of logits by token, as a `Subject` for tests of the trainer,
and a `WholeTraining` that trains it."""

import json
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import trio

from shoal.tasks.engine.families import Architecture
from shoal.tasks.tuning.averaging.codecs import Codec
from shoal.tasks.tuning.averaging.layout import Averaged, FlatLayout
from shoal.tasks.tuning.averaging.terms import RunTerms
from shoal.tasks.tuning.interface import (
    NOT_COUNTED,
    Batch,
    Gradients,
    LearnedName,
    LearnedTensors,
    WeightName,
)
from shoal.tasks.tuning.trainer.errors import TuningError
from shoal.tasks.tuning.trainer.optimiser import Array
from shoal.tasks.tuning.trainer.subject import Subject
from shoal.tasks.tuning.whole.subject import WholeTensors
from tests.tasks.tuning.numpy_chain import VOCABULARY

TABLE = WeightName("table")
SHAPES: dict[LearnedName, tuple[int, ...]] = {TABLE: (VOCABULARY, VOCABULARY)}


class Bigram:
    """`disturb` is called before each derivative, with its number. It may raise."""

    shapes = SHAPES

    def __init__(self, disturb: Callable[[int], object] | None = None, step_s: float = 0.0) -> None:
        self._disturb = disturb
        self._step_s = step_s
        self.calls = 0
        self.spoil = 1.0  # factor of the derivatives

    async def first(self) -> dict[LearnedName, Array]:
        await trio.lowlevel.checkpoint()
        random = np.random.default_rng(3)
        return {TABLE: random.normal(0, 0.1, SHAPES[TABLE]).astype(np.float32)}

    async def gradients(
        self, batch: Batch, tensors: LearnedTensors, names: Collection[LearnedName]
    ) -> Gradients:
        await trio.sleep(self._step_s)
        self.calls += 1
        if self._disturb is not None:
            self._disturb(self.calls)
        loss, counted, error = self._computed(batch, tensors)
        slope = np.zeros(SHAPES[TABLE], np.float32)
        np.add.at(slope, batch.tokens.reshape(-1), error * np.float32(self.spoil))
        return Gradients(loss, counted, {TABLE: slope})

    async def loss(self, batch: Batch, tensors: LearnedTensors) -> tuple[float, int]:
        await trio.lowlevel.checkpoint()
        return self._computed(batch, tensors)[:2]

    def _computed(self, batch: Batch, tensors: LearnedTensors) -> tuple[float, int, Array]:
        targets = batch.targets.reshape(-1)
        logits = tensors[TABLE][batch.tokens.reshape(-1)]
        shares = np.exp(logits - logits.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        kept, wanted = targets != NOT_COUNTED, np.where(targets < 0, 0, targets)
        rows = np.arange(len(wanted))
        loss = -np.log(shares[rows, wanted]) * kept
        shares[rows, wanted] -= 1
        return float(loss.sum(dtype=np.float64)), int(kept.sum()), shares * kept[:, None]


class BigramTensors(WholeTensors):
    """The table in a run with others."""

    def __init__(self, name: str, inner_steps: int) -> None:
        self._layout = FlatLayout[LearnedName](SHAPES.items())
        self.frozen = {}
        self.run = RunTerms(
            name=name, subject=b"bigram", values=self._layout.values, codec=Codec("int4"),
            inner_steps=inner_steps,
        )  # fmt: skip


class Bigrams:
    """Trains bigrams. `published` has (name, table) of each result."""

    def __init__(self) -> None:
        self.disturb: Callable[[int], object] | None = None
        self.step_s = 0.0
        self.spoil = 1.0
        self.memory = 1000
        self.published = list[tuple[str, bytes]]()

    async def named(self) -> set[str]:
        await trio.lowlevel.checkpoint()
        return {"taken-model"}

    async def check(self, root: str, arch: Architecture, length: int, *, together: bool) -> None:
        await trio.lowlevel.checkpoint()
        if length > self.memory:
            raise TuningError("no-memory", "too large", hint="offer more")

    @asynccontextmanager
    async def subject(self, root: str, length: int, *, together: bool) -> AsyncIterator[Subject]:
        await trio.lowlevel.checkpoint()
        found = Bigram(self.disturb, self.step_s)
        found.spoil = self.spoil
        yield found

    def averaged(self, name: str, root: str, arch: Architecture, every: int) -> Averaged:
        return BigramTensors(name, every)

    async def write(self, folder: Path, root: str, tensors: LearnedTensors) -> None:
        await trio.lowlevel.checkpoint()
        self.last = tensors[TABLE].tobytes()

    async def publish(self, folder: Path, name: str) -> str:
        await trio.lowlevel.checkpoint()
        self.published.append((name, self.last))
        return "ef" * 32


def lines(count: int) -> list[dict[str, str]]:
    """Return rows of letters. Each follows from its predecessor."""
    return [json.loads(f'{{"text": "{"abcdefgh"[n % 5 :]}"}}') for n in range(count)]
