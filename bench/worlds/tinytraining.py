"""Small models that volunteers train for real, with torch, for benchmarks of averaging.

`Full` trains all weights of a small Llama from the beginning, on the docstrings of the standard
library. `Lora` trains B of an adapter (rank 8, all projections) of the embedded model on a domain
that this has never seen: the code of the standard library. Everything follows from the seeds.
"""

import ast
import json
import sysconfig
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from shoal.tasks.engine.adapters import Module
from shoal.tasks.tuning.averaging.codecs import Vector
from shoal.tasks.tuning.averaging.layout import frozen_a
from shoal.tasks.tuning.averaging.outer import OuterState
from shoal.tasks.tuning.interface import TensorName

TINY: Final = Path(__file__).parents[2] / "shoal" / "models" / "tiny"
LENGTH: Final = 64  # tokens of a row
RANK: Final = 8
ALPHA: Final = 16.0
_RUN: Final = "00" * 32
_PROJECTIONS: Final[tuple[Module, ...]] = (
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
)  # fmt: skip
# rows x length
Tokens = np.ndarray[Any, np.dtype[np.int64]]


def sources() -> Iterator[str]:
    """Yield the source files of the standard library."""
    folder = Path(sysconfig.get_path("stdlib"))
    for path in sorted(folder.glob("*.py")) + sorted(folder.glob("[a-z]*/*.py")):
        if "site-packages" not in path.parts and "test" not in path.parts:
            yield path.read_text(errors="replace")


def docstrings() -> str:
    """Return the docstrings of the standard library as one text."""
    found = list[str]()
    for source in sources():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                found.append(ast.get_docstring(node) or "")
    return "\n\n".join(text for text in dict.fromkeys(found) if len(text) > 80)


def code(characters: int) -> str:
    """Return code of the standard library."""
    found, size = list[str](), 0
    for source in sources():
        found.append(source)
        size += len(source)
        if size > characters:
            break
    return "\n".join(found)


def embedded_tokens(text: str) -> Tokens:
    """Return the tokens of the embedded model."""
    return np.asarray(Tokenizer.from_file(str(TINY / "tokenizer.json")).encode(text).ids)


def byte_tokens(text: str) -> Tokens:
    """Return the bytes of a text, each as a token."""
    return np.frombuffer(text.encode(), np.uint8).astype(np.int64)


def rows_of(tokens: Tokens) -> Tokens:
    """Return a text as rows of LENGTH + 1 tokens, in a random order."""
    rows: Tokens = tokens[: len(tokens) // (LENGTH + 1) * (LENGTH + 1)].reshape(-1, LENGTH + 1)
    mixed: Tokens = np.random.default_rng(0).permutation(rows)
    return mixed


class Task(ABC):
    """A model, its text, and the parameters that are trained, as one flat vector."""

    rate: float
    batch = 4  # rows of one inner step of one worker

    def __init__(self, model: Any, tokens: Tokens) -> None:
        rows = rows_of(tokens)
        self.model = model
        self.held_out = rows[:64]
        self.rows = rows[64:]

    @property
    @abstractmethod
    def parameters(self) -> list[torch.nn.Parameter]:
        """What is trained."""

    @property
    def synchronous_values(self) -> int:
        """The number of values whose gradients synchronous training exchanges in each step."""
        values: int = sum(each.numel() for each in self.parameters)
        return values

    def start(self) -> Vector:
        """Return the values before training."""
        return self.values()

    def values(self) -> Vector:
        """Return the values in the model."""
        with torch.no_grad():
            found: Vector = torch.nn.utils.parameters_to_vector(self.parameters).numpy().copy()
            return found

    def load(self, values: Vector) -> None:
        """Put values into the model."""
        with torch.no_grad():
            torch.nn.utils.vector_to_parameters(torch.from_numpy(values.copy()), self.parameters)

    def loss_of(self, rows: Tokens) -> torch.Tensor:
        """Return the mean loss of some rows."""
        tokens = torch.from_numpy(rows)
        logits = self.model(tokens[:, :-1]).logits
        found: torch.Tensor = torch.nn.functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1)
        )
        return found

    def loss(self, values: Vector, rows: Tokens | None = None) -> float:
        """Return the loss with these values on rows, by default on all held-out rows."""
        self.load(values)
        with torch.no_grad():
            return float(self.loss_of(self.held_out if rows is None else rows))

    def batches(self, seed: int, worker: int, workers: int) -> Iterator[Tokens]:
        """Yield the batches of one worker, from its own part of the text."""
        random, own = np.random.default_rng([seed, worker]), self.rows[worker::workers]
        while True:
            yield own[random.integers(len(own), size=self.batch)]

    def optimizer(self) -> torch.optim.AdamW:
        return torch.optim.AdamW(self.parameters, lr=self.rate, betas=(0.9, 0.95), weight_decay=0.1)


