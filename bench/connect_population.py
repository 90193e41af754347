"""Connections among 200 home volunteers: which pairs connect, by which path kind, and how soon.

The homes of `home-volunteers-2026` in their shares, without those that others can reach, over their
links and the latencies of the core matrix. Each is an endpoint with its whole dialer and default
options. For every 20 homes there is one node with a public address. Every home joins by three of
these. Then 2,000 pairs of homes per seed, each class with each class equally often, dial each other
half a second apart. A link is dropped when it is direct, or after 25 s. Total figures are weighted
by the shares of the classes, so that they describe two volunteers drawn at random; the table lists
each class of pair.

`value` is the share of pairs that connect within 15 s, excluding pairs with a network that only
lets out the web; goal 0.999. `ok` also requires that 0.99 of the pairs that can be direct, with the
same weights, are direct 15 s after the dial began, and that no node relays more than 64 kB/s in any
10 s, headers included. `sent_kb_s` is all that a reachable node's network card sent in its busiest
10 s, including its own links, replies and dial-backs.

`--out FILE` keeps one line per seed, and resumes there after a stop. `--quick` is 2 seeds of 300
pairs instead of 5 of 2,000. `-j N` runs N seeds in parallel.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from math import floor
from pathlib import Path
from random import Random
from typing import Any, Final

import trio
from worlds.town import Meeting, Town, meet
from worlds.transportnode import TransportNode

from shoal.netsim.host import Host
from shoal.netsim.population import latency
from shoal.netsim.population.mix import Draw, Population, VolunteerKind, build, draw, load
from shoal.netsim.seeds import Figures, SeedLines
from shoal.netsim.trace.trace import SENT, Record, Trace
from shoal.netsim.world import World
from shoal.transport.relay.defaults import BURST_S
from shoal.transport.strategies.dialer import Strategies

MEASURES = ("transport", "netsim")

PEOPLE: Final = 200
HOMES_PER_REACHABLE: Final = 20
WINDOW_S: Final = 10.0
SETTLE_S: Final = 90.0
"""Seconds after the last volunteer has joined, to measure reachability and find reservations."""
PACE_S: Final = 0.5
JOIN_S: Final = 0.4
"""Seconds between two joins."""
SOON_S: Final = 15.0
GOALS: Final = {"connected": 0.999, "direct": 0.99, "rate": 64_000 * (1 + BURST_S / WINDOW_S)}
PUBLISHED: Final = 0.70
STRATEGIES: Final = Strategies(lan=False)  # every home has one computer


def quotas(kinds: Sequence[VolunteerKind], count: int) -> list[VolunteerKind]:
    """Return `count` volunteers by the shares of the classes, by the largest remainder."""
    exact = {kind.name: kind.share * count for kind in kinds}
    least = {name: floor(value) for name, value in exact.items()}
    left = count - sum(least.values())
    for name in sorted(exact, key=lambda name: least[name] - exact[name])[:left]:
        least[name] += 1
    return [kind for kind in kinds for _ in range(least[kind.name])]


def draw_one(people: Population, kind: VolunteerKind, random: Random) -> Draw:
    alone = replace(people, kinds=(replace(kind, share=1.0),))
    return draw(alone, random, latency.matrix())


def homes(kinds: Sequence[VolunteerKind]) -> list[VolunteerKind]:
    """Return the kinds that other nodes cannot reach, with shares that sum to 1."""
    found = [kind for kind in kinds if kind.nat and not kind.forward]
    whole = sum(kind.share for kind in found)
    return [replace(kind, share=kind.share / whole) for kind in found]


def theory(one: Draw, other: Draw) -> str:
    """Return why a pair cannot be direct; "" if it can."""
    a, b = one.kind.punch, other.kind.punch
    if "blocked" in (a, b):
        return "UDP blocked, TCP 443 only"
    if (a, b) == ("symmetric", "symmetric") and not (one.ipv6 and other.ipv6):
        return "random symmetric on both sides"
    return ""


class Sent(Trace):
    """Bytes that some hosts have sent, by windows of `WINDOW_S`."""

    def __init__(self) -> None:
        super().__init__()
        self.hosts: set[str] = set()
        self.windows: Counter[tuple[str, int]] = Counter()

    def add(self, record: Record) -> None:
        time, what, host, _, _, _, size, _ = record
        if what == SENT and host in self.hosts:
            self.windows[host, int(time / WINDOW_S)] += size


class Run:
    """One seed."""

    def __init__(self, seed: int, people: int, pairs: int) -> None:
        self.sent = Sent()
        self.world = World(seed, latency=latency.matrix(), trace=self.sent)
        self.town = Town(self.world)
        self.random = self.world.streams.get("", "pairs")
        self.classes: dict[str, list[TransportNode]] = {}
        self.drawn: dict[str, Draw] = {}
        self.found: list[dict[str, Any]] = []
        self.under_way: list[set[str]] = []
        self.reachable: list[TransportNode] = []
        # maximum of bytes per second that one node has relayed in `WINDOW_S`
        self.relayed_most = 0.0
        self._people = people
        self._pairs = pairs

    def go(self) -> None:
        self.world.run(self.main)

    async def main(self) -> None:
        async with trio.open_nursery() as watching:
            watching.start_soon(self.watch)
            await self.settle()
            async with trio.open_nursery() as nursery:
                for one, other in self.pairs():
                    nursery.start_soon(self.pair, one, other)
                    await trio.sleep(PACE_S)
            watching.cancel_scope.cancel()

    async def watch(self) -> None:
        """Measure what each reachable node relays."""
        before: Counter[str] = Counter()
        while True:
            await trio.sleep(WINDOW_S)
            for node in self.reachable:
                now = node.dialer.relaying.book.figures().spent
                rate = (now - before[node.peer]) / WINDOW_S
                self.relayed_most = max(self.relayed_most, rate)
                before[node.peer] = now

    async def settle(self) -> None:
        population = load()
        kinds = quotas(homes(population.kinds), self._people)
        public = next(kind for kind in population.kinds if not kind.nat)
        every = [public] * (self._people // HOMES_PER_REACHABLE) + kinds
        for number, kind in enumerate(every):
            name = f"v{number}"
            drawn = draw_one(population, kind, self.world.streams.get(name, "population"))
            host = build(self.world, name, drawn).host
            assert isinstance(host, Host)
            node = await self.town.node(host, strategies=STRATEGIES)
            self.drawn[node.peer] = drawn
            if kind is public:
                self.reachable.append(node)
                self.sent.hosts.add(host.name)
            else:
                self.classes.setdefault(kind.name, []).append(node)
        async with trio.open_nursery() as nursery:
            for node in self.town.nodes.values():
                nursery.start_soon(self.introduce, node)
                await trio.sleep(JOIN_S)
        await trio.sleep(SETTLE_S)

    async def introduce(self, node: TransportNode) -> None:
        """Introduce a node by three reachable ones, at their listening address or on TCP 443."""
        others = self.random.sample(self.reachable, 3)
        await self.town.introduce(node, others, web=True)

    def pairs(self) -> Iterator[tuple[TransportNode, TransportNode]]:
        """Yield each class with each class in turn, in random order."""
        cells = list(product(self.classes.values(), repeat=2))
        chosen = [cells[number % len(cells)] for number in range(self._pairs)]
        self.random.shuffle(chosen)
        for one, other in chosen:
            a, b = self.random.choice(one), self.random.choice(other)
            while a is b or {a.peer, b.peer} in self.under_way:
                a, b = self.random.choice(one), self.random.choice(other)
            yield a, b

    async def pair(self, one: TransportNode, other: TransportNode) -> None:
        self.under_way.append({one.peer, other.peer})
        met, link = await meet(one, other)
        self.under_way.remove({one.peer, other.peer})
        if link is not None and not met.known:
            link.close()
        self.found.append(self.line(one, other, met))

    def line(self, one: TransportNode, other: TransportNode, met: Meeting) -> dict[str, Any]:
        a, b = self.drawn[one.peer], self.drawn[other.peer]
        return {
            "classes": (a.kind.name, b.kind.name),
            "six": a.ipv6 and b.ipv6,
            "known": met.known,
            "connected": met.connected,
            "direct": met.direct,
            "way": f"{met.path_kind} {met.medium}{'6' if met.six else ''}".strip(),
            "why": met.code or met.why,
            "theory": theory(a, b),
            "web": "blocked" in (a.kind.punch, b.kind.punch),
        }


def one_seed(seed: int, people: int, pairs: int) -> Figures:
    began = time.process_time()
    run = Run(seed, people, pairs)
    run.go()
    sent = max(run.sent.windows.values(), default=0) / WINDOW_S
    return {
        "cpu_s": time.process_time() - began,
        "pairs": run.found,
        "relayed": run.relayed_most,
        "sent": sent,
    }


# Results.


def shares() -> Mapping[str, float]:
    return {kind.name: kind.share for kind in homes(load().kinds)}


def weighted(lines: Sequence[dict[str, Any]], key: str) -> float:
    """Return the share of pairs for which `key` holds, each class of pair weighted by its real
    share.
    """
    share = shares()
    cells: dict[tuple[str, str], list[bool]] = {}
    for line in lines:
        cells.setdefault(tuple(line["classes"]), []).append(bool(line[key]))
    whole = sum(share[a] * share[b] for a, b in cells)
    return sum(
        share[a] * share[b] / whole * sum(holds) / len(holds) for (a, b), holds in cells.items()
    )


def quantile(lines: Sequence[dict[str, Any]], part: float, *, since: str = "") -> float:
    """Return a quantile of the time to the direct path, with pairs weighted by their real shares:
    from the start of the dial, or from first contact (`since` is "connected").
    """
    share = shares()
    counts = Counter(tuple(line["classes"]) for line in lines)
    values = sorted(
        (line["direct"] - (line[since] if since else 0.0), share[a] * share[b] / counts[a, b])
        for line in lines
        if line["direct"] is not None and not line["known"]
        for a, b in [line["classes"]]
    )
    target, sum_ = part * sum(weight for _, weight in values), 0.0
    for value, weight in values:
        sum_ += weight
        if sum_ >= target:
            return float(value)
    return float("nan")


def table(lines: Sequence[dict[str, Any]]) -> list[str]:
    """Return one line per class of pair, whichever side dialled."""
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in lines:
        a, b = sorted(line["classes"])
        cells.setdefault((a, b), []).append(line)
    head = f"{'pair of classes':38}{'pairs':>6}{'conn.':>8}{'direct':>8}{'p50 s':>7}{'p95 s':>7}"
    rows = [head + "  not direct, because"]
    for (a, b), found in sorted(cells.items()):
        times = sorted(x["direct"] for x in found if x["direct"] is not None and not x["known"])
        p50, p95 = (
            (f"{times[int(p * (len(times) - 1))]:.2f}" if times else "-") for p in (0.5, 0.95)
        )
        connected = sum(x["connected"] is not None for x in found) / len(found)
        direct = sum(x["direct"] is not None for x in found) / len(found)
        why = Counter(x["theory"] or x["why"] for x in found if x["direct"] is None)
        words = "; ".join(f"{count} {reason}" for reason, count in why.most_common(4))
        rows.append(
            f"{a + ' x ' + b:38}{len(found):6}{100 * connected:7.1f}%{100 * direct:7.1f}%"
            f"{p50:>7}{p95:>7}  {words}"
        )
    return rows


def ways(lines: Sequence[dict[str, Any]]) -> str:
    counted = Counter(line["way"] or "none" for line in lines)
    return ", ".join(f"{path_kind} {count}" for path_kind, count in counted.most_common())


def measure(seeds: int, people: int, pairs: int, path: Path | None, jobs: int) -> list[Figures]:
    """Return one line per seed, as `netsim.seeds.measure` keeps them; several in parallel."""
    settings = {"bench": "connect_population", "people": people, "pairs": pairs}
    ledger = SeedLines(path, settings)
    missing = [seed for seed in range(seeds) if seed not in ledger]
    if jobs <= 1:
        for seed in missing:
            ledger.add(seed, one_seed(seed, people, pairs))
            print(f"seed {seed} done", file=sys.stderr)
    else:
        with ProcessPoolExecutor(jobs) as pool:
            running = {seed: pool.submit(one_seed, seed, people, pairs) for seed in missing}
            for seed, future in running.items():
                ledger.add(seed, future.result())
                print(f"seed {seed} done", file=sys.stderr)
    return ledger.figures(range(seeds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2 seeds of 300 pairs")
    parser.add_argument("--out", type=Path, help="keep one line per seed here, and resume")
    parser.add_argument("--seeds", type=int, help="this number of seeds instead")
    parser.add_argument("--pairs", type=int, help="this number of pairs per seed instead")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="seeds in parallel")
    args = parser.parse_args()
    seeds, pairs = (2, 300) if args.quick else (5, 2000)
    seeds, pairs = args.seeds or seeds, args.pairs or pairs
    figures = measure(seeds, PEOPLE, pairs, args.out, args.jobs)
    lines = [
        line
        | {
            "is_connected": line["connected"] is not None,
            "is_direct": line["direct"] is not None,
        }
        for item in figures
        for line in item["pairs"]
    ]
    print("\n".join(table(lines)))
    print("\ncarried by:", ways(lines))
    can = [line | {"can": not line["theory"]} for line in lines]
    free = [line for line in lines if not line["web"]]
    able = [
        line | {"soon": line["is_direct"] and line["direct"] <= SOON_S}
        for line in lines
        if not line["theory"]
    ]
    connected = sum(line["is_connected"] for line in free) / len(free)
    direct = weighted(able, "soon")
    relayed, sent = (max(item[key] for item in figures) for key in ("relayed", "sent"))
    p50, p95 = (quantile(lines, part, since="connected") for part in (0.5, 0.95))
    result = {
        "name": "connect_population",
        "value": round(connected, 5),
        "goal": GOALS["connected"],
        "ok": connected >= GOALS["connected"]
        and direct >= GOALS["direct"]
        and relayed <= GOALS["rate"],
        "direct_of_able": round(direct, 4),
        "relayed_kb_s": round(relayed / 1000, 1),
        "sent_kb_s": round(sent / 1000, 1),
        "connected_of_all": round(sum(x["is_connected"] for x in lines) / len(lines), 5),
        "direct": round(weighted(lines, "is_direct"), 4),
        "direct_of_classes": round(sum(line["is_direct"] for line in lines) / len(lines), 4),
        "possible": round(weighted(can, "can"), 4),
        "p50_s": round(p50, 3),
        "p95_s": round(p95, 3),
        "from_dial_p50_s": round(quantile(lines, 0.5), 3),
        "from_dial_p95_s": round(quantile(lines, 0.95), 3),
        "dcutr": PUBLISHED,
        "pairs": len(lines),
        "cpu_s": round(sum(item["cpu_s"] for item in figures), 1),
    }
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
