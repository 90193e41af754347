"""Cost of whole daemons in one process, for starting, idling and memory, compared with commit
981b9fd.

The daemons are the unmodified `shoal node`: TLS lanes, heartbeats, membership, discovery, state,
their files on simulated disks. They have no engine, because no model is in the swarm. The other
side, in the same run, are the daemons of that commit, which had neither discovery nor state: the
same number of hosts on the same links, each with the same bootstrap nodes and as many dials. Time
is CPU time.

`value`: virtual seconds per second of CPU, divided by that commit's (goal 0.8); MiB per host (goal
4); CPU until every node knows all others, divided by that commit's (goal 1.5). `--quick` measures
60 daemons.
"""

import argparse
import json
import resource
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import trio
from worlds.earlier import TODAY, answer, checkout, measured, moved

from shoal.netsim.daemons.daemon import Daemon
from shoal.netsim.host import Host
from shoal.netsim.world import World

specs = moved("shoal.netsim.network.link", "shoal.netsim.link")

MEASURES = ("netsim", "node", "tasks", "state", "dht", "transport")

PORT = 4001
LINKS = 24  # per daemon, on average
DIALLED = 12, 16  # links up to which a daemon of that commit dials, of many hosts, of few; every
# third host dials one more. It dials them all at once, and so the mean comes to `LINKS`. Today's
# daemons dial one after the other, and peers' dials add to them: with TOLD each, the mean is about
# the same. A swarm idles from when none of them dials any more.
TOLD = 24
GOALS = {"virtual_per_real_over_base": 0.8, "mib_per_host": 4.0, "boot_cpu_over_base": 1.5}
HOME = specs.LinkSpec(
    specs.PipeSpec(0.008, jitter=0.004, rate=2.5e6, loss=0.0005),
    specs.PipeSpec(0.002, rate=12.5e6, loss=0.0005),
)


def resident() -> float:
    """Return the MiB of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def _limits_dials() -> bool:
    """Whether the daemons of this commit limit the rate of their dials; the module was renamed."""
    return any(
        find_spec(f"shoal.dht.{name}") is not None for name in ("pace", "diallimiter", "kademlia")
    )


class Swarm:
    """`count` daemons, each with three others as bootstrap nodes, started within five seconds."""

    def __init__(self, seed: int, count: int) -> None:
        self.world = World(seed)
        self.hosts = [self.world.host(f"n{number}", link=HOME) for number in range(count)]
        self.daemons: list[Any] = []

    async def boot(self) -> None:
        """Start all daemons; return when each answers on its port."""
        random = Random(1)
        async with trio.open_nursery() as nursery:
            for number, host in enumerate(self.hosts):
                known = [random.randrange(number) for _ in range(3)] if number else [1]
                addresses = tuple(f"{self.hosts[n].addresses()[0]}:{PORT}" for n in set(known))
                nursery.start_soon(self._start, host, addresses, random.uniform(0, 5))

    async def _start(self, host: Host, bootstrap: tuple[str, ...], after: float) -> None:
        await trio.sleep(after)
        dialled = DIALLED[len(self.hosts) < 100] + (len(self.daemons) % 3 == 0)
        if _limits_dials():
            dialled = TOLD
        self.daemons.append(
            await host.start(
                Daemon(
                    bootstrap=bootstrap,
                    engine=False,
                    links=dialled,
                    port=PORT,
                )
            )
        )

    async def until(self, done: Any, limit: float) -> float:
        """Return the virtual seconds until `done()`, checked every second."""
        began = trio.current_time()
        while not done():
            if trio.current_time() - began > limit:
                raise SystemExit(f"not done within {limit} virtual seconds")
            await trio.sleep(1)
        return trio.current_time() - began

    def knowing(self) -> int:
        """Return how many daemons know every other one."""
        others = len(self.hosts) - 1
        return sum(len(known_to(daemon.node)) >= others for daemon in self.daemons)

    def linked(self) -> bool:
        """Whether all links are up, so that no daemon dials members any more."""
        most = TOLD if _limits_dials() else 0
        links = [len(daemon.node.endpoint.links()) for daemon in self.daemons]
        return sum(links) >= LINKS * len(links) and min(links) >= most

    def mean_links(self) -> float:
        return sum(len(d.node.endpoint.links()) for d in self.daemons) / len(self.hosts)


def known_to(node: Any) -> Any:
    """Return all members that a node knows, in today's code or that commit's."""
    members: Any = getattr(node, "membership", None)
    return (members if hasattr(members, "everybody") else node.directory).everybody()


def boot(count: int) -> dict[str, Any]:
    """Measure the CPU until every node knows all others."""
    swarm = Swarm(1, count)

    async def main() -> dict[str, float]:
        await swarm.boot()
        virtual = await swarm.until(lambda: swarm.knowing() == count, 300)
        return {"boot_virtual_s": virtual, "boot_links": swarm.mean_links()}

    cpu = time.process_time()
    found: dict[str, Any] = swarm.world.run(main)
    return found | {"boot_cpu_s": time.process_time() - cpu, "boot_hosts": count}


def idle(count: int, seconds: float) -> dict[str, Any]:
    """Return the virtual seconds of an idle swarm per second of CPU, and the memory of a host."""
    before = resident()
    swarm = Swarm(2, count)

    async def main() -> dict[str, Any]:
        await swarm.boot()
        await swarm.until(swarm.linked, 900)
        await trio.sleep(60)  # until the work of starting is done
        packets = swarm.world.network.sent
        cpu = time.process_time()
        await trio.sleep(seconds)
        cpu = time.process_time() - cpu
        return {
            "virtual_per_real": seconds / cpu,
            "mib_per_host": (resident() - before) / count,
            "packets_per_virtual_s": (swarm.world.network.sent - packets) / seconds,
            "links": swarm.mean_links(),
            "hosts": count,
        }

    found: dict[str, Any] = swarm.world.run(main)
    return found


def both(*arguments: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measure that commit and today's code."""
    with checkout() as base:
        return measured(base, __file__, *arguments), measured(TODAY, __file__, *arguments)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="60 daemons")
    parser.add_argument("--boot", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--idle", type=float, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.boot:
        answer(boot(args.boot))
        return 0
    if args.idle:
        answer(idle(int(args.idle[0]), args.idle[1]))
        return 0
    booted = both("--boot", 60 if args.quick else 300)
    idled = both("--idle", *((60, 30) if args.quick else (500, 60)))
    base, ours = (
        {name: round(figure, 3) for name, figure in (one | other).items() if name != "shoal"}
        for one, other in zip(booted, idled, strict=True)
    )
    value = {
        "virtual_per_real_over_base": round(ours["virtual_per_real"] / base["virtual_per_real"], 3),
        "mib_per_host": ours["mib_per_host"],
        "boot_cpu_over_base": round(ours["boot_cpu_s"] / base["boot_cpu_s"], 3),
    }
    ok = (
        value["virtual_per_real_over_base"] >= GOALS["virtual_per_real_over_base"]
        and value["mib_per_host"] <= GOALS["mib_per_host"]
        and value["boot_cpu_over_base"] <= GOALS["boot_cpu_over_base"]
    )
    result = {"name": "netsim_daemons", "value": value, "goal": GOALS, "ok": ok}
    print(json.dumps(result | {"ours": ours, "base": base}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
