"""203 daemons of the home population for ten virtual minutes, with a partition of two of them.

Three public nodes and 200 volunteers of `home-volunteers-2026` behind their gateways, with default
options and without an engine. From the fourth to the sixth minute no packet passes between two
halves. The yardstick, in the same run, is the CPU that 60 daemons of commit 981b9fd use to start
(`netsim_daemons`). That took 18 s on a machine where this should take ten minutes, so the goal is
33.3. Memory at the end, divided by that before the partition, has the goal 1.1. `seen` is the mean
share of members that a node lists as live at the end of each minute.

`--quick` runs 53 daemons for three minutes, with the partition in the second. Its goal is smaller
in proportion to its daemons and minutes.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass
from random import Random
from typing import Any

import trio
from netsim_daemons import resident
from worlds.earlier import TODAY, answer, checkout, measured

from shoal.netsim.daemons.daemon import Daemon, DaemonHandle
from shoal.netsim.faults import Faults
from shoal.netsim.host import Host
from shoal.netsim.population import latency, profiles
from shoal.netsim.population.mix import populate
from shoal.netsim.world import World

MEASURES = ("netsim", "node", "tasks", "state", "dht", "transport")

PUBLIC = 3
YARDSTICK = 60  # daemons of that commit
SPREAD_S = 30.0  # seconds within which all daemons start
GOALS = {"cpu_over_yardstick": 600 / 18, "memory_growth": 1.1}


@dataclass(frozen=True)
class Plan:
    """Homes, minutes of the run, and the first and last minute of the partition."""

    homes: int
    minutes: int
    cut: tuple[int, int]

    @property
    def share(self) -> float:
        """Return the part of the whole plan's daemon minutes."""
        whole = (PUBLIC + WHOLE.homes) * WHOLE.minutes
        return (PUBLIC + self.homes) * self.minutes / whole


WHOLE = Plan(200, 10, (4, 6))
QUICK = Plan(50, 3, (1, 2))


class Swarm:
    """The daemons of a plan."""

    def __init__(self, seed: int, plan: Plan) -> None:
        self.world = World(seed, latency=latency.matrix())
        self.public = [
            self.world.host(f"p{number}", link=profiles.link("fibre"), site=0)
            for number in range(PUBLIC)
        ]
        self.volunteers = populate(self.world, plan.homes)
        self.daemons: dict[str, DaemonHandle] = {}

    async def start(self) -> None:
        """Start the public nodes, then the homes, each with two of those as bootstrap nodes."""
        random = Random(7)
        for host in self.public:
            await self._start(host, list(self.daemons.values())[:1], 0.0)
        known = list(self.daemons.values())
        async with trio.open_nursery() as nursery:
            for volunteer in self.volunteers:
                assert isinstance(volunteer.host, Host)
                told = random.sample(known, 2)
                nursery.start_soon(self._start, volunteer.host, told, random.uniform(0, SPREAD_S))

    async def _start(self, host: Host, known: list[DaemonHandle], after: float) -> None:
        await trio.sleep(after)
        self.daemons[host.name] = await host.start(Daemon(bootstrap=known, engine=False))

    def halves(self) -> tuple[list[str], list[str]]:
        """Return the computers and gateways on either side of the partition."""
        sides: tuple[list[str], list[str]] = [], []
        for number, host in enumerate(self.public):
            sides[number % 2].append(host.name)
        for number, volunteer in enumerate(self.volunteers):
            gateways = [gateway.name for gateway in volunteer.gateways]
            sides[number % 2].extend([volunteer.host.name, *gateways])
        return sides

    def seen(self) -> float:
        """Return the mean share of members that a node lists as live."""
        counts = [len(d.node.membership.members()) for d in self.daemons.values()]
        return sum(counts) / len(counts) / len(self.daemons)


def ten_minutes(plan: Plan) -> dict[str, Any]:
    """Run a plan, and measure its CPU and the memory at the end of each minute."""
    before = resident()
    swarm = Swarm(1, plan)
    faults = Faults(swarm.world)
    memory: list[float] = []
    seen: list[float] = []

    async def main() -> None:
        await swarm.start()
        rules = []
        for minute in range(1, plan.minutes + 1):
            await trio.sleep_until(60.0 * minute)
            memory.append(round((resident() - before) / len(swarm.daemons), 3))
            seen.append(round(swarm.seen(), 3))
            line = f"minute {minute}: {time.process_time() - cpu:.0f} s of CPU"
            print(f"{line}, {memory[-1]} MiB/host, sees {seen[-1]}", file=sys.stderr, flush=True)
            if minute == plan.cut[0]:
                rules = faults.partition(*swarm.halves())
            elif minute == plan.cut[1]:
                faults.heal(*rules)

    cpu = time.process_time()
    swarm.world.run(main)
    return {
        "cpu_s": time.process_time() - cpu,
        "mib_per_host": memory,
        "seen": seen,
        "packets": swarm.world.network.sent,
        "daemons": len(swarm.daemons),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="53 daemons, three minutes")
    parser.add_argument("--homes", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    plan = QUICK if args.quick else WHOLE
    if args.homes:
        answer(ten_minutes(plan))
        return 0
    with checkout() as base:
        yardstick = measured(base, str(TODAY / "bench/netsim_daemons.py"), "--boot", YARDSTICK)
    quick = ["--quick"] if args.quick else []
    found = measured(TODAY, __file__, "--homes", *quick)
    memory = found["mib_per_host"]
    value = {
        "cpu_over_yardstick": round(found["cpu_s"] / yardstick["boot_cpu_s"], 2),
        "memory_growth": round(memory[-1] / memory[plan.cut[0] - 1], 3),
    }
    goals = GOALS | {"cpu_over_yardstick": round(GOALS["cpu_over_yardstick"] * plan.share, 2)}
    ok = all(value[name] <= goals[name] for name in goals)
    result = {"name": "netsim_homes", "value": value, "goal": goals, "ok": ok, "seeds": 1}
    found.pop("shoal")
    print(json.dumps(result | found | {"yardstick_cpu_s": yardstick["boot_cpu_s"]}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
