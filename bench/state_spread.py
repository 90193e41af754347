"""Spreading of one change of 1 KiB among a thousand nodes: how fast, and at what cost.

Light nodes (`bench/worlds/replicas.py`) over the links of home volunteers and the latencies of
the core matrix, each with links to 16 random others; all have every node's `member` feed. Random
nodes write a fact of 1 KiB, one after the other, 8 s apart. Measured are the seconds until 99 %
have it in their archives, and the bytes that all nodes send within 5 s of the change: payloads of
all messages, including those of the periodic comparisons of digests. Beside it is the same with 60
bytes for each message's frame. Packet headers, acknowledgements and retransmissions are not
counted.

`value` is the p95 of the seconds over all changes of all seeds; goal: under 2 s, and at most 3 KiB
of lane payload per node in every change. `--out FILE` keeps one line per seed, and resumes there
after a stop. `-j` seeds in parallel. `--quick` is one seed of 250 nodes.
"""

import argparse
import json
import sys
import time
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Final

from worlds.lightlane import FRAME_BYTES
from worlds.replicas import Swarm

from shoal.netsim.seeds import Figures, SeedLines

MEASURES = ("state", "netsim", "transport", "bench/worlds/lightlane.py", "bench/worlds/replicas.py")

LINKS: Final = 16
CHANGES: Final = 12
PAUSE_S, COUNTED_S, STEP_S = 8.0, 5.0, 0.02
PLOT: Final = ("member", 0)
GOAL_S: Final = 2.0
GOAL_BYTES: Final = 3 * 2**10


def one(seed: int, nodes: int) -> Figures:
    began = time.process_time()
    swarm = Swarm(seed)
    for _ in range(nodes):
        swarm.add()
    swarm.settle(PLOT, {"capacity": {"cores": 8}})
    swarm.connect_at_random(LINKS)
    swarm.begin()
    swarm.advance(30.0)
    ready = time.process_time()
    results = [change(swarm, number) for number in range(CHANGES)]
    return {
        "seconds": [round(seconds, 3) for seconds, _, _ in results],
        "bytes": [round(size) for _, size, _ in results],
        "framed": [round(size) for _, _, size in results],
        "setup_cpu_s": ready - began,
        "cpu_s": time.process_time() - began,
    }


def change(swarm: Swarm, number: int) -> tuple[float, float, float]:
    """Return the seconds until 99 % have one more change, and the bytes per node meanwhile, bare
    and framed.
    """
    author = swarm.random.choice(swarm.nodes)
    start, before = swarm.now, sent(swarm)
    text = swarm.random.randbytes(1024)
    head = swarm.write(author, PLOT, {f"note{number}": {"text": text}})[-1].head
    key, seconds = author.replica.own, PAUSE_S
    lacking = list(swarm.nodes)
    while swarm.now < start + COUNTED_S:
        swarm.advance(STEP_S)
        lacking = [node for node in lacking if node.replica.head(key, PLOT) != head]
        if len(lacking) <= 0.01 * len(swarm.nodes):
            seconds = min(seconds, swarm.now - start)
    size, messages = (now - then for now, then in zip(sent(swarm), before, strict=True))
    swarm.advance(start + PAUSE_S - swarm.now)
    nodes = len(swarm.nodes)
    return seconds, size / nodes, (size + FRAME_BYTES * messages) / nodes


def sent(swarm: Swarm) -> tuple[int, int]:
    """Return the bytes of payload, and the number of messages."""
    lanes = [node.lane for node in swarm.nodes]
    return sum(lane.sent for lane in lanes), sum(lane.messages for lane in lanes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed of 250 nodes")
    parser.add_argument("--out", type=Path, help="keep one line per seed here, and resume")
    parser.add_argument("--seeds", type=int, default=20, help="(20)")
    parser.add_argument("-j", type=int, default=1, help="seeds in parallel (1)")
    args = parser.parse_args()
    nodes, seeds = (250, 1) if args.quick else (1_000, args.seeds)
    ledger = SeedLines(args.out, {"bench": "state_spread", "nodes": nodes, "changes": CHANGES})
    left = [seed for seed in range(seeds) if seed not in ledger]
    with Pool(args.j, maxtasksperchild=1) as pool:
        found = pool.imap(partial(one, nodes=nodes), left)
        for seed, figures in zip(left, found, strict=True):
            ledger.add(seed, figures)
            print(f"seed {seed}: {figures}", flush=True)
    results = ledger.figures(range(seeds))
    seconds = sorted(each for figures in results for each in figures["seconds"])
    sizes = sorted(each for figures in results for each in figures["bytes"])
    p95 = seconds[int(0.95 * len(seconds))]
    result = {
        "name": "state_spread",
        "value": p95,
        "goal": GOAL_S,
        "ok": p95 < GOAL_S and sizes[-1] <= GOAL_BYTES,
        "nodes": nodes,
        "p50_s": seconds[len(seconds) // 2],
        "most_s": seconds[-1],
        "bytes_p50": sizes[len(sizes) // 2],
        "bytes_most": sizes[-1],
        "bytes_goal": GOAL_BYTES,
        "framed_most": max(each for figures in results for each in figures["framed"]),
        "changes": len(seconds),
        "seeds": seeds,
        "cpu_s": round(sum(figures["cpu_s"] for figures in results), 1),
    }
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
