"""An owner's `make -j2` beside a busy worker with one thread, against `make -j2` alone.

`value` is the ratio of the times, divided by the worker's fair share: where `make` has 2 programs
on 2 cores, the worker is the third, and `make` gets 2/3 of what it had. Goal 1.05. The make file
compiles 4 files of C++. Times are elapsed, so nothing else may run.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final

import trio
from worlds.engines import prompt, worker

MEASURES = ("tasks/engine", "transport/host")

GOAL: Final = 1.05
SOURCE: Final = Path(__file__).parent.parent / "tasks" / "engine" / "kernels" / "portable.cpp"
RULES: Final = """.PHONY: all
all: a.o b.o c.o d.o
%.o:
\tg++ -std=c++17 -O2 -Wno-psabi -c {source} -o $@
"""


def make(folder: Path) -> float:
    """Return the seconds of one `make -j2` of everything."""
    for old in folder.glob("*.o"):
        old.unlink()
    began = time.perf_counter()
    subprocess.run(["make", "-s", "-j2"], cwd=folder, check=True)
    return time.perf_counter() - began


async def measure(folder: Path, rounds: int) -> dict[str, object]:
    alone, beside = list[float](), list[float]()
    async with worker("1.1B", threads=1) as engine:
        await engine.generate(prompt(32, 0), 4)
        for seed in range(rounds):
            alone.append(await trio.to_thread.run_sync(make, folder))
            answer = await engine.start(prompt(32, seed), 4000)
            beside.append(await trio.to_thread.run_sync(make, folder))
            await engine.stop(answer)
    cores = len(os.sched_getaffinity(0))
    share = max(1.0, 3 / cores)
    slowed = median(beside) / median(alone)
    return {
        "value": round(slowed / share, 3),
        "slowed": round(slowed, 3),
        "fair": round(share, 3),
        "seconds": [[round(each, 2) for each in times] for times in (alone, beside)],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "Makefile").write_text(RULES.format(source=SOURCE))
        found = trio.run(measure, folder, 1 if args.quick else 3)
    ok = float(str(found["value"])) <= GOAL
    print(json.dumps({"name": "engine_yields", "goal": GOAL, "ok": ok} | found))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
