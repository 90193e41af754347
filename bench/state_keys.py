"""A million fresh keys that write: the effect on a store that keeps strangers' feeds.

Light nodes over the links of home volunteers. Honest ones form a ring, each linked with its two
neighbours and vouching for them in its `member` feed, so that distant ones are kept because others
vouch for them. Mills (`bench/worlds/keymill.py`) are each linked with two of them. Their fresh
keys all write and each vouch for 64 more, until honest nodes have heard of a million. Honest nodes
write all the time.

Four minutes after the mills have stopped, these must hold: all honest nodes keep all honest authors
with the facts that they wrote; they have the same digest of the authors that all keep; no store has
exceeded its budget at any time, by weight and by the bytes in its archive. `value` is how many of
these fail; goal 0. `ok` also requires a full store and a million keys, and that with eviction by
age alone not all honest authors are kept. `--out FILE` keeps one line per seed, and resumes there
after a stop. `-j` seeds in parallel. `--quick` is a sixteenth of the budget and of the keys.
"""

import argparse
import json
import sys
import time
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any, Final

import msgpack
from worlds.keymill import KeyMill
from worlds.replicanode import ReplicaNode, SharedReplica, at_once
from worlds.replicas import Swarm

from shoal.netsim.seeds import Figures, SeedLines
from shoal.state import defaults
from shoal.state.replication.authors import Authors
from shoal.state.replication.replica import Replica
from shoal.state.replication.vouches import VOUCHES, write_vouches

MEASURES = (
    "state",
    "netsim",
    "transport",
    "bench/worlds/keymill.py",
    "bench/worlds/replicanode.py",
    "bench/worlds/replicas.py",
)

HONEST, MILLS = 8, 5
STEP_S, QUIET_S = 5.0, 240.0
PATIENCE_S: Final = {True: 14_400.0, False: 3_600.0}  # with the defence, and without
RESUME: Final = 12  # steps after which the mills announce again
WRITES: Final = 60  # per honest node: an epoch's worth
PLOT: Final = ("member", 0)
MILLION: Final = 1_000_000


class ByAge(Authors):
    """Evicts the author that came first."""

    def _heaviest(self) -> Any:
        return next((each for each in self._kept.values() if not each.free), None)

    def _lighter(self, branch: Any) -> Any:
        return None


def one(seed: int, share: int, defended: bool) -> Figures:
    began = time.process_time()
    budget = defaults.FEEDS_BUDGET // share
    kind = Authors if defended else ByAge

    def replica(own: Any, archive: Any, **more: Any) -> Replica:
        made = SharedReplica(own, archive, **more)
        made.authors = kind(made.own, budget=budget)
        return made

    swarm = Swarm(seed, replica=replica)
    honest = [swarm.add() for _ in range(HONEST)]
    mills = [swarm.add(KeyMill) for _ in range(MILLS)]
    for index, node in enumerate(honest):
        swarm.connect(node, honest[index - 1])
    for mill in mills:
        for node in swarm.random.sample(honest, 2):
            swarm.connect(mill, node)
    swarm.begin()
    written: dict[ReplicaNode, dict[str, Any]] = {}
    for node in honest:
        keys = [other.replica.own for other in swarm.nodes if other.peer in node.links]
        written[node] = {VOUCHES: write_vouches(keys)}
        swarm.write(node, PLOT, written[node])
    swarm.advance(STEP_S)
    for mill in mills:
        for peer in list(mill.links):
            swarm.call(mill, partial(mill.lure, peer))
    over, start, named, turns = 0, swarm.now, 0, 0
    while swarm.now < start + PATIENCE_S[defended] and named < MILLION // share:
        swarm.advance(STEP_S)
        turns += 1
        if not turns % RESUME:
            for mill in mills:
                for peer in list(mill.links):
                    swarm.call(mill, partial(mill.resume, peer))
        for node in honest if turns <= WRITES else ():
            fact = {f"turn{swarm.random.randrange(4)}": {"at": turns}}
            written[node] |= fact
            swarm.write(node, PLOT, fact)
        over += sum(exceeded(node, budget) for node in honest)
        named = sum(mill.named for mill in mills)
    virtual = swarm.now - start
    full = min(len(node.replica.authors) for node in honest) * defaults.AUTHOR_LEAST / budget
    for mill in mills:
        mill.quiet = True
    swarm.advance(QUIET_S)
    honest_keys = {node.replica.own for node in honest}
    kept = sum(len(honest_keys & set(node.replica.authors.keys())) for node in honest)
    return {
        "named": named,
        "full": round(full, 3),
        "kept": kept,
        "kept_all": kept == HONEST**2,
        "same": swarm.same(honest),
        "written": kept == HONEST**2 and whole(honest, written),
        "over": over + sum(exceeded(node, budget) for node in honest),
        "virtual_s": virtual,
        "cpu_s": round(time.process_time() - began, 1),
    }


def exceeded(node: ReplicaNode, budget: int) -> bool:
    stored = sum(size for size, _ in node.archive.sizes().values())
    return node.replica.authors.total > budget or stored > budget


def whole(honest: list[ReplicaNode], written: dict[ReplicaNode, dict[str, Any]]) -> bool:
    """Whether each node has all that the others wrote."""
    return all(
        at_once(node.replica.facts(author.replica.own, PLOT))
        == {key: msgpack.packb(value) for key, value in sorted(facts.items())}
        for node in honest
        for author, facts in written.items()
    )


def run(seeds: int, share: int, defended: bool, path: Path | None, jobs: int) -> list[Figures]:
    ledger = SeedLines(path, {"bench": "state_keys", "share": share, "defended": defended})
    left = [seed for seed in range(seeds) if seed not in ledger]
    with Pool(jobs, maxtasksperchild=1) as pool:
        found = pool.imap(partial(one, share=share, defended=defended), left)
        for seed, figures in zip(left, found, strict=True):
            ledger.add(seed, figures)
            print(f"seed {seed}, {'on' if defended else 'off'}: {figures}", flush=True)
    return ledger.figures(range(seeds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a sixteenth of everything")
    parser.add_argument("--out", type=Path, help="keep one line per seed here, and resume")
    parser.add_argument("--seeds", type=int, default=3, help="(3)")
    parser.add_argument("-j", type=int, default=1, help="seeds in parallel (1)")
    args = parser.parse_args()
    share, seeds = (16, 1) if args.quick else (1, args.seeds)
    results = run(seeds, share, True, args.out, args.j)
    twins = run(1, 16, False, args.out, args.j)
    wrong = sum(
        (not each["kept_all"]) + (not each["same"]) + (not each["written"]) + each["over"]
        for each in results
    )
    result = {
        "name": "state_keys",
        "value": wrong,
        "goal": 0,
        "ok": not wrong
        and all(each["named"] >= MILLION // share and each["full"] > 0.9 for each in results)
        and not twins[0]["kept_all"],
        "keys": min(each["named"] for each in results),
        "budget_bytes": defaults.FEEDS_BUDGET // share,
        "full": min(each["full"] for each in results),
        "kept_by_age": f"{twins[0]['kept']} of {HONEST**2}",
        "virtual_s": max(each["virtual_s"] for each in results),
        "seeds": seeds,
        "cpu_s": round(sum(each["cpu_s"] for each in (*results, *twins)), 1),
    }
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
