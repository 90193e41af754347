"""Ten thousand light hosts with the NATs and links of the population: events per second.

Each host sends a request to a random public one every ten virtual seconds, and gets a reply. Events
are everything on the heap: a datagram out of a home and back is eight. The figures are by CPU time
of one process, garbage collections included, traces off; the figure with the trace's hash on is
beside it. The other side, in the same run, is a bare heap of as many timers that do nothing, which
is the maximum for the machine. `value` is the share of the bare heap's events per second, by
medians over the seeds; goal 0.045.

`--out FILE` keeps one line per seed, and resumes there after a stop. `--quick` is one seed of 2,000
hosts, with its own goal: 0.05.
"""

import argparse
import gc
import json
import resource
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from statistics import median

from shoal.netsim.clock import Events
from shoal.netsim.light import Sends
from shoal.netsim.network.packet import Addr
from shoal.netsim.population import latency
from shoal.netsim.population.mix import populate
from shoal.netsim.seeds import Figures, measure
from shoal.netsim.trace.trace import Trace
from shoal.netsim.world import World

MEASURES = ("netsim",)

GOAL, QUICK_GOAL = 0.045, 0.05
PERIOD_S = 10.0
WARM_S, MEASURED_S = 10.0, 20.0


class Asker:
    """Core that asks a random one of `public` every period, and replies to requests."""

    __slots__ = ("_public", "_random", "answers", "wake_at")

    def __init__(self, random: Random, public: list[Addr]) -> None:
        self._random = random
        self._public = public
        self.wake_at = random.random() * PERIOD_S
        self.answers = 0

    def on_datagram(self, now: float, data: bytes, source: Addr) -> Sends:
        if data == b"ask":
            return ((b"answer" * 20, source),)
        self.answers += 1
        return ()

    def on_time(self, now: float) -> Sends:
        self.wake_at = now + PERIOD_S
        return ((b"ask", self._public[int(self._random.random() * len(self._public))]),)


def build(hosts: int, seed: int, trace: Trace | None) -> tuple[World, list[Asker]]:
    world = World(seed, trace=trace, latency=latency.matrix())
    public: list[Addr] = []
    askers: list[Asker] = []

    def core(name: str) -> Asker:
        askers.append(Asker(world.streams.get(name, "core"), public))
        return askers[-1]

    people = populate(world, hosts, core=core)
    public += [world.lights[one.name].address for one in people if one.kind == "public"]
    return world, askers


def resident_kib() -> float:
    return float(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1024


def cpu_of(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def bare_rate(hosts: int, count: int) -> float:
    """Return the events per second of a heap on which every host's timer only schedules itself
    again.
    """
    events = Events()

    def again(turn: float) -> None:
        events.at(events.now + turn, again, turn)

    for number in range(hosts):
        events.at(number / hosts, again, 1.0)
    seconds = cpu_of(lambda: events.run_until(count / hosts))
    return events.count / seconds


def rate(hosts: int, seed: int, *, traced: bool) -> Figures:
    before = resident_kib()
    began = time.process_time()
    world, askers = build(hosts, seed, Trace() if traced else None)
    built = time.process_time() - began
    world.advance(WARM_S)
    grown = resident_kib() - before
    count, sent = world.events.count, world.network.sent
    seconds = cpu_of(lambda: world.advance(WARM_S + MEASURED_S))
    answers = sum(asker.answers for asker in askers)
    return {
        "events_per_s": (world.events.count - count) / seconds,
        "sends_per_s": (world.network.sent - sent) / seconds,
        "answered": answers / (hosts * (WARM_S + MEASURED_S) / PERIOD_S),
        "build_s": built,
        "kib_per_host": grown / hosts,
        "pending": len(world.events),
    }


def one_seed(hosts: int, seed: int) -> Figures:
    found = rate(hosts, seed, traced=False)
    gc.collect()
    traced = rate(hosts, seed, traced=True)
    gc.collect()
    return {
        **found,
        "traced_events_per_s": traced["events_per_s"],
        "bare_events_per_s": bare_rate(hosts, 1_000_000),
    }


def middle(figures: Iterable[Figures], name: str) -> float:
    return round(median(float(item[name]) for item in figures), 3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed of 2,000 hosts")
    parser.add_argument("--seeds", type=int, default=5, help="how many (5)")
    parser.add_argument("--out", type=Path, help="keep one line per seed here, and resume")
    args = parser.parse_args()
    hosts, seeds, goal = (2_000, 1, QUICK_GOAL) if args.quick else (10_000, args.seeds, GOAL)
    figures = measure(
        lambda seed: one_seed(hosts, seed),
        range(seeds),
        settings={"bench": "netsim_light", "hosts": hosts},
        path=args.out,
        say=lambda line: print(line, flush=True),
    )
    value = round(middle(figures, "events_per_s") / middle(figures, "bare_events_per_s"), 4)
    result = {
        "name": "netsim_light",
        "value": value,
        "goal": goal,
        "ok": value >= goal,
        "hosts": hosts,
        "seeds": seeds,
        **{name: middle(figures, name) for name in figures[0]},
        # later worlds of the process reuse the memory of the first
        "kib_per_host": round(max(item["kib_per_host"] for item in figures), 1),
    }
    print(
        "units: events and sends per CPU second; KiB of resident memory per host, its NAT included"
    )
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
