"""Bytes that 4 workers exchange until they reach the loss of synchronous training, against its own.

Two tasks (`bench/worlds/tinytraining.py`): LoRA of the embedded model on a domain that it has never
seen, and full training of a small model from the beginning, which is that of `shoal finetune
--full`: its network, optimiser, schedule and codec (`bench/worlds/wholetraining.py`). Synchronous
training exchanges the gradients of all trained values (of A and B for LoRA) in each step by a ring
all-reduce in float32, the cheapest exact way. The same workers then train by rounds with the real
checks, codecs and aggregation (the network is virtual, and counts the fetched updates), each with
its part of the text and the same batches. A round has `inner` steps. Training ends when the
held-out loss is within 1 % of the final loss of synchronous training, and after 20 rounds at the
earliest.

In full training, the rate of volunteers is twice that of synchronous training, because the mean
over workers takes noise out of each step there (twice the rate gives synchronous training no lower
loss), and falls over at most twice as many steps.

`value` has the factors of bytes; goals: 50 for LoRA, 400 for full training. `steps` has those that
each worker needed, and those of synchronous training.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from worlds import wholetraining
from worlds.tinytraining import Lora, Worker, synchronous, synchronous_bytes
from worlds.volunteers import Trainer, Volunteers
from worlds.wholetraining import WholeTask, WholeWorker

from shoal.tasks.tuning.averaging.codecs import Vector
from shoal.tasks.tuning.averaging.lora import CODEC
from shoal.tasks.tuning.averaging.outer import first_state
from shoal.tasks.tuning.averaging.terms import RunTerms
from shoal.tasks.tuning.trainer.defaults import EVERY_WHOLE

MEASURES = (
    "tasks/tuning", "tasks/engine", "transport", "state/views", "bench/worlds/tinytraining.py",
    "bench/worlds/volunteers.py", "bench/worlds/wholetraining.py",
)  # fmt: skip

WORKERS: Final = 4
WITHIN: Final = 1.01
MOST: Final = 2.0  # times the steps of synchronous training, after which the loss counts as missed
HURRY: Final = 2.0  # times the learning rate of synchronous training


@dataclass(frozen=True, slots=True)
class Plan:
    """One task: steps of synchronous training, inner steps of a round, and the least rounds."""

    make: Callable[[int, int], "Setting"]
    steps: int
    inner: int
    least: int
    goal: float


@dataclass(frozen=True, slots=True)
class Setting:
    """A training: the terms of its run, the first values, the held-out loss of the other runs, the
    loss that synchronous training ends with, the values that this exchanges, and the workers."""

    terms: RunTerms
    start: Vector
    loss: Callable[[Vector], float]
    synchronous: Callable[[], float]
    values: int
    worker: Callable[[int], Trainer]


def lora(inner: int, steps: int) -> Setting:
    """LoRA of the embedded model."""
    task = Lora()
    start = task.start()
    terms = RunTerms(name="bench", subject=b"", values=start.size, codec=CODEC, inner_steps=inner)
    return Setting(
        terms, start, task.loss, lambda: synchronous(task, WORKERS, steps),
        task.synchronous_values, lambda number: Worker(task, number, WORKERS, inner),
    )  # fmt: skip


def full(inner: int, steps: int) -> Setting:
    """All weights of a small model."""
    task, theirs = WholeTask(inner, int(MOST * steps), HURRY), WholeTask(inner, steps)
    start = task.start()
    return Setting(
        task.averaged.run, start, task.loss, lambda: wholetraining.synchronous(theirs, WORKERS),
        start.size, lambda number: WholeWorker(task, number, WORKERS, start),
    )  # fmt: skip


def plans(*, quick: bool) -> dict[str, Plan]:
    return {
        "lora": Plan(lora, 10 if quick else 160, 5 if quick else 20, 1, 50.0),
        "full": Plan(full, 60 if quick else 2200, EVERY_WHOLE, 3 if quick else 20, 400.0),
    }  # fmt: skip


def compare(plan: Plan) -> dict[str, object]:
    """Return the figures of one task."""
    began = time.process_time()
    task = plan.make(plan.inner, plan.steps)
    before = task.loss(task.start)
    goal = task.synchronous()
    synchronous_s = time.process_time() - began
    print(f"synchronous: {goal:.4f}, {synchronous_s:.0f} s", file=sys.stderr, flush=True)
    swarm = Volunteers(task.terms, first_state(task.start, task.terms.rule), 1)
    for number in range(WORKERS):
        swarm.join(number + 1, task.worker(number))
    loss, rounds = before, 0
    while rounds * plan.inner < MOST * plan.steps and (loss > WITHIN * goal or rounds < plan.least):
        rounds += 1
        swarm.run(lambda least=rounds: _least_round(swarm) >= least)  # type: ignore[misc]
        loss = task.loss(swarm.live()[0].rounds.state.values)
        cpu = time.process_time()
        print(
            f"round {rounds}: {loss:.4f} of {WITHIN * goal:.4f}, {cpu:.0f} s",
            file=sys.stderr, flush=True,
        )  # fmt: skip
    ours = sum(member.fetched for member in swarm.live())
    theirs = synchronous_bytes(task.values, WORKERS, plan.steps)
    return {
        "factor": round(theirs / ours, 1),
        "reached": loss <= WITHIN * goal,
        "loss": [round(each, 4) for each in (before, goal, loss)],
        "steps": [rounds * plan.inner, plan.steps],
        "inner_steps": plan.inner,
        "codec": task.terms.codec.name,
        "bytes": [ours, theirs],
        "refused": sorted({e.code for m in swarm.live() for e in m.rounds.refusals.values()}),
        "cpu_s": [round(time.process_time() - began - synchronous_s, 1), round(synchronous_s, 1)],
    }


def _least_round(swarm: Volunteers) -> int:
    return min(member.rounds.state.round for member in swarm.live())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick",
        action="store_true",
        help="fewer steps: it shows that all runs, and reaches neither goal",
    )
    parser.add_argument("--only", choices=("lora", "full"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    chosen = {n: p for n, p in plans(quick=args.quick).items() if args.only in (None, n)}
    found = {name: compare(plan) for name, plan in chosen.items()}
    value = {name: each["factor"] for name, each in found.items()}
    ok = all(
        each["reached"] and isinstance(each["factor"], float) and each["factor"] >= plan.goal
        for each, plan in zip(found.values(), chosen.values(), strict=True)
    )
    goal = {name: plan.goal for name, plan in chosen.items()}
    print(json.dumps({"name": "tuning_bytes", "value": value, "goal": goal, "ok": ok, **found}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
