"""Malicious nodes among a thousand: 20 % of all at random, or 45 with keys ground next to one key.

Light nodes as in `dht_scale.py`, settled. Liars claim to serve. They acknowledge stored records but
keep none. For every key they claim that others provide it: each names 16 authors that it has made
up, with correctly signed records, as many as end a look-up. Asked for nodes near a key, each names
the 5 nearest liars and 15 ghosts. Ghosts are contacts in networks of their own that do not exist,
drawn from the 200 nearest of 40,000 each time; most are nearer than any honest node. An honest node
publishes, then a hundred look-ups start from random honest nodes. Each ends when it has found 16
authors, or has no node left to ask. Attacks:

random    250 liars beside 1,000 honest nodes, which met all in a random order; a hundred keys.
many      45 identities whose keys share 12 bits with the one published key, in as many networks,
          and which every node has met before all others.
few       the same from three networks (/24).
puppets   as `random`, but two of three ghosts reply: each liar's machine runs as many nodes next
          to any key as it likes. This attack has no goal; three seeds show its effect.

A look-up succeeds if it finds the honest author's record within 10 s, when applications give up.

The defences are subnet limits in the table and in the query, buckets that are spread evenly over
their range, disjoint paths with separate query budgets, publication to the region, a random order
of its nodes, doubt in nodes that have named dead contacts, and several witnesses before a look-up
counts as complete.

`value` is the share found under each attack with the defences on, the mean of the seeds; each has
its own `goal`. `ok` also requires that with the defences off each attack stays below its goal.
`--out FILE` keeps one line per seed, and resumes there after a stop. `--quick` is one seed.
"""

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Final

from worlds.ring import Ring, blob_record, ground

from shoal.dht.lookup.query import LookupSettings
from shoal.netsim.seeds import Figures, measure

MEASURES = ("dht", "netsim", "transport", "bench/worlds/ring.py")

HONEST, RANDOM, GROUND = 1_000, 250, 45
BITS: Final = 12
NETWORKS: Final = 3
LOOKUPS: Final = 100
ENOUGH: Final = 16
WITHIN_S: Final = 10.0
GROUND_NEAR: Final = ("many", "few")
MARKS: Final = {"random": 0.99, "many": 0.95, "few": 0.95}
PUPPETS: Final = "puppets"
PUPPET_SEEDS: Final = 3
DEFENCELESS: Final = LookupSettings(
    paths=1, random_order=False, subnet_limits=False, doubt=False, shares=False, witnesses=False
)


def ring_of(attack: str, seed: int, defended: bool) -> Ring:
    ring = Ring(
        seed,
        settings=LookupSettings() if defended else DEFENCELESS,
        subnet_limits=defended,
        spread=defended,
    )
    for number in range(HONEST):
        ring.add(f"v{number}")
    if attack not in GROUND_NEAR:
        for number in range(RANDOM):
            ring.add(f"liar{number}", liar=True)
    else:
        keys = ground(ring.random, blob_record(0).key, GROUND, BITS)
        for number, key in enumerate(keys):
            network = f"9.9.{number % NETWORKS}" if attack == "few" else ""
            ring.add(f"liar{number}", liar=True, key=key, network=network)
    ring.conspire(puppets=attack == PUPPETS)
    ring.settle(first=ring.liars if attack in GROUND_NEAR else ())
    return ring


def _seeded(attack: str, defended: bool, seed: int) -> Figures:
    return one(attack, seed, defended)


def say(name: str, line: str) -> None:
    """Print the progress of an attack."""
    print(f"{name}: {line}", flush=True)


def one(attack: str, seed: int, defended: bool) -> Figures:
    began = time.process_time()
    ring = ring_of(attack, seed, defended)
    records = [blob_record(number) for number in range(1 if attack in GROUND_NEAR else 100)]
    ring.claimed = {record.key: number for number, record in enumerate(records)}
    walk = ring.publish(ring.nodes[0], records)
    honest = {node.contact.peer for node in ring.nodes}
    asked = [
        (ring.random.choice(ring.nodes), ring.random.choice(records).key) for _ in range(LOOKUPS)
    ]
    got = ring.get_all(asked, enough=ENOUGH, within=WITHIN_S)
    seconds = sorted(each.seconds for each in got)
    return {
        "found": mean(each.found for each in got),
        "replicas": mean(len(honest.intersection(done.kept)) for done in walk.results.values()),
        "queries": mean(each.queries for each in got),
        "p95_s": seconds[int(0.95 * len(seconds))],
        "cpu_s": time.process_time() - began,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed")
    parser.add_argument("--out", type=Path, help="keep one line per seed here, and resume")
    parser.add_argument("--seeds", type=int, default=20, help="of each attack (20)")
    args = parser.parse_args()
    table: dict[str, dict[str, float]] = {}
    cpu = 0.0
    for attack in (*MARKS, PUPPETS):
        most = 1 if args.quick else PUPPET_SEEDS if attack == PUPPETS else args.seeds
        for defended in (True, False):
            figures = measure(
                partial(_seeded, attack, defended),
                range(min(most, args.seeds)),
                settings={"bench": "dht_attack", "attack": attack, "defended": defended},
                path=args.out,
                say=partial(say, f"{attack}, {defended}"),
            )
            cpu += sum(each["cpu_s"] for each in figures)
            row = table.setdefault(attack, {})
            for name in ("found", "replicas", "queries", "p95_s"):
                value = round(mean(each[name] for each in figures), 4)
                row[name if defended else f"{name}_off"] = value
    result = {
        "name": "dht_attack",
        "value": {attack: table[attack]["found"] for attack in MARKS},
        "goal": MARKS,
        "ok": all(
            table[attack]["found_off"] < mark <= table[attack]["found"]
            for attack, mark in MARKS.items()
        ),
        "attacks": table,
        "seeds": 1 if args.quick else args.seeds,
        "cpu_s": round(cpu, 1),
    }
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
