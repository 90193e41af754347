"""Speed of fine-tuning through three daemons against one process with `peft` and torch.

Real, loopback, the embedded model in float32, two layers on each daemon. LoRA of rank 8 on all
projections, batches of 8 paragraphs of Python's language reference, which differ in length. The
trainer is a node of this process without an engine, and does what `shoal finetune` does in a step:
gradients through the chain, their check, and AdamW. Both sides do the same steps from the same
initial adapter, in turns, on the same cores: each daemon has one thread, and `peft` has as many as
there are cores.

`value` is the ratio of tokens per second of wall time, ours / theirs; goal 0.5. Recomputing bounds
it at 0.67. `cpu_value` is the same of CPU time, all our processes together. `worst` is the largest
relative difference of the loss of a step, so it shows that both do the same.

`peft` gets an environment of its own below the cache folder, unless --peft or SHOAL_BENCH_PEFT
names a Python that has it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import transformers
import trio
from tuning_lora import texts
from worlds import others, tuners

from shoal.node.daemon.daemon import Node
from shoal.tasks.engine.adapters import module_shapes
from shoal.tasks.tuning.interface import NOT_COUNTED, AdapterTensors, Batch, of_adapter
from shoal.tasks.tuning.trainer import defaults, optimiser
from shoal.tasks.tuning.trainer.folder import write_peft
from shoal.tasks.tuning.trainer.order import RowSchedule
from shoal.tasks.tuning.trainer.rows import counted
from shoal.tasks.tuning.trainer.settings import TuningSettings, Wishes, settle
from shoal.transport.host.real import RealHost

MEASURES = (
    "tasks", "node", "cli", "state", "dht", "transport", "bench/peers/peft_side.py",
    "bench/peers/peft_speed_side.py",
)  # fmt: skip

GOAL: Final = 0.5
RANK: Final = 8
LAYERS: Final = ("0:2", "2:4", "4:6")
RATE: Final = 1e-3
PARTS: Final = ("trainer", "daemons", "workers")
SIDE: Final = Path(__file__).parent / "peers" / "peft_speed_side.py"


def batches(count: int) -> list[Batch]:
    """Return the batches of `count` steps, as the trainer makes them."""
    encode = transformers.AutoTokenizer.from_pretrained(tuners.TINY).encode
    rows = [encode(text)[: defaults.LENGTH] for text in texts()[: 8 * count]]
    order = RowSchedule(np.array([len(row) for row in rows], np.uint32), defaults.BATCH, 1, 0)
    return [_batch([rows[row] for row in order.rows(step)]) for step in range(count)]


def _batch(rows: Sequence[Sequence[int]]) -> Batch:
    width = max(map(len, rows)) - 1
    tokens = np.zeros((len(rows), width), np.int32)
    targets = np.full((len(rows), width), NOT_COUNTED, np.int32)
    for number, row in enumerate(rows):
        tokens[number, : len(row) - 1], targets[number, : len(row) - 1] = row[:-1], row[1:]
    return Batch(tokens, targets)


@dataclass(slots=True)
class Taken:
    """Time and losses of the steps of one side."""

    seconds: list[float] = field(default_factory=list)  # of each turn
    cpu: list[float] = field(default_factory=list)
    parts: list[tuple[float, ...]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


class Ours:
    """Our side: the stages' daemons, and the trainer in this process."""

    def __init__(self, node: Node, settings: TuningSettings, learned: optimiser.Learned) -> None:
        self._chain = node.compute.tuning.chain(tuners.ROOT, tuners.ARCH)
        self._settings, self._learned = settings, learned
        self._daemons = [each for each in psutil.Process().children() if _is_daemon(each)]
        self._workers = [one for each in self._daemons for one in each.children(recursive=True)]

    def _cpu(self) -> tuple[float, float, float]:
        """CPU seconds so far of the trainer, the daemons, and their workers."""
        return time.process_time(), _cpu_of(self._daemons), _cpu_of(self._workers)

    async def steps(self, some: Sequence[Batch], taken: Taken) -> None:
        """Do some steps."""
        began, cpu = time.perf_counter(), self._cpu()
        for batch in some:
            adapter = AdapterTensors(self._settings.terms, of_adapter(self._learned.tensors))
            found = await self._chain.gradients(batch, adapter)
            norm = optimiser.check(found, self._learned, counted(batch))
            optimiser.apply(self._learned, found, norm, self._settings)
            taken.losses.append(found.loss / found.counted)
        taken.seconds.append(time.perf_counter() - began)
        parts = tuple(now - then for now, then in zip(self._cpu(), cpu, strict=True))
        taken.cpu.append(sum(parts))
        taken.parts.append(parts)

    async def aclose(self) -> None:
        await self._chain.aclose()


