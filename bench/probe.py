"""The probe of a machine takes less than 10 s, and its useful batch is that of a long sweep.

Runs the daemon's own probe (`tasks/hardware/probe.py`) several times, each in its process with
loading torch. Then a sweep, in another process, multiplies 1, 2, 3, 4, 6, 8, … rows with weights
that exceed the caches, for far longer than the probe, and finds the largest number of rows that
takes at most 1.5 times as long as one row. A node pads small products where that is faster, so one
row stands for the fastest of 1, 2 and 4 rows, as in the probe.

`value` is the time of the slowest probe in seconds; goal 10. `ok` asks besides that each useful
batch is within one power of two of the sweep's, which is seeds row 2's goal for it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import torch
import trio

from shoal.tasks.engine.clock import clock
from shoal.tasks.engine.compute.products import linear_of
from shoal.tasks.engine.connection.starting import environment
from shoal.tasks.hardware.facts import Device
from shoal.tasks.hardware.probe import run_probe
from shoal.transport.host.real import RealHost

MEASURES = ("tasks/hardware", "tasks/engine", "transport/host")

GOAL_S: Final = 10.0
FACTOR: Final = 1.5
ROWS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
WIDTH: Final = 2048
WEIGHT_BYTES: Final = 256 * 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two probes and a short sweep")
    parser.add_argument("--sweep", choices=("float32", "bfloat16"), help="only the sweep")
    args = parser.parse_args()
    threads = RealHost().machine().cores
    if args.sweep:
        torch.set_num_threads(threads)
        print(last_free(sweep(getattr(torch, args.sweep), 3 if args.quick else 15)))
        return 0
    found = [timed_probe(threads) for _ in range(2 if args.quick else 5)]
    cpus = [device for _, device in found]
    speed = cpus[0].speed
    faster = "bfloat16" if speed.bfloat16 > speed.float32 else "float32"
    knee = swept(faster, threads, quick=args.quick)
    slowest = max(seconds for seconds, _ in found)
    batches = [device.speed.batch for device in cpus]
    near = all(knee / 2 <= batch <= knee * 2 for batch in batches)
    result = {
        "name": "probe",
        "value": round(slowest, 1),
        "goal": GOAL_S,
        "ok": slowest < GOAL_S and near,
        "probes_s": [round(seconds, 1) for seconds, _ in found],
        "batches": batches,
        "batch_of_the_sweep": knee,
        "gflops_float32": [round(device.speed.float32 / 1e9) for device in cpus],
        "gflops_bfloat16": [round(device.speed.bfloat16 / 1e9) for device in cpus],
        "gb_per_s": [round(device.speed.bandwidth / 1e9) for device in cpus],
    }
    print(json.dumps(result))
    return 0 if result["ok"] else 1


def timed_probe(threads: int) -> tuple[float, Device]:
    """Return the seconds of a probe, and what it found out about the CPU."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        report = trio.run(run_probe, RealHost(), Path(folder), threads)
        return time.perf_counter() - began, report.devices[0]


def swept(dtype: str, threads: int, *, quick: bool) -> int:
    """Return the result of the sweep, in a process whose idle threads do not spin, as the engine's
    do not."""
    command = [sys.executable, __file__, "--sweep", dtype, *(["--quick"] if quick else [])]
    done = subprocess.run(
        command, env={**os.environ, **environment(threads)}, stdout=subprocess.PIPE, check=True
    )
    return int(done.stdout)


def sweep(dtype: torch.dtype, rounds: int) -> dict[int, float]:
    """Return the seconds of the fastest round for each number of rows."""
    count = WEIGHT_BYTES // (WIDTH * WIDTH * dtype.itemsize)
    products = [
        linear_of(torch.full((WIDTH, WIDTH), 1 / WIDTH, dtype=dtype), None) for _ in range(count)
    ]
    best = dict.fromkeys(ROWS, float("inf"))
    for _ in range(rounds):  # all numbers in turn, so that a disturbance meets all of them
        for rows in ROWS:
            x = torch.ones(rows, WIDTH, dtype=dtype)
            began = clock()
            for product in products:
                product(x)
            best[rows] = min(best[rows], clock() - began)
    return best


def last_free(seconds: dict[int, float]) -> int:
    """Return the largest number of rows that takes at most FACTOR times as long as one."""
    one = min(seconds[rows] for rows in (1, 2, 4))
    return max(rows for rows in ROWS if rows <= 4 or seconds[rows] <= FACTOR * one)


if __name__ == "__main__":
    sys.exit(main())
