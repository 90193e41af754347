"""Requests with their first token within 5 s: a gateway's choice among 8 replicas, with at most 4
probes.

Traffic is that of the Mooncake conversation trace (12,031 requests of one hour, Apache-2.0,
https://github.com/kvcache-ai/Mooncake, FAST25 release: `--trace FILE`), at 2.45, 2.76, 3.07 and
3.37 requests a second. Prompts are cut to 20,480 positions, the context of the replicas. Ten seeds:
each spreads the arrivals inside the trace's bins of 3 s, begins at another request, and gives the
requests to 8 gateways at random, which share their prefixes (a group with a common secret). 2,000
requests warm the caches, then 600 are answered, of which the first 100 do not count.

The script runs a discrete-event model on virtual time (`worlds/routed.py`), because whole daemons
would take days. The gateways run the daemon's own `Router`. The replicas run its `StepTimes`,
`CachedNames` and `Scheduler`, whose predicted costs are the duration of a step. `--daemons`
compares the model with whole simulated daemons on a small case.

The others choose without a probe's delay. `all-seeing` takes the least predicted time of all 8 live
replicas, and `least-loaded` the least wait. `gossip` takes the least predicted time by what all
replicas said at the last full second, and what this gateway has sent since then. `affinity` hashes
the first two blocks of a prompt.

`value` is the mean share of requests within 5 s, divided by that of `all-seeing`: goal 0.94. `ok`
asks besides for 1.3 times `gossip` and `affinity`, and at each rate for at least 0.98 of
`least-loaded`. `liars` is the same with two replicas that say that they have no load and everything
cached and claim a thousand times their speed: the share of requests that they still get.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from worlds.routed import BLOCK, POLICIES, Fleet, Policy, Request, World, arrivals, read_trace
from worlds.traces import find_traces

from shoal.tasks.engine.scheduling.costs import StepCosts

MEASURES = ("tasks", "netsim/daemons", "netsim/network", "netsim/world.py", "transport/identity.py")

RATES: Final = (2.45, 2.76, 3.07, 3.37)
WITHIN_S: Final = 5.0
CONTEXT: Final = 20_480
UNCOUNTED: Final = 100
GOAL: Final = 0.94
OVER: Final = 1.3
LEAST: Final = 0.98
TRACE: Final = find_traces() / "mooncake" / "conversation_trace.jsonl"
COSTS: Final = StepCosts(fixed=0.04, row=80e-6, attended=4e-9, most_rows=2048)
"""The costs of a step on a replica, in seconds. It reads an 8 B model in 40 ms, and computes about
4,500 rows of prompts per second beside texts, as the replicas in studies of the trace do."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    trace: Path
    warm: int
    count: int
    rate: float
    policy: Policy
    seed: int
    liars: int = 0


def cut(request: Request) -> Request:
    """Return a request that fits the context."""
    blocks = request.blocks[: CONTEXT // BLOCK]
    return replace(request, rows=min(request.rows, CONTEXT), blocks=blocks)


def run(case: Case) -> dict[str, float]:
    """Run one case."""
    trace = [cut(request) for request in read_trace(case.trace)]
    requests = arrivals(trace, case.warm + case.count, case.rate, case.seed)
    fleet = Fleet(COSTS, liars=case.liars)
    world = World(fleet, requests[case.warm :], case.policy, case.seed)
    world.warm(requests[: case.warm])
    outcome = world.run()
    counted = outcome.to_liars[UNCOUNTED:]
    return {
        "within": outcome.within(WITHIN_S, UNCOUNTED),
        "cached": outcome.cached / outcome.rows,
        "probes": outcome.probes / case.count,
        "most_probes": outcome.most_probes,
        "to_liars": sum(counted) / len(counted),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, two rates, 300 requests")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--trace", type=Path, default=TRACE)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--daemons", action="store_true", help="compare with whole daemons")
    args = parser.parse_args()
    if args.daemons:
        from worlds.routeddaemons import compare

        print(json.dumps({"name": "routing_daemons"} | compare()))
        return 0
    if not args.trace.is_file():
        parser.error(f"there is no trace at `{args.trace}`: download it, and give `--trace FILE`")
    seeds = range(1 if args.quick else args.seeds)
    rates = RATES[::3] if args.quick else RATES
    warm, count = (1_000, 300) if args.quick else (2_000, 600)
    began = time.perf_counter()
    cases = [
        Case(args.trace, warm, count, rate, policy, seed)
        for rate, policy, seed in product(rates, POLICIES, seeds)
    ]
    lying = [Case(args.trace, warm, count, RATES[1], "shoal", seed, 2) for seed in seeds]
    with ProcessPoolExecutor(args.jobs) as pool:
        every = list(pool.map(run, [*cases, *lying]))
    found = dict(zip([*cases, *lying], every, strict=True))
    result = judged(found, rates, seeds) | {"took_s": round(time.perf_counter() - began)}
    print(json.dumps(result))
    return 0 if result["ok"] else 1


def judged(
    found: dict[Case, dict[str, float]], rates: Sequence[float], seeds: Sequence[int]
) -> dict[str, Any]:
    """Return the result of all runs."""
    honest = {case: each for case, each in found.items() if not case.liars}

    def mean(policy: Policy, figure: str = "within", rate: float | None = None) -> float:
        return fmean(
            each[figure]
            for case, each in honest.items()
            if case.policy == policy and rate in (None, case.rate)
        )

    within = {policy: mean(policy) for policy in POLICIES}
    ours = within["shoal"]
    ratios = {policy: ours / each for policy, each in within.items() if policy != "shoal"}
    least = min(mean("shoal", rate=rate) / mean("least-loaded", rate=rate) for rate in rates)
    lying = [each for case, each in found.items() if case.liars]
    most = max(each["most_probes"] for each in found.values())
    ok = (
        ratios["all-seeing"] >= GOAL
        and min(ratios["gossip"], ratios["affinity"]) >= OVER
        and least >= LEAST
        and most <= 4
    )
    return {
        "name": "routing",
        "value": round(ratios["all-seeing"], 4),
        "goal": GOAL,
        "ok": ok,
        "ratios": {policy: round(each, 3) for policy, each in ratios.items()},
        "least_over_least_loaded": round(least, 3),
        "within_5_s": {
            str(rate): {policy: round(mean(policy, rate=rate), 3) for policy in POLICIES}
            for rate in rates
        },
        "cached": {policy: round(mean(policy, "cached"), 3) for policy in POLICIES},
        "most_probes": most,
        "liars": {
            "share_of_requests": round(fmean(each["to_liars"] for each in lying), 3),
            "within_5_s": round(fmean(each["within"] for each in lying), 3),
        },
        "seeds": len(seeds),
    }


if __name__ == "__main__":
    sys.exit(main())
