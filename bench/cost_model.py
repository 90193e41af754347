"""Predictions of the cost model against measured seconds: two GPUs, and this machine's own engine.

GPUs: the published profiles of Vidur (`--traces`, microsoft/vidur, MIT) have the median seconds of
the linear layers of three models on an A100 and an A40, by number of tokens and tensor-parallel
degree. Four efficiencies (of compute, of memory, rows of half the efficiency, seconds per product)
are fitted to one GPU. Together with the other GPU's published rates they predict its layers, and
the other way round. Mark: 15 % mean error. Beside it the twin: a roofline whose efficiencies are 1.

Engine: the real worker loads models of several shapes, and computes running texts, parts of prompts
at several positions, and batches of texts. The shard is predicted as other nodes would: from the
rates of the machine, calibrated by the costs that the worker measured after loading. Mark: 12 %
mean error. Beside it: the same without calibration, and with efficiencies fitted to the other
shapes. `value` is the larger of the mean errors by their marks.
"""

import argparse
import csv
import json
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

import torch
import trio
from worlds.engines import SHAPES, Worker, config, prompt, worker
from worlds.fitting import Measured, error, fitted
from worlds.traces import find_traces

from shoal.state.membership.record import DeviceSpeed
from shoal.tasks.costs.rates import PROCESSOR, DeviceRates, Efficiency, device_rates
from shoal.tasks.costs.steps import calibrated
from shoal.tasks.costs.work import EqualRows, ModelWork, ShardWork
from shoal.tasks.engine.families import architecture
from shoal.tasks.engine.interface import EngineEvent, FailedEvent, Parts, Span, TokenEvent
from shoal.tasks.engine.process import EngineProcess
from shoal.tasks.hardware.devices import processor
from shoal.tasks.hardware.measure import Bench, Budget

MEASURES = (
    "tasks/costs",
    "tasks/engine",
    "tasks/hardware",
    "state/membership/record.py",
    "transport/host",
)

GPU_MARK: Final = 0.15
ENGINE_MARK: Final = 0.12
TRACES: Final = find_traces() / "vidur"

# Published peaks: dense bfloat16 flop/s on tensor cores, byte/s (NVIDIA's data sheets of the A100
# SXM with 80 GB and of the A40).
PEAKS: Final = {"a100": (312e12, 2039e9), "a40": (149.7e12, 696e9)}
PRODUCTS: Final = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
GPU_START: Final = Efficiency(compute=0.7, memory=0.8, half_rows=50.0, layer_s=10e-6)
GPU_FITTED: Final = ("compute", "memory", "half_rows", "layer_s")


def gpu_steps(folder: Path) -> list[Measured]:
    """The measured products of one GPU, each as a step of a shard with one matrix."""
    found = []
    for path in sorted(folder.glob("*_mlp.csv")):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                found += list(_products(row))
    return found


