"""Twenty nodes do a thousand jobs through partitions, crashes and clocks that jump by an hour.

Light nodes (`bench/worlds/replicas.py`) over the links of home volunteers and the latencies of
the core matrix: the real `Writer`, feeds, `Exchange`, views and `Claimant`. Claims are signed
entries that travel by news, comparisons and pulls, as in a daemon. Only TLS and the store are left
out, and a write reaches the disk after 10 to 250 ms. A node counts as silent 5 s after its packets
stop, as measured by `state_ghosts`. Wall clocks jump by an hour up or down, monotonic clocks are
off by up to 200 ppm. Each seed has six partitions of half a minute to five minutes, two nodes that
die for good and two that come back with nothing but their feeds. Jobs take 10 to 60 s on a machine
of speed 1; machines have 0.5 to 2. A job whose claimant shows nothing for 45 s is attempted again.
The ideal is the time in which the running machines could have done all work without any
communication.

`value` is the maximum of reruns over all seeds: completed executions beyond one per job, divided by
the jobs; goal 0.05. `ok` also requires for each seed that every job is done, that all views show
the same winners, and that it took at most 1.5 x ideal. Beside it are the twins: the number of jobs
for which two views would show two winners if the last entry received decided; and, for the first 2
seeds, how many jobs are never done without further attempts, how many executions are abandoned
(beside `gave_way`) if a claim is void once its lease has ended by the wall clock, and the reruns if
no node has precedence for a job.

`--out FILE` keeps one line per seed, and resumes there after a stop. `-j` seeds in parallel. There
are only 20 seeds, because each takes about a minute of CPU. `--quick` is one seed of 200 jobs,
without twins, where the same partitions weigh five times as much, with its own goal: 0.25.
"""

import argparse
import json
import sys
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any, Final

from worlds.claims import JOBS, TWINS, Sim

from shoal.netsim.seeds import Figures, SeedLines

MEASURES = ("state", "tasks/jobs", "netsim", "transport", "bench/worlds/claims.py")

TWIN_SEEDS: Final = 2
GOALS: Final = {"reruns": 0.05, "makespan": 1.5}
QUICK_RERUNS: Final = 0.25


def one(seed: int, jobs: int, twins: int) -> Figures:
    found = Sim(seed, jobs).run()
    for twin in TWINS if seed <= twins else ():
        found[twin] = Sim(seed, jobs, twin).run()
    return found


def result_of(figures: list[Figures], reruns: float) -> dict[str, Any]:
    def most(name: str) -> float:
        return round(max(float(each[name]) for each in figures), 4)

    def mean(name: str) -> float:
        return round(sum(float(each[name]) for each in figures) / len(figures), 4)

    twins = [each for each in figures if TWINS[0] in each]
    ok = (
        not most("undone")
        and not most("two_winners")
        and most("reruns") <= reruns
        and most("makespan") <= GOALS["makespan"]
    )
    return {
        "name": "state_claims",
        "value": most("reruns"),
        "goal": reruns,
        "ok": ok,
        "seeds": len(figures),
        "undone": most("undone"),
        "two_winners": most("two_winners"),
        "mean_reruns": mean("reruns"),
        "makespan": most("makespan"),
        "mean_makespan": mean("makespan"),
        "makespan_s": most("makespan_s"),
        "gave_way": mean("gave_way"),
        "without": {
            "two_winners_by_last_word": mean("last_word_two"),
            "undone_without_attempts": [each["no attempts"]["undone"] for each in twins],
            "gave_way_by_the_wall_clock": [
                (each["gave_way"], each["by the wall clock"]["gave_way"]) for each in twins
            ],
            "reruns_without_shares": [each["no shares"]["reruns"] for each in twins],
        },
        "cpu_s": round(sum(each["cpu_s"] for each in figures), 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed of 200 jobs")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"number of jobs ({JOBS})")
    parser.add_argument("-j", type=int, default=1, help="seeds in parallel")
    parser.add_argument("--out", type=Path, help="keep one line per seed here, and resume")
    args = parser.parse_args()
    seeds, jobs, twins = (1, 200, 0) if args.quick else (args.seeds, args.jobs, TWIN_SEEDS)
    wanted = list(range(1, 1 + seeds))
    ledger = SeedLines(args.out, {"bench": "state_claims", "network": "light", "jobs": jobs})
    lacking = [seed for seed in wanted if seed not in ledger]
    with Pool(args.j) as pool:
        measured = pool.imap(partial(one, jobs=jobs, twins=twins), lacking)
        for seed, figures in zip(lacking, measured, strict=True):
            ledger.add(seed, figures)
            print(f"seed {seed}: {figures}", flush=True)
    reruns = QUICK_RERUNS if args.quick else GOALS["reruns"]
    result = result_of(ledger.figures(wanted), reruns)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
