"""A thousand nodes at home: joining, publishing a thousand keys, churn, and the loss of a third.

Light nodes (`bench/worlds/ring.py`): the cores of `dht/` over the links of home volunteers and
the latencies of the core matrix; a link costs four round trips. Parts with seeds of their own:

joined    all nodes join by the protocol, through three that are present; one publishes 100 keys,
          and 500 look-ups start from random nodes. `ok`: all found, p95 under 2 s virtual, and no
          record more than 1.3 x ceil(log2(1000) / b) hops away, with b = 4, the bits by which a
          reply with the k = 20 nearest comes closer; the first hop is to an own contact.
publish   settled nodes; one publishes 1,000 keys. `ok`: under 30 s virtual, and at most 20
          `dht.store` for 100 keys and a replica set: 20 times the messages per node for each
          100 of its records, rounded up; `dht.find` are counted separately. Then 30 % of all
          nodes leave at once, and 300 look-ups follow. `ok`: 99.5 % found.
churn     settled nodes, of which 30 % leave within an hour, one by one, while as many others join
          by the protocol; ten publishers that stay publish ten keys each every 20 min. 400
          look-ups are spread over the hour. `ok`: 99.5 % found.

`value` is the lower of both shares found, goal 0.995. `--out FILE` keeps one line per seed, and
resumes there after a stop. `--quick` is one seed of 250 nodes in each part.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil, floor, log2
from pathlib import Path
from statistics import mean
from typing import Any, Final

from worlds.ring import Got, Ring, blob_record
from worlds.ringnode import RingNode

from shoal.dht import defaults
from shoal.dht.publishing.walk import Walk
from shoal.netsim.seeds import Figures, measure

MEASURES = ("dht", "netsim", "transport", "bench/worlds/ring.py", "bench/worlds/ringnode.py")

GONE: Final = 0.3
HOUR_S: Final = 3_600.0
REPUBLISH_S: Final = 1_200.0
GOALS: Final = {"found": 0.995, "p95_s": 2.0, "hops": 1.3, "publish_s": 30.0, "messages": 20.0}


def ring_of(nodes: int, seed: int) -> Ring:
    ring = Ring(seed)
    for number in range(nodes):
        ring.add(f"v{number}")
    return ring


def look(ring: Ring, numbers: int, count: int) -> list[Got]:
    """Look up random keys, among the first `numbers`, from random nodes."""
    keys = [blob_record(number).key for number in range(numbers)]
    asked = [(ring.random.choice(ring.up()), ring.random.choice(keys)) for _ in range(count)]
    return ring.get_all(asked)


def summary(got: Sequence[Got]) -> Figures:
    seconds = sorted(each.seconds for each in got)
    return {
        "found": mean(each.found for each in got),
        "p50_s": seconds[len(seconds) // 2],
        "p95_s": seconds[int(0.95 * len(seconds))],
        "hops": max(each.hops for each in got),
        "mean_hops": mean(each.hops for each in got),
        "queries": mean(each.queries for each in got),
    }


def _seeded(work: Callable[[int, int], Figures], nodes: int, seed: int) -> Figures:
    figures: Figures = work(seed, nodes)
    return figures


def say(name: str, line: str) -> None:
    """Print the progress of a part."""
    print(f"{name}: {line}", flush=True)


def joined(seed: int, nodes: int) -> Figures:
    began = time.process_time()
    ring = ring_of(nodes, seed)
    ring.join()
    cpu = time.process_time() - began
    ring.publish(ring.nodes[0], [blob_record(number, now=ring.now) for number in range(100)])
    got = look(ring, 100, 500)
    return {
        **summary(got),
        "contacts": mean(len(node.table) for node in ring.nodes),
        "join_cpu_s": cpu,
        "cpu_s": time.process_time() - began,
    }


def messages(walk: Walk) -> float:
    """Return the `dht.store` calls for 100 keys and a replica set of 20."""
    records: Counter[str] = Counter()
    for done in walk.results.values():
        records.update(done.kept + done.failed + list(done.refused))
    hundreds = sum(ceil(count / 100) for count in records.values())
    return defaults.REGION_NODES * walk.stores / hundreds


def publish(seed: int, nodes: int) -> Figures:
    began = time.process_time()
    ring = ring_of(nodes, seed)
    ring.settle()
    start = ring.now
    walk = ring.publish(ring.nodes[0], [blob_record(number) for number in range(1_000)])
    seconds = ring.now - start
    before = summary(look(ring, 1_000, 300))
    ring.crash(GONE)
    after = summary(look(ring, 1_000, 300))
    return {
        "publish_s": seconds,
        "messages": messages(walk),
        "finds": walk.finds,
        "stores": walk.stores,
        "replicas": mean(len(done.kept) for done in walk.results.values()),
        **before,
        "gone_found": after["found"],
        "gone_p95_s": after["p95_s"],
        "cpu_s": time.process_time() - began,
    }


def churn(seed: int, nodes: int) -> Figures:
    """Run an hour of departures and joins in turn, with look-ups between them."""
    began = time.process_time()
    ring = ring_of(nodes, seed)
    ring.settle()
    publishers = ring.nodes[:10]
    walks: list[Walk] = []
    for index, node in enumerate(publishers):
        announce(ring, index, node, walks)
    ring.advance(60.0)
    changes, lookups = round(GONE * nodes), 400
    events = sorted(
        [(HOUR_S * (n + 0.5) / changes, "change") for n in range(changes)]
        + [(HOUR_S * (n + 0.5) / lookups, "look") for n in range(lookups)]
        + [
            (REPUBLISH_S * turn + REPUBLISH_S * index / 10, f"publish {index}")
            for turn in (1, 2)
            for index in range(10)
        ]
        + [(HOUR_S * (n + 0.5) / nodes, f"refresh {n}") for n in range(nodes)]
    )
    results: dict[int, Got] = {}
    start = ring.now
    for when, what in events:
        ring.advance(max(start + when - ring.now, 0.0))
        word, _, number = what.partition(" ")
        if word == "change":
            change(ring, publishers)
        elif word == "look":
            key = blob_record(ring.random.randrange(100)).key
            ring.get(ring.random.choice(ring.up()), key, len(results), results)
        elif word == "publish":
            announce(ring, int(number), publishers[int(number)], walks)
        elif ring.hosts[ring.nodes[int(number)].contact.peer].up:
            node = ring.nodes[int(number)]
            ring.call(node, node.refresh)
    ring.advance(60.0)
    return {
        **summary(list(results.values())),
        "walks": len(walks),
        "cpu_s": time.process_time() - began,
    }


def announce(ring: Ring, index: int, node: RingNode, walks: list[Walk]) -> None:
    """Let a publisher seal its ten records again, and publish them."""
    mine = range(10 * index, 10 * index + 10)
    records = [blob_record(n, author=index + 1, now=ring.now, ttl=3_600) for n in mine]
    ring.begin(node, records, walks)


def change(ring: Ring, publishers: Sequence[RingNode]) -> None:
    """Let one node go without a word, and one come."""
    ring.crash(1 / len(ring.nodes), publishers)
    known = [node.contact for node in ring.random.sample(ring.up(), 3)]
    ring.enter(ring.add(f"v{len(ring.nodes)}"), known)


def worst(figures: Sequence[Figures], name: str) -> float:
    return round(max(float(each[name]) for each in figures), 3)


def average(figures: Sequence[Figures], name: str) -> float:
    return round(mean(float(each[name]) for each in figures), 5)


def result_of(nodes: int, parts: dict[str, list[Figures]]) -> dict[str, Any]:
    first, second, third = parts["joined"], parts["publish"], parts["churn"]
    bound = GOALS["hops"] * ceil(log2(nodes) / floor(log2(defaults.K)))
    found = {"gone": average(second, "gone_found"), "churn": average(third, "found")}
    whole = {"joined": average(first, "found"), "settled": average(second, "found")}
    return {
        "name": "dht_scale",
        "value": min(found.values()),
        "goal": GOALS["found"],
        "ok": min(found.values()) >= GOALS["found"]
        and whole["joined"] == 1.0
        and worst(first, "hops") <= bound
        and worst(first, "p95_s") < GOALS["p95_s"]
        and worst(second, "publish_s") < GOALS["publish_s"]
        and worst(second, "messages") <= GOALS["messages"],
        "nodes": nodes,
        "found": whole | found,
        "joined_p50_s": worst(first, "p50_s"),
        "joined_p95_s": worst(first, "p95_s"),
        "joined_hops": worst(first, "hops"),
        "joined_mean_hops": average(first, "mean_hops"),
        "hops_bound": round(bound, 2),
        "contacts": average(first, "contacts"),
        "publish_s": worst(second, "publish_s"),
        "messages": worst(second, "messages"),
        "finds": average(second, "finds"),
        "stores": average(second, "stores"),
        "replicas": average(second, "replicas"),
        "gone_p95_s": worst(second, "gone_p95_s"),
        "churn_p95_s": worst(third, "p95_s"),
        "seeds": {name: len(figures) for name, figures in parts.items()},
        "cpu_s": round(sum(each["cpu_s"] for part in parts.values() for each in part), 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed of 250 nodes in each part")
    parser.add_argument("--out", type=Path, help="keep one line per seed here, and resume")
    parser.add_argument("--seeds", type=int, default=20, help="seeds of publishing and churn (20)")
    parser.add_argument("--joined", type=int, default=3, help="seeds of joining (3)")
    args = parser.parse_args()
    nodes = 250 if args.quick else 1_000
    plan = {
        "joined": (joined, args.joined),
        "publish": (publish, args.seeds),
        "churn": (churn, args.seeds),
    }
    parts = {
        name: measure(
            partial(_seeded, work, nodes),
            range(1 if args.quick else seeds),
            settings={"bench": "dht_scale", "part": name, "nodes": nodes},
            path=args.out,
            say=partial(say, name),
        )
        for name, (work, seeds) in plan.items()
    }
    result = result_of(nodes, parts)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