class Full(Task):
    """All weights of a Llama of a hundred thousand parameters, whose tokens are bytes."""

    rate = 3e-3

    def __init__(self) -> None:
        torch.manual_seed(0)
        config = LlamaConfig(
            **json.loads((TINY / "config.json").read_text())
            | {
                "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
                "torch_dtype": "float32", "vocab_size": 256,
            }
        )  # fmt: skip
        super().__init__(LlamaForCausalLM(config).float(), byte_tokens(docstrings()))

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        return list(self.model.parameters())


class _Adapted(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, inner: Any, a: Vector) -> None:
        super().__init__()
        self.inner = inner
        self.a = torch.from_numpy(a)
        self.b = torch.nn.Parameter(torch.zeros(inner.out_features, RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x) + (ALPHA / RANK) * (x @ self.a.T @ self.b.T)
        return out


class Lora(Task):
    """B of an adapter of the embedded model."""

    rate = 3e-3

    def __init__(self) -> None:
        model = AutoModelForCausalLM.from_pretrained(TINY).float()
        for each in model.parameters():
            each.requires_grad_(False)
        self._adapted = list[_Adapted]()
        for number, layer in enumerate(model.model.layers):
            for name in _PROJECTIONS:
                parent = layer.self_attn if hasattr(layer.self_attn, name) else layer.mlp
                inner = getattr(parent, name)
                a = frozen_a(_RUN, TensorName(number, name, "A"), RANK, inner.in_features)
                adapted = _Adapted(inner, a)
                setattr(parent, name, adapted)
                self._adapted.append(adapted)
        super().__init__(model, embedded_tokens(code(1_000_000)))

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        return [each.b for each in self._adapted]

    @property
    def synchronous_values(self) -> int:
        values: int = sum(each.a.numel() + each.b.numel() for each in self._adapted)
        return values


class Worker:
    """The inner training of one volunteer. Its optimiser's state stays over the rounds."""

    def __init__(self, task: Task, worker: int, workers: int, steps: int, seed: int = 1) -> None:
        self.task = task
        self.steps = steps
        self._batches = task.batches(seed, worker, workers)
        self._optimizer = task.optimizer()
        random = np.random.default_rng([seed, worker, 7])
        self._judged = task.held_out[random.permutation(len(task.held_out))[:24]]

    def train(self, state: OuterState) -> tuple[Vector, int]:
        """Return the values after the inner steps, and the tokens that they took."""
        self.task.load(state.values)
        for _ in range(self.steps):
            self._optimizer.zero_grad()
            self.task.loss_of(next(self._batches)).backward()
            self._optimizer.step()
        return self.task.values(), self.steps * self.task.batch * LENGTH

    def loss(self, values: Vector) -> float:
        """Return the loss on rows that this worker chose."""
        return self.task.loss(values, self._judged)


def synchronous(task: Task, workers: int, steps: int, seed: int = 1) -> float:
    """Train with the mean gradient of all workers in each step. Return the final loss."""
    task.load(task.start())
    batches = [task.batches(seed, worker, workers) for worker in range(workers)]
    optimizer = task.optimizer()
    for _ in range(steps):
        optimizer.zero_grad()
        rows = np.concatenate([next(each) for each in batches])
        task.loss_of(rows).backward()
        optimizer.step()
    return task.loss(task.values())


def synchronous_bytes(values: int, workers: int, steps: int) -> int:
    """Return what all workers send in a ring all-reduce of float32 gradients in each step."""
    return steps * 2 * (workers - 1) * 4 * values