def _products(row: dict[str, str]) -> Iterator[Measured]:
    heads, kv_heads, hidden = (int(row[key]) for key in ("n_head", "n_kv_head", "n_embd"))
    wide, tokens = int(row["n_expanded_embd"]), int(row["num_tokens"])
    parallel = int(row["num_tensor_parallel_workers"])
    up = (2 if row["use_gated_mlp"] == "True" else 1) * wide
    shapes = (
        (hidden, (heads + 2 * kv_heads) * (hidden // heads) // parallel),
        (hidden // parallel, hidden),
        (hidden, up // parallel),
        (wide // parallel, hidden),
    )
    for name, (inputs, outputs) in zip(PRODUCTS, shapes, strict=True):
        seconds = float(row[f"time_stats.{name}.median"] or 0) / 1000
        size = 2 * inputs * outputs
        work = ShardWork("bfloat16", 1, size, size, 0, 0.0, (), 0, 0, 0, 0)
        if seconds:
            yield Measured(work, (EqualRows(tokens, 0),), 0, seconds)


def gpus(folder: Path, stride: int) -> dict[str, object]:
    """Fit on each GPU, and predict the other one."""
    steps = {name: gpu_steps(folder / name) for name in PEAKS}
    rates = {name: DeviceRates(read, flops, flops) for name, (flops, read) in PEAKS.items()}
    found: dict[str, object] = {}
    worst = 0.0
    for known, other in (("a100", "a40"), ("a40", "a100")):
        start = replace(rates[known], efficiency=GPU_START)
        own = fitted(start, steps[known][::stride], GPU_FITTED)
        wrong = error(replace(rates[other], efficiency=own.efficiency), steps[other])
        worst = max(worst, wrong)
        found[f"{known}_to_{other}"] = {
            "error": round(wrong, 4),
            "own_error": round(error(own, steps[known]), 4),
            "perfect_error": round(error(rates[other], steps[other]), 4),
            "efficiency": {name: getattr(own.efficiency, name) for name in GPU_FITTED},
            "steps": len(steps[other]),
        }
    return {"gpu_error": round(worst, 4)} | found


# The engine.

ENGINE_SHAPES: Final = {
    "125M": (12, 768, 2048, 12, 4, 32_000),
    "wide": (4, 2048, 5632, 32, 4, 8_000),  # layers of a model with 1.1 B parameters
}
POSITIONS: Final = (2176, 1024, 64)
PROMPTS: Final = (4, 16, 64, 160)  # rows
BATCHES: Final = (2, 4, 7)  # sessions
ENGINE_FITTED: Final = ("compute", "memory", "attention", "layer_s")
ENGINE_START: Final = replace(PROCESSOR, layer_s=10e-6)


class Session:
    """A session of the worker, whose spans are measured.

    The worker reports seconds of the wall clock. Other programs lengthen them, so each is
    multiplied with the worker's share of a core meanwhile (its CPU time by its reported seconds).
    """

    def __init__(self, worker: Worker, number: int, shape: str) -> None:
        self.name = number.to_bytes(16)
        self._engine = worker.engine
        self._shape = shape
        self._epoch = 0
        self._seconds: list[float] = []
        self._done = trio.Event()

    async def open(self) -> None:
        await self._engine.open(self.name, 2400, self._on_event)

    async def close(self) -> None:
        await self._engine.close(self.name)

    def _on_event(self, event: EngineEvent) -> None:
        if isinstance(event, FailedEvent):
            raise RuntimeError(f"{event.code}: {event.message}")
        assert isinstance(event, TokenEvent)
        self._seconds.append(event.seconds)
        if event.final:
            self._done.set()

    async def span(self, start: int, count: int, steps: int = 1) -> list[float]:
        """Compute positions again, and return the seconds of each token by the wall clock."""
        self._epoch += 1
        self._seconds, self._done = [], trio.Event()
        tokens = prompt(count, start, self._shape)
        self._engine.submit(
            Span(self.name, self._epoch, start, count, tokens=tokens, want="token", steps=steps)
        )
        await self._done.wait()
        return self._seconds

    async def alone(self, start: int, count: int, steps: int = 1) -> list[float]:
        """Return the same while no other session computes, as if the core were its own."""
        before = _cpu_seconds(self._engine)
        taken = await self.span(start, count, steps)
        share = min(1.0, (_cpu_seconds(self._engine) - before) / sum(taken))
        return [each * share for each in taken]


def _cpu_seconds(engine: EngineProcess) -> float:
    """CPU seconds of the worker so far. Linux names the clock of a process by its pid."""
    assert engine.pid is not None
    return time.clock_gettime(~engine.pid << 3 | 2)


Case = tuple[EqualRows, ...]


async def engine_steps(
    shape: str, rounds: int, machine: DeviceRates
) -> tuple[list[Measured], DeviceRates]:
    """Measure steps of the worker with a model, all kinds in turn. Return the fastest of each kind,
    and the machine as the worker's costs calibrate it."""
    seconds: dict[Case, list[float]] = defaultdict(list)
    async with worker(shape, threads=1) as engine:
        sessions = [Session(engine, number, shape) for number in range(1, 1 + max(BATCHES))]
        for session in sessions:
            await session.open()
            await session.span(0, 200)
        for _ in range(rounds):
            await sessions[0].span(0, max(POSITIONS))
            for position in POSITIONS:
                for rows in PROMPTS:
                    taken = await sessions[0].alone(position, rows)
                    seconds[(EqualRows(rows, position),)].append(taken[0])
                taken = await sessions[0].alone(position, 1, 6)
                seconds[(EqualRows(1, position + 3),)].append(min(taken[1:]))
            await sessions[0].span(0, 200)
            for count in BATCHES:
                together = await _together(engine.engine, sessions[:count])
                seconds[(EqualRows(1, 205, count),)].append(together)
        for session in sessions:
            await session.close()
        costs = engine.loaded.costs
    arch = architecture(config(shape))
    work = ModelWork(arch, "bfloat16").of(Parts(True, 0, arch.layers, True))
    steps = [
        Measured(work, rows, sum(each.sessions for each in rows), min(taken))
        for rows, taken in seconds.items()
    ]
    return steps, calibrated(machine, work, costs)


async def _together(engine: EngineProcess, sessions: Sequence[Session]) -> float:
    """Return the seconds of a step in which all these sessions have one row."""
    tokens: list[list[float]] = []

    async def one(session: Session) -> None:
        tokens.append(await session.span(200, 1, 9))

    before = _cpu_seconds(engine)
    async with trio.open_nursery() as nursery:
        for session in sessions:
            nursery.start_soon(one, session)
    share = min(1.0, (_cpu_seconds(engine) - before) / sum(map(sum, tokens)))
    return share * sum(median(each[2:]) for each in tokens)


def this_machine() -> DeviceRates:
    """The rates of this machine, as its probe measures them."""

    torch.set_num_threads(1)
    here, there = socket.socketpair()
    with here, there:
        speed = Bench(processor(8 << 30), 4 << 30, Budget(30.0, here.fileno())).speed()
    device = DeviceSpeed("cpu", "", 0, speed.bandwidth, speed.float32, speed.bfloat16, speed.batch)
    return device_rates(device)


def engine(rounds: int) -> dict[str, object]:
    """Predict the worker's steps with each shape."""
    SHAPES.update(ENGINE_SHAPES)
    machine = this_machine()
    measured = {shape: trio.run(engine_steps, shape, rounds, machine) for shape in ENGINE_SHAPES}
    found: dict[str, object] = {}
    errors = []
    for shape, (steps, known) in measured.items():
        others = [s for name, (each, _) in measured.items() if name != shape for s in each]
        elsewhere = fitted(replace(machine, efficiency=ENGINE_START), others, ENGINE_FITTED)
        errors.append(error(known, steps))
        found[shape] = {
            "error": round(errors[-1], 4),
            "uncalibrated": round(error(machine, steps), 4),
            "fitted_to_others": round(error(elsewhere, steps), 4),
            "steps": len(steps),
            "worst": _worst(known, steps),
        }
    return {"engine_error": round(sum(errors) / len(errors), 4)} | found


def _worst(device: DeviceRates, steps: Sequence[Measured]) -> dict[str, object]:
    far = max(steps, key=lambda each: abs(each.predicted(device) / each.seconds - 1))
    ms = [round(1000 * each, 2) for each in (far.predicted(device), far.seconds)]
    return {"rows": str(far.rows[0]), "predicted_ms": ms[0], "measured_ms": ms[1]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round; fit on fewer GPU steps")
    parser.add_argument("--traces", type=Path, default=TRACES, help="folder with a100/ and a40/")
    args = parser.parse_args()
    found = engine(1 if args.quick else 5)
    known = {"engine_error": ENGINE_MARK}
    if (args.traces / "a100").is_dir():
        found |= gpus(args.traces, 64 if args.quick else 8)
        known["gpu_error"] = GPU_MARK
    else:
        found["gpu_skipped"] = f"{args.traces} is absent"
    values = {name: found[name] for name in known}
    shares = [value / known[name] for name, value in values.items() if isinstance(value, float)]
    ok = max(shares) <= 1.0
    result = {"name": "cost_model", "value": round(max(shares), 3), "goal": 1.0, "ok": ok}
    print(json.dumps(result | found))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
