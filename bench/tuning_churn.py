"""Volunteers that leave, join and poison: the loss against that of an undisturbed run.

A small model is trained for real (`bench/worlds/tinytraining.py`) by volunteers in virtual time,
whose network has delays; rounds, checks and aggregation are those of the daemon, and the codec is
that of all weights. All runs have the same number of rounds, of 8 workers:

- `calm`: all stay.
- `churn`: 3 of 8 leave without a word, one after the other, and 3 new ones join in their place.
- `poison`: 2 of 8 send their update reversed and twice as large, in each round.
- `undefended`: the same, and all workers accept every update. Clipping and trimming stay.

`value` is the loss of each run over that of `calm`, minus 1, in per cent; goals: 2 for churn, 3 for
poison, and no poisoned update accepted. `undefended` shows that the poison matters.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from worlds.tinytraining import Full, Worker
from worlds.volunteers import Volunteer, Volunteers

from shoal.tasks.tuning.averaging.codecs import Vector, decode, encode
from shoal.tasks.tuning.averaging.outer import first_state
from shoal.tasks.tuning.averaging.terms import RunTerms
from shoal.tasks.tuning.whole.subject import CODEC

MEASURES = (
    "tasks/tuning", "tasks/engine", "transport", "state/views", "bench/worlds/tinytraining.py",
    "bench/worlds/volunteers.py",
)  # fmt: skip

WORKERS: Final = 8
POISONED: Final = 2
REPLACED: Final = 3
GOALS: Final = {"churn": 2.0, "poison": 3.0}


class Gullible(Worker):
    """A worker that accepts every update."""

    def loss(self, values: Vector) -> float:
        return 1.0


class Run:
    """One run. All runs of a script begin with the same values."""

    def __init__(self, task: Full, start: Vector, inner: int, *, gullible: bool = False) -> None:
        self.task = task
        self.inner = inner
        self._worker = Gullible if gullible else Worker
        terms = RunTerms(
            name="bench", subject=b"", values=start.size, codec=CODEC, inner_steps=inner,
            patience=30.0, settle=5.0,
        )  # fmt: skip
        self.swarm = Volunteers(terms, first_state(start, terms.rule), 1)

    def join(self, number: int, spoil: Callable[[bytes], bytes] | None = None) -> Volunteer:
        part = number % WORKERS
        worker = self._worker(self.task, part, WORKERS, self.inner, seed=number)
        return self.swarm.join(number + 1, worker, spoil=spoil)

    def until(self, rounds: int) -> None:
        self.swarm.run(lambda: self.round() >= rounds, most=1e6)

    def round(self) -> int:
        return max(member.rounds.state.round for member in self.swarm.live())

    def loss(self) -> float:
        best = max(self.swarm.live(), key=lambda member: member.rounds.state.round)
        return self.task.loss(best.rounds.state.values)


def reversed_twice(values: int) -> Callable[[bytes], bytes]:
    def spoil(data: bytes) -> bytes:
        return encode(CODEC, decode(CODEC, values, data) * np.float32(-2))

    return spoil


def calm(run: Run, rounds: int) -> None:
    for number in range(WORKERS):
        run.join(number)
    run.until(rounds)


def churn(run: Run, rounds: int) -> None:
    members = [run.join(number) for number in range(WORKERS)]
    for gone in range(REPLACED):
        run.until((gone + 1) * rounds // (REPLACED + 1))
        run.swarm.leave(members[gone])
        run.join(WORKERS + gone)
    run.until(rounds)


def poison(run: Run, rounds: int) -> None:
    for number in range(WORKERS):
        spoil = reversed_twice(run.swarm.terms.values) if number < POISONED else None
        run.join(number, spoil)
    run.until(rounds)


def accepted_poison(run: Run) -> int:
    """Return how many updates of attackers are in the steps that the honest peers have taken."""
    bad = {member.peer for member in run.swarm.members.values() if member.spoil}
    honest = next(member for member in run.swarm.live() if not member.spoil)
    steps = filter(None, map(honest.rounds.ledger.get, honest.adopted))
    return sum(entry.peer in bad for step in steps for entry in step.accepted)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rounds, inner = (5, 4) if args.quick else (20, 20)
    task = Full()
    start = task.start()
    losses, figures = dict[str, float](), dict[str, object]()
    programs = {"calm": calm, "churn": churn, "poison": poison, "undefended": poison}
    for name, program in programs.items():
        run = Run(task, start, inner, gullible=name == "undefended")
        program(run, rounds)
        losses[name] = run.loss()
        figures[name] = {"loss": round(losses[name], 4), "rounds": run.round()}
        print(f"{name}: {losses[name]:.4f}, CPU {time.process_time():.0f} s", file=sys.stderr)
        if name == "poison":
            figures["accepted"] = accepted_poison(run)
    value = {name: round(100 * (losses[name] / losses["calm"] - 1), 2) for name in losses}
    ok = all(value[name] <= goal for name, goal in GOALS.items()) and not figures["accepted"]
    print(json.dumps({"name": "tuning_churn", "value": value, "goal": GOALS, "ok": ok, **figures}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
