"""Storing and finding records compared with Lattica 1.0.21 and hivemind 1.1.12, by remote nodes.

Loopback. Each system's nodes run in their usual form (ours and Lattica's in one process, hivemind's
in two per node). Stores and gets from random nodes alternate in groups. A store is complete for
Lattica when one other node has acknowledged it (`Quorum::One`), and for hivemind when its 5
replicas have. Ours is complete when as many have in each comparison, though it goes on to 20. The
get of the stored value begins at that moment, while the other replicas are still in progress, and
ends with the first record.

A node that holds the record itself would answer without a message, so a get goes to a node that
does not hold it. Of ours it is one of the half of the nodes farthest from the key that has no
record under it (`get_local` counts those that had one in the end; it has to be 0). Of hivemind's it
is one whose storage lacks it. Lattica does not tell which nodes hold a value, so a get may find it
locally, which is an advantage for Lattica. Ours are 50 nodes in each comparison, of which about 20
keep a record. Lattica has 50 as well, hivemind 8, of which 5 keep one: 50 would be 100 processes.
So ours looks for its records among six times as many nodes as hivemind does.

Then 12 nodes write to one key at the same moment, each its own value, and a reader counts. `value`
is theirs / ours of the medians, the worst of all: more than 1 is faster than both. `all_ms` is the
time until all nodes that should keep a record of ours, about 20, have acknowledged it.

The others get environments of their own below the cache folder, unless options, or
SHOAL_BENCH_LATTICA and SHOAL_BENCH_HIVEMIND, name Pythons that have them.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import trio
from worlds import others

from shoal.dht.kademlia.presence import Addressing
from shoal.dht.records.key import Key, distance, node_key
from shoal.dht.records.record import NameBody
from shoal.dht.service import Dht
from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.host.real import RealHost
from shoal.transport.identity import Identity, PeerId
from shoal.transport.link.link import Link

MEASURES = ("dht", "transport", "bench/peers/dht_sides.py")

SIDES = Path(__file__).parent / "peers" / "dht_sides.py"
LOOPBACK = "127.0.0.1"
WRITERS = 12
ROOT = "ab" * 32
NODES = 50
THEIRS = {"lattica": NODES, "hivemind": 8}  # nodes
ACKNOWLEDGED = {"lattica": 1, "hivemind": 5}  # nodes
Round = tuple[list[float], list[float]]
"""Milliseconds of the stores, and of the gets that returned the value."""


class Node:
    """Endpoint and its `Dht`, without a dialer."""

    def __init__(self) -> None:
        self.host = host = RealHost()
        self.identity = Identity.generate(host)
        self.endpoint = Endpoint(host, self.identity, admission=OpenSwarm())
        self.dht = Dht(
            host,
            self.endpoint,
            Addressing(self._connect, lambda: [self.address]),
        )

    @property
    def address(self) -> Address:
        return Address(LOOPBACK, self.endpoint.port, self.identity.peer)

    def holds(self, key: Key) -> bool:
        """Whether it has a record under the key, its own or another's."""
        now = self.host.now()
        return bool(self.dht.store.find([key], now, most=1)[0] or self.dht._records.at(key))

    async def _connect(self, peer: PeerId, addresses: Sequence[Address]) -> Link:
        return await self.endpoint.ask(peer, addresses, timeout=6)

    async def run(self, first: "Node | None", nursery: trio.Nursery) -> None:
        await nursery.start(self.endpoint.run, LOOPBACK, 0)
        await nursery.start(self.dht.run)
        if first is not None:
            await self.endpoint.dial(first.address, timeout=10)
            await self.dht.joined()


class Ours:
    """Our nodes, in this process."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.local = 0  # gets that found the record at the asking node
        self.all: list[float] = []
        self._made = 0

    async def rounds(self, count: int, kept: int) -> tuple[list[float], list[float]]:
        """Run stores and gets. A store is done after `kept` acknowledgements."""
        stores, gets = [], []
        for _ in range(count):
            self._made += 1
            body = NameBody(f"name {self._made}", ROOT, 1, 1)
            writer = random.choice(self.nodes)
            began = time.perf_counter()
            writer.dht.publish(body)
            await writer.dht.flushed(10, kept=kept)
            stores.append(1000 * (time.perf_counter() - began))
            reader = self.without(body.key, writer)
            asked = time.perf_counter()
            found = await reader.dht.find(body.key)
            took = 1000 * (time.perf_counter() - asked)
            report = await writer.dht.flushed(10)
            self.all.append(1000 * (time.perf_counter() - began))
            if report.done and found.records:
                gets.append(took)
                self.local += not found.path
        return stores, gets

    def without(self, key: Key, writer: Node) -> Node:
        """Return a node that has no record under the key, and is too far from it to get one now."""
        far = sorted(self.nodes, key=lambda node: distance(node_key(node.identity.peer), key))
        far = [node for node in far[len(far) // 2 :] if node is not writer]
        return random.choice([node for node in far if not node.holds(key)])

    async def writers(self) -> int:
        """Let each node publish a record of its own for the same name."""
        self._made += 1
        name = f"name {self._made}"
        writers = [self.nodes[number % len(self.nodes)] for number in range(WRITERS)]
        bodies = [NameBody(name, f"{number:064x}", 1, 1) for number in range(WRITERS)]
        async with trio.open_nursery() as nursery:
            for writer, body in zip(writers, bodies, strict=True):
                writer.dht.publish(body)
                nursery.start_soon(writer.dht.flushed, 10)
        found = await self.nodes[-1].dht.find(bodies[0].key, most=64, enough=WRITERS)
        return len(found.records)


class Theirs:
    """The process of another system."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, line: str) -> list[float]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return list(map(float, self._process.stdout.readline().split()))

    def rounds(self, count: int) -> tuple[list[float], list[float]]:
        found = self.ask(f"rounds {count}")
        return found[:count], found[count:]


