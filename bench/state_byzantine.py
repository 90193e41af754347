"""Replication with f liars among n nodes, for any f below n: the effect on the feeds of the others.

Light nodes over the links of home volunteers, all linked with each other: 2 to 12 of them, of which
all but one may be liars (`bench/worlds/twofaced.py`). For 20 s honest nodes write, change and
delete facts. Meanwhile each liar shows two histories of its feeds, forks them, reuses ids, signs
nonsense, deletes, floods, exceeds the limits of its kinds and begins new epochs. As a relay it
withholds and replays entries, promises entries that do not exist, claims that nothing differs,
forges signatures or sends garbage, depending on its mood, and continues to the end. Then honest
nodes have a minute.

For each seed these must hold: all honest nodes have the same digest of the authors that they keep;
each has the facts of each honest author as it wrote them; at any second, no feed in any archive
exceeds the limits of its kind, and no archive the budget. `value` is the number of seeds in which
something fails; goal 0. `ok` also requires that without the proof of forks honest digests differ in
at least half of the seeds that have liars beside two or more honest nodes. `--out FILE` keeps one
line per seed, and resumes there after a stop. `-j` seeds in parallel; `--quick` is 10 seeds; CI has
`--seeds 50`.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any, Final

import msgpack
from worlds.replicanode import ReplicaNode, at_once
from worlds.replicas import Swarm
from worlds.twofaced import ACTS, MOODS, PLOTS, TwoFaced

from shoal.netsim.seeds import Figures, SeedLines
from shoal.state import defaults
from shoal.state.feeds.entry import Entry
from shoal.state.feeds.feed import EntryOutcome, EntryVerdict, Feed
from shoal.state.feeds.kinds import KINDS
from shoal.state.replication.replica import Replica, Taken

MEASURES = (
    "state",
    "netsim",
    "transport",
    "bench/worlds/replicanode.py",
    "bench/worlds/replicas.py",
    "bench/worlds/twofaced.py",
)

ACTIVE_S, PATIENCE_S = 20, 60
MOST: Final = 12
TWINS: Final = 10


class Credulous(Replica):
    """Replica that sees no proof in two entries of one number."""

    def _compared(self, feed: Feed, stored: Entry, entry: Entry) -> EntryVerdict:
        return EntryVerdict(EntryOutcome.KNOWN)

    async def take(self, items: Sequence[Any]) -> Taken:
        return await super().take([item for item in items if len(item) == 1])


def one(seed: int, defended: bool) -> Figures:
    began = time.process_time()
    swarm = Swarm(seed, replica=Replica if defended else Credulous)
    count = swarm.random.randint(2, MOST)
    liars = swarm.random.randrange(count)
    for number in range(count):
        swarm.add(TwoFaced if number < liars else ReplicaNode)
    honest = [node for node in swarm.nodes if not isinstance(node, TwoFaced)]
    for index, node in enumerate(swarm.nodes):
        for other in swarm.nodes[:index]:
            swarm.connect(node, other)
    swarm.begin()
    written: dict[ReplicaNode, dict[tuple[str, int], dict[str, Any]]] = {
        node: {} for node in honest
    }
    over = 0
    for _ in range(ACTIVE_S):
        for node in swarm.nodes:
            if isinstance(node, TwoFaced):
                lie(swarm, node)
            elif swarm.random.random() < 0.7:
                write(swarm, node, written[node])
        swarm.advance(swarm.random.uniform(0.5, 1.5))
        over += sum(map(exceeded, honest))
    seconds = 0
    while seconds < PATIENCE_S and not (settled := swarm.same(honest) and kept(honest, written)):
        swarm.advance(1.0)
        seconds += 1
        over += sum(map(exceeded, honest))
    settled = swarm.same(honest) and kept(honest, written)
    return {
        "nodes": count,
        "liars": liars,
        "same": swarm.same(honest),
        "kept": kept(honest, written),
        "over": over,
        "settled_s": seconds if settled else None,
        "forked": sum(
            feed.forked
            for node in swarm.nodes[:liars]
            for plot in PLOTS
            if (feed := honest[0].replica.feed(node.replica.own, plot)) is not None
        ),
        "blamed": sum(len(node.blamed) for node in honest),
        "cpu_s": round(time.process_time() - began, 2),
    }


def lie(swarm: Swarm, liar: TwoFaced) -> None:
    if swarm.random.random() < 0.2:
        liar.mood = swarm.random.choice(MOODS)
    if swarm.random.random() < 0.7:
        what = swarm.random.choice(ACTS)
        swarm.call(liar, lambda: liar.act(what, swarm.now))


def write(swarm: Swarm, node: ReplicaNode, written: dict[tuple[str, int], dict[str, Any]]) -> None:
    """Write one more fact, another value of one, or delete one."""
    plot = swarm.random.choice(PLOTS)
    facts = written.setdefault(plot, {})
    key = f"fact{swarm.random.randrange(8)}"
    value = None if key in facts and swarm.random.random() < 0.2 else {"v": swarm.random.random()}
    if value is None:
        del facts[key]
    else:
        facts[key] = value
    swarm.write(node, plot, {key: value})


def kept(honest: list[ReplicaNode], written: dict[ReplicaNode, Any]) -> bool:
    """Whether each honest node has the facts of all."""
    return all(
        at_once(node.replica.facts(author.replica.own, plot))
        == {key: msgpack.packb(value) for key, value in sorted(facts.items())}
        for node in honest
        for author in honest
        for plot, facts in written[author].items()
    )


def exceeded(node: ReplicaNode) -> int:
    """Return the number of feeds and budgets beyond their limits."""
    sizes = node.archive.sizes()
    beyond = sum(
        size > KINDS[name.kind].epoch_bytes or count > KINDS[name.kind].entries
        for name, (size, count) in sizes.items()
    )
    total = sum(size for size, _ in sizes.values())
    return beyond + (total > defaults.FEEDS_BUDGET)


def run(seeds: list[int], defended: bool, path: Path | None, jobs: int) -> list[Figures]:
    ledger = SeedLines(path, {"bench": "state_byzantine", "most": MOST, "defended": defended})
    left = [seed for seed in seeds if seed not in ledger]
    with Pool(jobs, maxtasksperchild=20) as pool:
        found = pool.imap(partial(one, defended=defended), left)
        for seed, figures in zip(left, found, strict=True):
            ledger.add(seed, figures)
            print(f"seed {seed}, {'on' if defended else 'off'}: {figures}", flush=True)
    return ledger.figures(seeds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="10 seeds")
    parser.add_argument("--out", type=Path, help="keep one line per seed here, and resume")
    parser.add_argument("--seeds", type=int, default=1000, help="(1000)")
    parser.add_argument("-j", type=int, default=1, help="seeds in parallel (1)")
    args = parser.parse_args()
    seeds = 10 if args.quick else args.seeds
    results = run(list(range(seeds)), True, args.out, args.j)
    failed = [
        seed
        for seed, each in enumerate(results)
        if not each["same"] or not each["kept"] or each["over"]
    ]
    telling = [
        seed
        for seed, each in enumerate(results)
        if each["forked"] and each["nodes"] - each["liars"] > 1
    ][: TWINS if not args.quick else 3]
    twins = run(telling, False, args.out, args.j)
    red = sum(not each["same"] for each in twins)
    settled = sorted(each["settled_s"] for each in results if each["settled_s"] is not None)
    result = {
        "name": "state_byzantine",
        "value": len(failed),
        "goal": 0,
        "ok": not failed and bool(telling) and 2 * red >= len(telling),
        "failed": failed[:20],
        "seeds": seeds,
        "liars": sum(each["liars"] for each in results),
        "nodes": sum(each["nodes"] for each in results),
        "forked": sum(each["forked"] for each in results),
        "settled_p50_s": settled[len(settled) // 2] if settled else None,
        "settled_most_s": settled[-1] if settled else None,
        "without_proofs_unequal": f"{red} of {len(telling)}",
        "cpu_s": round(sum(each["cpu_s"] for each in (*results, *twins)), 1),
    }
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
