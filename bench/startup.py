"""Start-up time of a command: `import shoal.cli.main` and `shoal --help`, compared with bare
Python.

CPU seconds of whole processes (user + system, so that a busy machine changes little), medians of
interleaved runs. `value` is the slower of the two, divided by a process that only imports click,
the minimum for any such command. Goal: 3, and neither torch nor libp2p imported.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from statistics import median

MEASURES = ("cli", "node", "tasks", "state", "dht", "transport")

GOAL = 3.0
SIDES = {
    "python": ["-c", "pass"],
    "import_click": ["-c", "import click"],
    "import_shoal": ["-c", "import shoal.cli.main"],
    "shoal_help": ["-m", "shoal.cli.main", "--help"],
}
HEAVY = ("torch", "libp2p", "trio", "numpy", "cryptography", "rich")


def measure(args: list[str]) -> tuple[float, float]:
    """Return the CPU seconds and elapsed seconds of one process."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, *args], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{args} exited with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - began


def imported() -> list[str]:
    """Return which of the heavy packages `shoal --help` imports."""
    code = (
        "import json, sys; from shoal.cli.main import invoke; out = sys.stdout; "
        "sys.stdout = open('/dev/null', 'w'); invoke(['--help']); "
        f"print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]), file=out)"
    )
    found: list[str] = json.loads(subprocess.check_output([sys.executable, "-c", code]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    runs = 7 if parser.parse_args().quick else 31
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in SIDES}
    for turn in range(runs + 1):
        for name, args in SIDES.items():
            sample = measure(args)
            if turn:  # the first run writes bytecode and fills the disk cache
                times[name].append(sample)
    cpu = {name: median(c for c, _ in samples) for name, samples in times.items()}
    wall = {name: median(w for _, w in samples) for name, samples in times.items()}
    heavy = imported()
    value = round(max(cpu["import_shoal"], cpu["shoal_help"]) / cpu["import_click"], 3)
    ok = value <= GOAL and not {"torch", "libp2p"} & set(heavy)
    print(f"heavy packages imported: {heavy or 'none'}")
    result = {
        "name": "startup", "value": value, "goal": GOAL, "ok": ok,
        "runs": runs, "cpu_s": cpu, "wall_s": wall, "heavy_imports": heavy,
    }  # fmt: skip
    print(json.dumps(result))


if __name__ == "__main__":
    main()
