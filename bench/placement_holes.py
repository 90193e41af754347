"""A thousand swarms start, restart and die, and no layers stay without a node that has room for
them.

Each swarm has 2 to 12 nodes with random memories and a model of 2 to 32 layers with a random
embedding and head. The nodes start 0 to 60 s apart; then up to three times, as far apart, one node
dies, one restarts or all restart. Each node decides with the daemon's own `Placing` by what has
reached it: what others say takes 0.02 to 1.5 s, a death is noticed after 1 to 6 s, loading takes
0.5 to 5 s (`netsim/daemons/placements.py`, which has no packets; `tests/netsim/daemons/` has whole
daemons).

A hole lasts from when the memory of the nodes that are up suffices for all layers, in whatever
assignment, and no chain of shards that join serves them, until one does. `value` is the longest
hole of all swarms in seconds; goal 30. `ok` asks besides that no node moved more than twice: took
other layers than those that it served. Beside it the twin: how many swarms have a longer hole where
nodes that hold layers never look again.
"""

import argparse
import json
import sys
import time
from collections import Counter
from typing import Final

from shoal.netsim.daemons.placements import PlacementOutcome, PlacementSwarm

MEASURES = ("tasks", "state/membership/record.py", "netsim/daemons/placements.py")

HOLE_S: Final = 30.0
MOVES: Final = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100 swarms")
    parser.add_argument("--seeds", type=int, default=1000)
    args = parser.parse_args()
    seeds = range(100 if args.quick else args.seeds)
    began = time.process_time()
    found = [PlacementSwarm(seed).run() for seed in seeds]
    cpu = time.process_time() - began
    without = [PlacementSwarm(seed, standing=False).run() for seed in seeds]
    worst = max(found, key=lambda outcome: outcome.hole_s)
    result = {
        "name": "placement_holes",
        "value": round(worst.hole_s, 1),
        "goal": HOLE_S,
        "ok": worst.hole_s <= HOLE_S and most(found) <= MOVES,
        "seeds": len(seeds),
        "events": sum(outcome.events for outcome in found),
        "most_moves": most(found),
        "swarms_by_most_moves": dict(sorted(Counter(each.moves for each in found).items())),
        "median_s": round(sorted(each.hole_s for each in found)[len(found) // 2], 1),
        "worst_seed": seeds[found.index(worst)],
        "longer_without_looking_again": sum(each.hole_s > HOLE_S for each in without),
        "cpu_s": round(cpu, 1),
    }
    print(json.dumps(result))
    return 0 if result["ok"] else 1


def most(found: list[PlacementOutcome]) -> int:
    return max(outcome.moves for outcome in found)


if __name__ == "__main__":
    sys.exit(main())
