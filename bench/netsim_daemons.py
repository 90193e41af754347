"""Whole daemons in one process: how fast 500 idle ones run, how fast 300 start and meet.

The daemons are the unmodified `shoal node`: TLS lanes, heartbeats, membership, discovery, their
files on simulated disks; without an engine, since no model is in the swarm. The other
side, in the same run, are real processes: what one `shoal node` needs, times as many.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

import psutil
import trio

from shoal.cli.swarm import LocalSwarm
from shoal.netsim.daemons.daemon import Daemon
from shoal.netsim.host import Host
from shoal.netsim.link import LinkSpec, PipeSpec
from shoal.netsim.world import World

MEASURES = ("netsim", "node", "tasks", "state", "dht", "transport", "cli/swarm.py")

PORT = 4001
LINKS = 24  # of each, on the mean
DIALLED = 12, 16  # members are dialled while there are fewer links, of many hosts, of few;
# every third host dials one more
GOALS = {"virtual_per_real": 1.0, "mib_per_host": 4.0, "boot_s": 120.0}
HOME = LinkSpec(
    PipeSpec(0.008, jitter=0.004, rate=2.5e6, loss=0.0005),
    PipeSpec(0.002, rate=12.5e6, loss=0.0005),
)


def resident() -> float:
    """MiB of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


class Swarm:
    """`count` daemons, each told of three others, started within five seconds."""

    def __init__(self, seed: int, count: int) -> None:
        self.world = World(seed)
        self.hosts = [self.world.host(f"n{number}", link=HOME) for number in range(count)]
        self.daemons: list[Any] = []

    async def boot(self) -> None:
        """Start them all; returns when each answers on its port."""
        random = Random(1)
        async with trio.open_nursery() as nursery:
            for number, host in enumerate(self.hosts):
                known = [random.randrange(number) for _ in range(3)] if number else [1]
                addresses = tuple(f"{self.hosts[n].addresses()[0]}:{PORT}" for n in set(known))
                nursery.start_soon(self._start, host, addresses, random.uniform(0, 5))

    async def _start(self, host: Host, bootstrap: tuple[str, ...], after: float) -> None:
        await trio.sleep(after)
        dialled = DIALLED[len(self.hosts) < 100] + (len(self.daemons) % 3 == 0)
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
        """Virtual seconds until `done()`, looking each second."""
        began = trio.current_time()
        while not done():
            if trio.current_time() - began > limit:
                raise SystemExit(f"not done within {limit} virtual seconds")
            await trio.sleep(1)
        return trio.current_time() - began

    def knowing(self) -> int:
        """How many know every other one."""
        others = len(self.hosts) - 1
        return sum(len(d.node.membership.everybody()) >= others for d in self.daemons)

    def mean_links(self) -> float:
        return sum(len(d.node.endpoint.links()) for d in self.daemons) / len(self.hosts)


def boot(count: int) -> dict[str, Any]:
    """Until everybody knows everybody, in real seconds."""
    swarm = Swarm(1, count)

    async def main() -> dict[str, float]:
        await swarm.boot()
        virtual = await swarm.until(lambda: swarm.knowing() == count, 300)
        return {"boot_virtual_s": virtual, "boot_links": swarm.mean_links()}

    began, cpu = time.monotonic(), time.process_time()
    found = swarm.world.run(main)
    return found | {
        "boot_s": time.monotonic() - began,
        "boot_cpu_s": time.process_time() - cpu,
        "boot_hosts": count,
    }


def idle(count: int, seconds: float) -> dict[str, Any]:
    """Virtual seconds of an idle swarm per second of CPU, and the memory of a host."""
    before = resident()
    swarm = Swarm(2, count)

    async def main() -> dict[str, Any]:
        await swarm.boot()
        await swarm.until(lambda: swarm.mean_links() >= LINKS, 300)
        await trio.sleep(60)  # what starting has left to do is done
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


def processes(seconds: float) -> dict[str, float]:
    """One real daemon of three: MiB, and CPU seconds per second of doing nothing."""
    with LocalSwarm() as swarm:
        first = swarm.start(["--listen", "127.0.0.1:0"])
        swarm.wait_for(lambda found: found[0] is not None, lambda _: None, time.monotonic() + 60)
        status = first.status()
        assert status is not None
        for _ in range(2):
            swarm.start(["--listen", "127.0.0.1:0", "--bootstrap", status["addresses"][0]])
        swarm.wait_for(
            lambda found: all(item and item["peers"] == 2 for item in found),
            lambda _: None,
            time.monotonic() + 60,
        )
        nodes = [psutil.Process(node.pid) for node in swarm.nodes]
        before = sum(sum(node.cpu_times()[:2]) for node in nodes)
        time.sleep(seconds)
        used = sum(sum(node.cpu_times()[:2]) for node in nodes) - before
        memory = sum(node.memory_info().rss for node in nodes) / len(nodes) / 2**20
    return {"process_mib": memory, "process_cpu": used / len(nodes) / seconds}


def alone(measure: Callable[..., dict[str, Any]], *args: float) -> dict[str, Any]:
    """In a process of its own: what one leaves in memory must not be counted to the next."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, *args).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="60 daemons, under 50 s")
    quick = parser.parse_args().quick
    raw = alone(boot, 60 if quick else 300)
    raw |= alone(idle, *((60, 20) if quick else (500, 60)))
    raw |= processes(5)
    value = {name: round(raw.pop(name), 3) for name in GOALS}
    scale = 500 / 60 if quick else 1  # the goal is for 500 hosts, with as many links each
    ok = (
        value["virtual_per_real"] >= scale * GOALS["virtual_per_real"]
        and value["mib_per_host"] <= GOALS["mib_per_host"]
        and value["boot_s"] <= GOALS["boot_s"]
    )
    value["process_mib_over_ours"] = round(raw["process_mib"] / value["mib_per_host"], 1)
    print(json.dumps({"name": "netsim_daemons", "value": value, "goal": GOALS, "ok": ok, **raw}))
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