@contextmanager
def started(python: str, name: str, nodes: int) -> Iterator[Theirs]:
    """Run another system's nodes; end them with their children."""
    command = [python, str(SIDES), name, str(nodes)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, start_new_session=True,
    ) as child:  # fmt: skip
        try:
            assert child.stdout is not None
            while (line := child.stdout.readline()) != "ready\n":
                if not line:
                    raise SystemExit(f"{name} does not start: run `{' '.join(command)}`")
            yield Theirs(child)
        finally:
            os.killpg(child.pid, 9)


async def compare(pythons: dict[str, str], rounds: int, each: int) -> dict[str, object]:
    """Return the figures of each comparison. First, both sides store and find twice as often as
    they have nodes, because a node that has never asked another has no link to it.
    """
    found: dict[str, object] = {}
    async with trio.open_nursery() as nursery:
        ours: list[Node] = []
        for _ in range(NODES):
            node = Node()
            await node.run(ours[0] if ours else None, nursery)
            ours.append(node)
        side = Ours(ours)
        await side.rounds(2 * NODES, 1)
        side.all.clear()
        side.local = 0
        for name, python in pythons.items():
            with started(python, name, THEIRS[name]) as theirs:
                theirs.rounds(2 * THEIRS[name])
                pairs = [
                    await turn(side, theirs, each, ACKNOWLEDGED[name], ours_first=bool(number % 2))
                    for number in range(rounds)
                ]
                mine, other = zip(*pairs, strict=True)
                found |= figures(name, list(mine), list(other))
                (seen,) = theirs.ask(f"writers {WRITERS}")
                found[f"writers_{name}"] = int(seen)
        found["all_ms"] = round(median(side.all), 3)
        found["get_local"] = side.local
        found["writers_ours"] = await side.writers()
        nursery.cancel_scope.cancel()
    return found


async def turn(
    ours: Ours, theirs: Theirs, each: int, kept: int, *, ours_first: bool
) -> tuple[Round, Round]:
    """Run one round of both; our loop stands still while the other works, on purpose."""
    if ours_first:
        mine = await ours.rounds(each, kept)
        return mine, theirs.rounds(each)
    other = theirs.rounds(each)
    return await ours.rounds(each, kept), other


def figures(name: str, ours: list[Round], theirs: list[Round]) -> dict[str, object]:
    """Return medians over all rounds, the number of gets that returned the value, and the
    ratios.
    """
    found: dict[str, object] = {}
    for index, what in enumerate(("store", "get")):
        mine = [ms for each in ours for ms in each[index]]
        found[f"{name}_ours_{what}_ms"] = round(median(mine), 3)
        other = [ms for each in theirs for ms in each[index]]
        found[f"{name}_theirs_{what}_ms"] = round(median(other), 3)
        found[f"{name}_{what}_ratio"] = round(median(other) / median(mine), 3)
    found[f"{name}_ours_found"] = sum(len(each[1]) for each in ours)
    found[f"{name}_of"] = sum(len(each[0]) for each in ours)
    found[f"{name}_theirs_found"] = sum(len(each[1]) for each in theirs)
    return found


def verdict(found: dict[str, object]) -> dict[str, object]:
    ratios = {key: float(str(value)) for key, value in found.items() if key.endswith("_ratio")}
    whole = all(
        found[key] == found[key.replace("_ours_found", "_of")]
        for key in found
        if key.endswith("_ours_found")
    )
    ok = whole and min(ratios.values(), default=0) > 1
    ok = ok and found["writers_ours"] == WRITERS and not found["get_local"]
    worst = round(min(ratios.values(), default=0.0), 3)
    result = {"name": "dht_vs_peers", "value": worst, "goal": 1, "ok": ok}
    return result | found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    for name in THEIRS:
        others.option(parser, name)
    args = parser.parse_args()
    given = {name: others.python(name, getattr(args, name)) for name in THEIRS}
    rounds, each = (3, 10) if args.quick else (6, 25)
    found = trio.run(compare, given, rounds, each)
    print("units: milliseconds; found: gets that returned the value, of how many")
    result = verdict(found)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
