"""Train the tiny model.

Run ``python examples/tiny/train.py --work build/tiny`` after ``corpus.py`` and
``tokenizer.py``. It prints and logs its progress, saves a checkpoint now and then
(``--resume`` goes on from it), and leaves ``checkpoint.pt`` and ``plan.json``.

Hidden matrices are trained with Muon, all else with AdamW. Most steps see short rows, which
are cheap; the last ones see rows of the full context, so that every position is trained.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

# Tokenising in one thread: the order of the work, and the load, stay the same everywhere.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from data import TrainingRows, cut_rows, validation_sets
from model import Shape, TinyLlama, parameter_count
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

Log = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """All that decides the result, next to the corpus. Token counts are per step."""

    seed: int = 1
    steps: int = 2000
    #: Steps at the end that see rows of the full context.
    long_steps: int = 200
    batch_tokens: int = 4096
    short_row: int = 256
    long_row: int = 1024
    learning_rate: float = 5e-3
    weight_decay: float = 0.1
    dropout: float = 0.0
    warmup_steps: int = 40
    #: After a share of ``horizon`` steps the learning rate falls, in a line that would reach
    #: zero at the horizon. The long rows come before that, and fade out what is left.
    horizon: int = 2300
    decay_from: float = 0.4

    def rate(self, step: int) -> float:
        """Return the learning rate of ``step`` as a share of the highest one."""
        warm = min(1.0, (step + 1) / self.warmup_steps)
        line = max(0.0, (1 - step / self.horizon) / (1 - self.decay_from))
        fade = min(1.0, (self.steps - step) / self.long_steps) if self.long_steps else 1.0
        return warm * min(1.0, line) * fade

    def row(self, step: int) -> int:
        """Return the row length of ``step`` in tokens."""
        return self.long_row if step >= self.steps - self.long_steps else self.short_row


class Optimizers:
    """Muon for the matrices inside the layers, AdamW for the embedding and the norms."""

    def __init__(self, model: TinyLlama, plan: Plan) -> None:
        """Create both with the learning rate and weight decay of ``plan``."""
        self._plan = plan
        matrices: list[Tensor] = []
        others: list[Tensor] = []
        for name, parameter in model.named_parameters():
            inside = parameter.ndim == 2 and "embed" not in name
            (matrices if inside else others).append(parameter)
        # With this adjustment one learning rate suits both optimizers.
        muon = torch.optim.Muon(
            matrices,
            lr=plan.learning_rate,
            weight_decay=plan.weight_decay,
            momentum=0.95,
            adjust_lr_fn="match_rms_adamw",
        )
        adam = torch.optim.AdamW(others, lr=plan.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
        self._each: tuple[torch.optim.Optimizer, ...] = (muon, adam)

    def step(self, number: int) -> None:
        """Apply the gradients of step ``number`` and clear them."""
        for optimizer in self._each:
            for group in optimizer.param_groups:
                group["lr"] = self._plan.learning_rate * self._plan.rate(number)
            optimizer.step()
            optimizer.zero_grad()

    def state(self) -> list[dict[str, Any]]:
        """Return what a checkpoint needs."""
        return [optimizer.state_dict() for optimizer in self._each]

    def load(self, state: list[dict[str, Any]]) -> None:
        """Take over what :meth:`state` returned."""
        for optimizer, part in zip(self._each, state, strict=True):
            optimizer.load_state_dict(part)


def token_loss(model: TinyLlama, rows: Tensor, reduction: str = "mean") -> Tensor:
    """Return the cross-entropy of ``rows`` in nats, computed mostly in bfloat16."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(rows[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten(), reduction=reduction)