def _cpu_of(processes: Sequence[psutil.Process]) -> float:
    return float(sum(sum(each.cpu_times()[:2]) for each in processes))


def _is_daemon(process: psutil.Process) -> bool:
    return "shoal.cli.main" in process.cmdline()


class Theirs:
    """Runs the process with `peft`."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._process = subprocess.Popen(
            [str(python), str(SIDE), str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert self._read() == "ready\n", "the process with `peft` has failed"

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def steps(self, count: int, taken: Taken) -> None:
        """Do some steps. Blocking."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        found = json.loads(self._read())
        taken.seconds.append(found["seconds"])
        taken.cpu.append(found["cpu"])
        taken.losses += found["losses"]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def prepare(folder: Path, some: Sequence[Batch], cores: int) -> TuningSettings:
    """Write what the other side begins with. Return the settings."""
    wishes = Wishes(rank=RANK, steps=len(some), rate=RATE, warmup=0, held_out=0.0)
    settings = settle(wishes, tuners.ROOT, tuners.ARCH, defaults.LENGTH, 8 * len(some), 1)
    begun = optimiser.begin(settings, module_shapes(tuners.ARCH))
    write_peft(
        RealHost().files, folder / "initial", settings.terms, begun.tensors, str(tuners.TINY)
    )
    arrays = {f"tokens{step}": each.tokens for step, each in enumerate(some)}
    arrays |= {f"targets{step}": each.targets for step, each in enumerate(some)}
    np.savez(folder / "batches.npz", **arrays)  # type: ignore[arg-type]
    task = {
        "model": str(tuners.TINY), "rates": [settings.rate_at(step) for step in range(len(some))],
        "clip": defaults.CLIP, "betas": defaults.BETAS, "threads": cores,
    }  # fmt: skip
    (folder / "task.json").write_text(json.dumps(task))
    return settings


async def compare(
    python: Path, folder: Path, turns: int, each: int, cores: int
) -> tuple[Taken, Taken, list[int]]:
    """Let both sides do their steps in turns. Return what they took, and the tokens of each turn.
    The first turn is not counted."""
    some = batches(each * (turns + 1))
    settings = prepare(folder, some, cores)
    ours, theirs = Taken(), Taken()
    begun = optimiser.begin(settings, module_shapes(tuners.ARCH))
    async with tuners.trainer(folder, LAYERS, "float32") as node:
        other = await trio.to_thread.run_sync(Theirs, python, folder)
        side = Ours(node, settings, begun)
        for turn in range(turns + 1):
            await side.steps(some[each * turn : each * (turn + 1)], ours)
            await trio.to_thread.run_sync(other.steps, each, theirs)
        other.close()
        await side.aclose()
    tokens = [sum(map(counted, some[each * at : each * (at + 1)])) for at in range(1, turns + 1)]
    return ours, theirs, tokens


def result(ours: Taken, theirs: Taken, tokens: Sequence[int]) -> dict[str, Any]:
    """Return the figures."""
    total = sum(tokens)
    speeds = {
        side: {"wall": total / sum(one.seconds[1:]), "cpu": total / sum(one.cpu[1:])}
        for side, one in (("ours", ours), ("peft", theirs))
    }
    value, cpu = (speeds["ours"][kind] / speeds["peft"][kind] for kind in ("wall", "cpu"))
    parts = [sum(some) / total for some in zip(*ours.parts[1:], strict=True)]
    pairs = zip(ours.losses, theirs.losses, strict=True)
    return {
        "name": "tuning_speed", "value": value, "goal": GOAL, "ok": value >= GOAL,
        "cpu_value": cpu, "tokens_per_s": speeds, "tokens": total,
        "cpu_us_per_token": {
            **dict(zip(PARTS, (1e6 * each for each in parts), strict=True)),
            "peft": 1e6 / speeds["peft"]["cpu"],
        },
        "worst": max(abs(a / b - 1) for a, b in pairs),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="3 turns of 5 steps, not 8 of 10")
    others.option(parser, "peft")
    parser.add_argument("--cores", type=int, default=len(LAYERS), help="at most (default: 3)")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[: args.cores]
    os.sched_setaffinity(0, cores)
    turns, each = (3, 5) if args.quick else (8, 10)
    python = others.python("peft", args.peft)
    with tempfile.TemporaryDirectory() as name:
        found = trio.run(compare, Path(python), Path(name), turns, each, len(cores))
    line = {**result(*found), "cores": len(cores)}
    print(json.dumps(line))
    return 0 if line["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
