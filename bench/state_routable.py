"""Time until a new node's shards are routable, and until they are no longer listed after its end.

Whole daemons at homes, each with links to about a third of the others; one of them has an engine.
The list is `Directory.members()`, which routing and placement use. In each round that node starts
to serve, is killed, and comes back at once without an engine, so that it serves none of the shards
that it had announced.

`value` is the 95th percentile of the seconds from the moment that a shard is loaded until another
member may route to it. `stale_s` is the seconds for which the returned and listed node was listed
with shards that it did not have. `bytes_per_hour` is what an idle node receives, with all packets.
"""

import argparse
import json
import resource
import sys
import time
from typing import Any, Final

import trio

from shoal.netsim.daemons.daemon import Daemon, DaemonHandle
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.network.packet import Packet
from shoal.netsim.world import World
from shoal.transport.identity import PeerId

MEASURES = ("node", "tasks", "state", "dht", "transport", "netsim")

PORT: Final = 4001
GOALS: Final = {"p95_s": 2.0, "stale_s": 5.0}
HOME: Final = LinkSpec(
    PipeSpec(0.008, jitter=0.004, rate=2.5e6, loss=0.0005),
    PipeSpec(0.002, rate=12.5e6, loss=0.0005),
)
IDLE_S: Final = 300.0
LOOK_S: Final = 0.02
LIMIT_S: Final = 180.0


class Round:
    """`count` daemons without an engine, and one that serves."""

    def __init__(self, seed: int, count: int, links: int) -> None:
        self.world = World(seed)
        self.count = count
        self.links = links
        self.daemons: list[DaemonHandle] = []
        self.received = 0  # bytes, by all daemons
        self.world.network.interfere_by(self._count)

    def run(self) -> dict[str, Any]:
        found: dict[str, Any] = self.world.run(self._main)
        return found

    async def _main(self) -> dict[str, Any]:
        await self._boot()
        before = self.received
        await trio.sleep(IDLE_S)
        rate = (self.received - before) / IDLE_S / self.count
        host = self.world.host("server", link=HOME)
        server = await host.start(self._daemon(model="tiny"))
        await self._serving(server)
        linked = {d.peer for d in self.daemons if _has_link(d, server)}
        routable = await self._until(server)
        await trio.sleep(30)
        gone = await self._until_after(host, server)
        return {
            "linked": [routable[peer] for peer in routable if peer in linked],
            "others": [routable[peer] for peer in routable if peer not in linked],
            "stale": list(gone.values()),
            "bytes_per_hour": rate * 3600,
        }

    async def _boot(self) -> None:
        for number in range(self.count):
            host = self.world.host(f"n{number}", link=HOME)
            self.daemons.append(await host.start(self._daemon(engine=False)))
            await trio.sleep(0.3)
        for _ in range(120):
            if all(len(d.node.directory.members()) == self.count for d in self.daemons):
                break
            await trio.sleep(1)
        else:
            raise SystemExit("some members do not list each other")
        await trio.sleep(60)

    def _daemon(self, **more: Any) -> Daemon:
        known = [self.daemons[number] for number in (0, len(self.daemons) // 2) if self.daemons]
        return Daemon(bootstrap=known, links=self.links, port=PORT, **more)

    def _count(self, packet: Packet, host: str) -> float:
        self.received += packet.size
        return 0.0

    async def _until(self, of: DaemonHandle) -> dict[str, float]:
        """Return the seconds until each daemon lists a member with shards."""
        began, found = trio.current_time(), dict[str, float]()
        while len(found) < len(self.daemons):
            for daemon in self.daemons:
                record = daemon.node.directory.members().get(of.peer)
                if daemon.peer not in found and record is not None and record.shards:
                    found[daemon.peer] = trio.current_time() - began
            if trio.current_time() - began > LIMIT_S:
                missing = [d for d in self.daemons if d.peer not in found]
                print(f"{len(missing)} of {len(self.daemons)} never", file=sys.stderr)
                return found | {d.peer: LIMIT_S for d in missing}
            await trio.sleep(LOOK_S)
        return found

    async def _serving(self, server: DaemonHandle) -> None:
        while server.node.serving.phase != "serving":  # noqa: ASYNC110
            await trio.sleep(LOOK_S)

    async def _until_after(self, host: Any, server: DaemonHandle) -> dict[PeerId, float]:
        """Return the seconds for which it is listed with shards that it no longer has, once it is
        back.
        """
        await host.crash()
        host.program = self._daemon(engine=False)
        await host.restart()
        stale = {daemon.peer: 0.0 for daemon in self.daemons}
        for _ in range(round(60 / LOOK_S)):
            for daemon in self.daemons:
                record = daemon.node.directory.members().get(server.peer)
                stale[daemon.peer] += LOOK_S * (record is not None and bool(record.shards))
            await trio.sleep(LOOK_S)
        return stale


def _has_link(one: DaemonHandle, other: DaemonHandle) -> bool:
    """Whether two daemons have a link over which they exchange feeds."""
    return other.peer in one.node.state.replication.exchange.peers


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)] if values else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, 12 nodes")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--count", type=int, default=24)
    args = parser.parse_args()
    count, seeds = (12, 1) if args.quick else (args.count, args.seeds)
    cpu = time.process_time()
    rounds = [Round(seed, count, max(3, count // 6)).run() for seed in range(1, seeds + 1)]
    every = {name: [x for each in rounds for x in each[name]]
             for name in ("linked", "others", "stale")}  # fmt: skip
    both = every["linked"] + every["others"]
    value = {"p95_s": percentile(both, 0.95), "stale_s": max(every["stale"])}
    print(
        json.dumps(
            {
                "name": "state_routable",
                "value": {name: round(x, 2) for name, x in value.items()},
                "goal": GOALS,
                "ok": all(value[name] <= GOALS[name] for name in GOALS),
                **{f"{name}_p50_s": round(percentile(x, 0.5), 2) for name, x in every.items()},
                **{f"{name}_most_s": round(max(x, default=0.0), 2) for name, x in every.items()},
                "unlinked": len(every["others"]) / len(both),
                "bytes_per_hour": round(sum(r["bytes_per_hour"] for r in rounds) / len(rounds)),
                "seeds": seeds,
                "cpu_s": round(time.process_time() - cpu, 1),
                "mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            }
        )
    )
    return 0 if all(value[name] <= GOALS[name] for name in GOALS) else 1


if __name__ == "__main__":
    sys.exit(main())
