"""Hole punching between eight kinds of NAT, every pair at two skews: the table, and its cost.

The cost is the CPU time of 128 scenarios, including the building of their world, in reference ms
(`yardstick.py`): the median of several runs, each with its own seed. The other side is the same
scenarios in real time (as in a lab of kernel namespaces or virtual machines), which is computed as
the sum of their seconds. Goal: 100 reference ms, and a table that matches the kinds' mapping and
filtering.
"""

import argparse
import json
import sys
import time
from statistics import median

from worlds.punching import KINDS, SKEWS_S, Pair, truth_table
from yardstick import Yardstick

MEASURES = ("netsim",)

GOAL_MS = 100.0  # of the reference machine
SYMMETRIC = ("adm-apdf", "apdm-apdf")  # another port for each peer
STRICT = ("eim-apdf", "linux-drop", "linux-accept", *SYMMETRIC)  # only the peer itself gets in


def expected(pair: Pair) -> bool:
    """Whether such peers can connect (netsim.md 2e; RFC 5128 3.3 and 3.4).

    A symmetric NAT's port towards the peer is not the one that the server saw, so the peer must
    admit any port. A Linux router that takes packets for itself remembers the early one, and then
    has to give its own host another port.
    """
    first, second = pair.kinds
    if (first in SYMMETRIC and second in STRICT) or (second in SYMMETRIC and first in STRICT):
        return False
    return not (pair.skew and second == "linux-accept" and first in STRICT)


def show(pairs: list[Pair]) -> None:
    """Print the tables: one row per kind of the peer that starts first."""
    for skew in SKEWS_S:
        print(f"skew {1e3 * skew:.0f} ms".ljust(14) + "".join(f"{kind:>13}" for kind in KINDS))
        for first in KINDS:
            row = [p for p in pairs if p.skew == skew and p.kinds[0] == first]
            print(f"{first:14}" + "".join(f"{'Y' if p.connected else '-':>13}" for p in row))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    runs = 3 if parser.parse_args().quick else 15
    cpu, wrong, virtual, packets = [], 0, 0.0, 0
    stick = Yardstick()
    for seed in range(runs + 1):
        began = time.process_time()
        pairs, world = truth_table(seed=seed)
        if seed:  # the first run warms up
            cpu.append(time.process_time() - began)
            stick.sample(10)
        virtual, packets = world.events.now, world.network.sent
        wrong += sum(pair.connected != expected(pair) for pair in pairs)
    show(pairs)
    value = round(stick.reference_ms(1e3 * median(cpu)), 2)
    one_by_one = virtual * len(pairs)
    result = {
        "name": "netsim_punch", "value": value, "goal": GOAL_MS,
        "ok": value <= GOAL_MS and not wrong, "unit": "reference ms", "reference_ms": stick.ms,
        "scenarios": len(pairs),
        "connected": sum(pair.connected for pair in pairs), "wrong": wrong, "runs": runs,
        "cpu_s": [round(each, 4) for each in cpu], "packets": packets,
        "virtual_s": round(virtual, 2), "real_time_one_by_one_s": round(one_by_one, 1),
        "times_real_time": round(one_by_one / median(cpu)),
    }  # fmt: skip
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
