"""A hundred nodes in a partition for ten minutes, both sides writing; then the partition heals.

Light nodes (`bench/worlds/replicas.py`) over the links of home volunteers and the latencies of
the core matrix. As in a daemon, rosters dial members up to 64 links, give lost ones up and dial
them again at their usual rate, so the first link across the former partition is made by them. Every
node writes a fact every 30 s on average, on both sides, until the partition heals. Measured are the
seconds from then to the first link across, and from that link until all hundred have the same
digest.

`value` is the maximum of the seconds from the first link to the same digest, less the allowance:
two rounds of gossip and the longest round trip between two nodes of that seed; goal 0. `ok` also
requires under 5 s each time, and the first link within 15 s of the heal. `--out FILE` keeps one
line per seed, and resumes there after a stop. `-j` seeds in parallel. `--quick` is one seed of 40
nodes.
"""

import argparse
import json
import sys
import time
from functools import partial
from math import inf
from multiprocessing import Pool
from pathlib import Path
from typing import Final

from worlds.replicanode import ReplicaNode
from worlds.replicas import Swarm

from shoal.netsim.seeds import Figures, SeedLines
from shoal.state import defaults

MEASURES = (
    "state",
    "netsim",
    "transport",
    "bench/worlds/replicanode.py",
    "bench/worlds/replicas.py",
)

LINKS: Final = 32
CUT_S: Final = 600.0
WRITE_S: Final = 30.0  # between two facts of a node, on average
STEP_S: Final = 0.02
PATIENCE_S: Final = 60.0
PLOTS: Final = (("member", 0), ("claims", 0), ("jobs", 0))
GOALS: Final = {"same_s": 5.0, "link_s": 15.0}


def one(seed: int, nodes: int) -> Figures:
    began = time.process_time()
    swarm = Swarm(seed)
    for _ in range(nodes):
        swarm.add()
    swarm.settle(PLOTS[0], {"capacity": {"cores": 8}})
    swarm.introduce()
    swarm.connect_at_random(LINKS)
    swarm.begin()
    swarm.advance(30.0)
    order = swarm.random.sample(swarm.nodes, nodes)
    halves = order[: nodes // 2], order[nodes // 2 :]
    swarm.cut(*halves)
    written = write(swarm)
    rtt = max(node.lane.longest() for node in swarm.nodes)
    apart = len({node.replica.digest.top() for node in swarm.nodes})
    swarm.faults.heal()
    link_s, same_s = healed(swarm, *halves)
    return {
        "link_s": round(link_s, 3),
        "same_s": round(same_s, 3),
        "rtt_s": round(rtt, 3),
        "written": written,
        "digests_before": apart,
        "cpu_s": time.process_time() - began,
    }


def write(swarm: Swarm) -> int:
    """Let random nodes write until the partition ends; return the number of entries."""
    end, written = swarm.now + CUT_S, 0
    pace = WRITE_S / len(swarm.nodes)
    while swarm.now < end:
        node = swarm.random.choice(swarm.nodes)
        plot = swarm.random.choice(PLOTS)
        key = f"key{swarm.random.randrange(20)}"
        text = swarm.random.randbytes(swarm.random.randrange(20, 400))
        written += len(swarm.write(node, plot, {key: {"text": text}}))
        swarm.advance(swarm.random.random() * 2 * pace)
    return written


def healed(swarm: Swarm, ones: list[ReplicaNode], others: list[ReplicaNode]) -> tuple[float, float]:
    """Return the seconds to the first link across, and from there to the same digest."""
    start, linked = swarm.now, inf
    far = {node.peer for node in others}
    while swarm.now < start + PATIENCE_S:
        swarm.advance(STEP_S)
        if linked == inf:
            across = [since for node in ones for peer, since in node.links.items() if peer in far]
            linked = min(across, default=inf)
        elif swarm.same():
            return max(linked - start, 0.0), swarm.now - max(linked, start)
    return linked - start, inf


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed of 40 nodes")
    parser.add_argument("--out", type=Path, help="keep one line per seed here, and resume")
    parser.add_argument("--seeds", type=int, default=100, help="(100)")
    parser.add_argument("-j", type=int, default=1, help="seeds in parallel (1)")
    args = parser.parse_args()
    nodes, seeds = (40, 1) if args.quick else (100, args.seeds)
    ledger = SeedLines(
        args.out, {"bench": "state_heal", "nodes": nodes, "cut_s": CUT_S, "write_s": WRITE_S}
    )
    left = [seed for seed in range(seeds) if seed not in ledger]
    with Pool(args.j, maxtasksperchild=1) as pool:
        found = pool.imap(partial(one, nodes=nodes), left)
        for seed, figures in zip(left, found, strict=True):
            ledger.add(seed, figures)
            print(f"seed {seed}: {figures}", flush=True)
    results = ledger.figures(range(seeds))
    same = sorted(figures["same_s"] for figures in results)
    links = sorted(figures["link_s"] for figures in results)
    over = max(
        figures["same_s"] - 2 * defaults.GOSSIP_ROUND - figures["rtt_s"] for figures in results
    )
    result = {
        "name": "state_heal",
        "value": round(over, 3),
        "goal": 0.0,
        "ok": over <= 0.0
        and same[-1] < GOALS["same_s"]
        and links[-1] <= GOALS["link_s"]
        and all(figures["digests_before"] > 1 for figures in results),
        "nodes": nodes,
        "same_p50_s": same[len(same) // 2],
        "same_most_s": same[-1],
        "link_p50_s": links[len(links) // 2],
        "link_most_s": links[-1],
        "rtt_most_s": max(figures["rtt_s"] for figures in results),
        "written": sum(figures["written"] for figures in results),
        "seeds": seeds,
        "cpu_s": round(sum(figures["cpu_s"] for figures in results), 1),
    }
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
