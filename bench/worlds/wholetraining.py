"""Full training by shoal's own network and optimiser, for benchmarks of averaging.

The model and its text are those of `tinytraining.Full`. Synchronous training and volunteers use the
same code, batches and first values.
"""

from typing import Any, Final

import numpy as np
import torch
from worlds.tinytraining import LENGTH, Full, Tokens

from shoal.tasks.engine.families import architecture
from shoal.tasks.tuning.averaging.codecs import Vector
from shoal.tasks.tuning.averaging.outer import OuterState
from shoal.tasks.tuning.interface import Gradients, LearnedName, LearnedTensors, WeightName
from shoal.tasks.tuning.trainer import optimiser
from shoal.tasks.tuning.trainer.optimiser import Array
from shoal.tasks.tuning.trainer.settings import TuningSettings, Wishes, settle
from shoal.tasks.tuning.whole.network import WholeNetwork
from shoal.tasks.tuning.whole.subject import WholeTensors

ROOT: Final = "00" * 32


class WholeTask:
    """A small model, its text, and the terms of a run of its volunteers."""

    def __init__(self, inner: int, steps: int, hurry: float = 1.0) -> None:
        """`steps` are those of the whole training, which the learning rate depends on. `hurry`
        multiplies that rate."""
        self.text = Full()
        config: dict[str, Any] = self.text.model.config.to_dict()
        arch = architecture({**config, "architectures": ["LlamaForCausalLM"]})
        wishes = Wishes(full=True, rate=hurry * self.text.rate, steps=steps, batch=self.text.batch)
        self.settings: TuningSettings = settle(wishes, ROOT, arch, LENGTH, len(self.text.rows), 1)
        self.averaged = WholeTensors("bench", ROOT, arch, inner)
        self._network = WholeNetwork(arch)

    def start(self) -> Vector:
        """Return the values before training."""
        state = self.text.model.state_dict()
        found: dict[LearnedName, Array] = {
            WeightName(role): state[role].numpy() for role in self._network.weights
        }
        return self.averaged.flat(found)

    def loss(self, values: Vector, rows: Tokens | None = None) -> float:
        """Return the loss with these values on rows, by default on all held-out rows."""
        self._load(self.averaged.tensors(values))
        total, counted = self._compute(self.text.held_out if rows is None else rows, back=False)
        return total / counted

    def learned(self, values: Vector) -> optimiser.Learned:
        """Return the state of a trainer that begins with these values."""
        tensors = {name: each.copy() for name, each in self.averaged.tensors(values).items()}
        return optimiser.begin_from(self.settings, tensors)

    def step(self, learned: optimiser.Learned, rows: Tokens) -> None:
        """Do one step of the trainer."""
        self._load(learned.tensors)
        loss, counted = self._compute(rows, back=True)
        tensors: dict[LearnedName, Array] = {
            WeightName(role): self._network.gradient(role).numpy() for role in self._network.weights
        }
        found = Gradients(loss, counted, tensors)
        optimiser.apply(learned, found, optimiser.check(found, learned, counted), self.settings)

    def _load(self, tensors: LearnedTensors) -> None:
        for name, each in tensors.items():
            assert isinstance(name, WeightName)
            self._network.set(name.role, torch.from_numpy(each))

    def _compute(self, rows: Tokens, *, back: bool) -> tuple[float, int]:
        tokens = torch.from_numpy(rows)
        return self._network.compute(tokens[:, :-1], tokens[:, 1:], back=back)


class WholeWorker:
    """The inner training of one volunteer. Its moments stay over the rounds."""

    def __init__(self, task: WholeTask, worker: int, workers: int, start: Vector) -> None:
        self._task = task
        self._batches = task.text.batches(1, worker, workers)
        self._learned = task.learned(start)
        held = task.text.held_out
        random = np.random.default_rng([1, worker, 7])
        self._judged = held[random.permutation(len(held))[:24]]

    def train(self, state: OuterState) -> tuple[Vector, int]:
        """Return the values after the inner steps, and the tokens that they took."""
        averaged, learned = self._task.averaged, self._learned
        for name, each in averaged.tensors(state.values).items():
            learned.tensors[name] = each.copy()
        steps = averaged.run.inner_steps
        for _ in range(steps):
            self._task.step(learned, next(self._batches))
        return averaged.flat(learned.tensors), steps * self._task.text.batch * LENGTH

    def loss(self, values: Vector) -> float:
        """Return the loss on rows that this worker chose."""
        return self._task.loss(values, self._judged)


def synchronous(task: WholeTask, workers: int) -> float:
    """Train with the mean gradient of all workers in each step. Return the final loss."""
    batches = [task.text.batches(1, worker, workers) for worker in range(workers)]
    learned = task.learned(task.start())
    for _ in range(task.settings.steps):
        task.step(learned, np.concatenate([next(each) for each in batches]))
    return task.loss(task.averaged.flat(learned.tensors))
