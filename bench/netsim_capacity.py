"""How many daemons this machine can simulate, and how long that takes: CPU seconds and memory.

Each count of daemons is a scenario of its own, in a process of its own: three public nodes, and the
others drawn from `home-volunteers-2026` behind their gateways, with default options and without an
engine. All start within 30 virtual seconds. Joining is the CPU of the first two virtual minutes,
idling that of the third.

CPU seconds are also given in seconds of the reference machine (`yardstick.py`), which travel
between machines. `fit` is the number of daemons for which the memory of this machine suffices.

`value`: MiB for each daemon at the largest count (goal 4), at the end of the third minute, while
they run, and the CPU of an idle minute for each daemon there, divided by that at the smallest count
(goal: half of the ratio of both counts). `--quick` measures 6 and 12 daemons, `--daemons 100 200`
measures other counts. `--table` prints the table of docs/netsim.md from the record.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from records import ROOT
from yardstick import Yardstick

from shoal.netsim.daemons.daemon import Daemon
from shoal.netsim.scenario.format.parse import parse
from shoal.netsim.scenario.run import ScenarioRun

MEASURES = ("netsim", "node", "tasks", "state", "dht", "transport")

PUBLIC = 3
COUNTS, QUICK = (12, 25, 50), (6, 12)
JOINED_S, END_S = 120.0, 180.0
MIB_GOAL = 4.0
USED = 0.8  # the part of a machine's memory that a simulation should use
RECORD = ROOT / "bench" / "results" / "netsim_capacity.json"
SCENARIO = """
[sim]
name = "capacity"
duration = "3m"
sample = "10s"
[world]
hosts = {homes}
population = "home-volunteers-2026"
latency = "core"
spread = "30s"
settings = {{ engine = false }}
[[host]]
name = "p"
count = {public}
link = "fibre"
settings = {{ engine = false }}
"""


def resident() -> float:
    """Return the MiB of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def one(count: int) -> dict[str, Any]:
    """Measure one count of daemons."""
    yardstick = Yardstick(length=10)
    yardstick.sample(10)
    cpu, used = dict[float, float](), dict[float, float]()
    assert callable(Daemon)  # import its modules now, so that they do not count
    memory = resident()

    def look(virtual: float) -> None:
        cpu[virtual], used[virtual] = time.process_time(), resident()
        yardstick.sample()

    run = ScenarioRun(parse(SCENARIO.format(homes=count - PUBLIC, public=PUBLIC)), 1, progress=look)
    began, wall = time.process_time(), time.perf_counter()
    result = run.go()
    join, idle = cpu[JOINED_S] - began, cpu[END_S] - cpu[JOINED_S]
    known = result.metrics["members.known"]
    assert isinstance(known, float)
    return {
        "daemons": count,
        "join_cpu_s": round(join, 1),
        "idle_minute_cpu_s": round(idle, 1),
        "join_reference_s": round(yardstick.reference_ms(join), 1),
        "idle_minute_reference_s": round(yardstick.reference_ms(idle), 1),
        "mib_per_daemon": round((used[END_S] - memory) / count, 2),
        "wall_s": round(time.perf_counter() - wall, 1),
        "known": round(known, 3),
        "packets": result.metrics["packets.sent"],
    }


def measured(count: int) -> dict[str, Any]:
    """Run `one` in a process of its own."""
    command = [sys.executable, __file__, "--one", str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    print(f"{count} daemons: {found}", file=sys.stderr, flush=True)
    return found


def machine_mib() -> int:
    """Return this machine's memory in MiB."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20


def table(record: dict[str, Any]) -> Iterator[str]:
    """Yield the table of a record, as Markdown."""
    machine, result = record["machine"], record["result"]
    yield "| daemons | joining, CPU | an idle minute, CPU | memory of each |"
    yield "|---:|---:|---:|---:|"
    for row in result["rows"]:
        join, idle = row["join_cpu_s"], row["idle_minute_cpu_s"]
        mib = row["mib_per_daemon"]
        yield f"| {row['daemons']} | {join:.0f} s | {idle:.1f} s | {mib:.1f} MiB |"
    yield ""
    commit, reference = record["commit"][:12], result["reference_per_cpu"]
    yield (
        f"{machine['cpu']}, Python {machine['python']}, commit {commit}, one core of "
        f"{machine['cores']}. One second of its CPU is {reference:.2f} seconds of the reference "
        f"machine (`bench/yardstick.py`). {USED:.0%} of its {result['memory_mib'] / 1024:.0f} GiB "
        f"of memory hold {result['fit']} such daemons."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="6 and 12 daemons")
    parser.add_argument("--daemons", type=int, nargs="+", metavar="N", help="these counts")
    parser.add_argument("--table", action="store_true", help="print the table of the record")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args.one)))
        return 0
    if args.table:
        print("\n".join(table(json.loads(RECORD.read_text()))))
        return 0
    counts = args.daemons or (QUICK if args.quick else COUNTS)
    rows = [measured(count) for count in counts]
    first, last = rows[0], rows[-1]
    growth = _each(last) / _each(first)
    goal = {"mib_per_daemon": MIB_GOAL, "growth": last["daemons"] / first["daemons"] / 2}
    value = {"mib_per_daemon": last["mib_per_daemon"], "growth": round(growth, 2)}
    ok = all(value[name] <= goal[name] for name in value)
    cpu = sum(row["join_cpu_s"] for row in rows)
    reference = sum(row["join_reference_s"] for row in rows)
    result = {"name": "netsim_capacity", "value": value, "goal": goal, "ok": ok, "seeds": 1}
    print(json.dumps(result | {
        "rows": rows,
        "reference_per_cpu": round(reference / cpu, 3),
        "memory_mib": machine_mib(),
        "fit": int(USED * machine_mib() / last["mib_per_daemon"]),
    }))  # fmt: skip
    return 0 if ok else 1


def _each(row: dict[str, Any]) -> float:
    """Return the reference seconds of an idle minute per daemon."""
    return float(row["idle_minute_reference_s"]) / int(row["daemons"])


if __name__ == "__main__":
    sys.exit(main())