@torch.no_grad()
def mean_loss(model: TinyLlama, rows: Tensor, batch_tokens: int) -> float:
    """Return the mean loss over ``rows`` in nats per token, without dropout."""
    model.eval()
    each = max(1, batch_tokens // rows.shape[1])
    total = sum(float(token_loss(model, part, "sum")) for part in torch.split(rows, each))
    model.train()
    return total / (rows.shape[0] * (rows.shape[1] - 1))


def batches(rows: TrainingRows, plan: Plan) -> Iterator[Tensor]:
    """Yield the batch of every step: first the short rows, then the long ones."""
    short_steps = plan.steps - plan.long_steps
    yield from islice(rows.batches(0, plan.short_row, plan.batch_tokens), short_steps)
    # Far from the first epochs' numbers, so that the dialogues are new ones.
    yield from islice(rows.batches(1000, plan.long_row, plan.batch_tokens), plan.long_steps)


def save_checkpoint(path: Path, step: int, model: TinyLlama, optimizers: Optimizers) -> None:
    """Write the state after ``step`` steps, never leaving half a file at ``path``."""
    state = {
        "step": step,
        "model": model.state_dict(),
        "optimizers": optimizers.state(),
        "random": torch.get_rng_state(),
    }
    part = path.with_suffix(".part")
    torch.save(state, part)
    part.replace(path)


def load_checkpoint(path: Path, model: TinyLlama, optimizers: Optimizers) -> int:
    """Restore the state in ``path`` and return the number of steps it has behind it."""
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizers.load(state["optimizers"])
    torch.set_rng_state(state["random"])
    return int(state["step"])


def probe_rows(work: Path, tokenizer: Tokenizer, plan: Plan) -> Tensor:
    """Return 96 short rows spread over the validation text, for the figures in the log."""
    pieces, _ = validation_sets(work, tokenizer)["all"]
    rows = cut_rows(pieces, plan.short_row)
    return rows[:: max(1, len(rows) // 96)]


def train(model: TinyLlama, plan: Plan, work: Path, resume: bool, log: Log) -> None:
    """Run the steps of ``plan`` and leave ``checkpoint.pt`` in ``work``."""
    tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
    probe = probe_rows(work, tokenizer, plan)
    optimizers = Optimizers(model, plan)
    path = work / "checkpoint.pt"
    done = load_checkpoint(path, model, optimizers) if resume else 0
    began = time.process_time()
    stream = batches(TrainingRows(work, tokenizer, plan.seed), plan)
    recent: list[float] = []
    for step, batch in enumerate(islice(stream, done, None), done):
        loss = token_loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizers.step(step)
        recent.append(loss.item())
        finished = step + 1
        if finished % 100 == 0 or finished == plan.steps:
            value = mean_loss(model, probe, plan.batch_tokens)
            mean = sum(recent) / len(recent)
            recent.clear()
            log(
                f"step {finished} loss {mean:.4f} validation {value:.4f} "
                f"rate {plan.rate(step):.3f} cpu {time.process_time() - began:.0f} s"
            )
            save_checkpoint(path, finished, model, optimizers)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train the tiny model.")
    parser.add_argument("--work", type=Path, default=Path("build/tiny"), help="working folder")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    parser.add_argument("--steps", type=int, default=Plan.steps, help="training steps")
    parser.add_argument("--long-steps", type=int, default=Plan.long_steps)
    parser.add_argument("--batch-tokens", type=int, default=Plan.batch_tokens)
    parser.add_argument("--learning-rate", type=float, default=Plan.learning_rate)
    parser.add_argument("--weight-decay", type=float, default=Plan.weight_decay)
    parser.add_argument("--dropout", type=float, default=Plan.dropout)
    parser.add_argument("--resume", action="store_true", help="go on from checkpoint.pt")
    return parser.parse_args()


def main() -> None:
    """Train with the plan, or with the changes to it that the command line asks for."""
    arguments = parse_arguments()
    plan = Plan(
        steps=arguments.steps,
        long_steps=arguments.long_steps,
        batch_tokens=arguments.batch_tokens,
        learning_rate=arguments.learning_rate,
        weight_decay=arguments.weight_decay,
        dropout=arguments.dropout,
    )
    torch.set_num_threads(arguments.threads)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(plan.seed)
    model = TinyLlama(Shape(), plan.dropout)
    model.initialise()
    log_path = arguments.work / "train.log"

    def log(line: str) -> None:
        print(line, flush=True)
        with log_path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    log(f"{parameter_count(model)} parameters, {plan}")
    (arguments.work / "plan.json").write_text(json.dumps(asdict(plan), indent=2) + "\n")
    train(model, plan, arguments.work, arguments.resume, log)


if __name__ == "__main__":
    main()
