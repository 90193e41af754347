"""How close the distribution of a blob comes to the fluid optimum, on simulated home links.

Two parts, in virtual time; real endpoints, exchanges and stores, 20 ms in one direction between any
two:

- `swarm`: 1 seeder with 20 Mbit/s up, 8 leechers with 20 up and 100 down. The lower bound is
  max(F / seeder's up, F / a leecher's down, 8 F / all uplinks) (Kumar and Ross, "Peer-assisted file
  distribution", 2006). Goal: at most 1.5 times that until all are done. `sent_by_holders` is how
  often the seeder sent each chunk, on average.
- `unequal`: 4 providers whose uplinks are 8 : 4 : 2 : 1, one getter. Optimum: F / all uplinks;
  goal 1.1.

`value` is the median over the seeds of both ratios; the worst ones are listed beside it.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import trio

from shoal.dht.content.library import Library
from shoal.dht.exchange.exchange import ChunkExchange
from shoal.dht.exchange.fetch import FetchTerms
from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.host import Host
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.identity import Identity, PeerId
from shoal.transport.link.calls import Answer, Call, Reply

MEASURES = ("dht", "transport", "netsim")

GOALS: Final = {"swarm": 1.5, "unequal": 1.1}
MBIT: Final = 1e6 / 8
LATENCY_S: Final = 0.02
PATIENCE_S: Final = 600.0
LEECHERS: Final = 8
PARTS: Final = (8, 4, 2, 1)
SIZES: Final = {"swarm": 64, "unequal": 256}  # MiB


def home(up: float, down: float) -> LinkSpec:
    """Return a link of these Mbit/s, with a quarter of a second of queue."""
    return LinkSpec(up=PipeSpec(rate=up * MBIT), down=PipeSpec(rate=down * MBIT))


class Node:
    """Program for a simulated computer: an endpoint, a library, their exchange."""

    def __init__(self, computer: Host, number: int) -> None:
        self.computer = computer
        self.identity = Identity.from_seed(number.to_bytes(32))
        self.sent = 0  # chunks
        self.done = 0.0  # when it had all chunks

    async def run(self, computer: Host, *, task_status: "trio.TaskStatus[Any]") -> None:
        async with trio.open_nursery() as nursery:
            host = SimulatedHost(computer, PROFILES["desktop"], nursery)
            self.endpoint = Endpoint(host, self.identity, admission=OpenSwarm())
            self.host, self.library = host, Library(host, Path("/home/models"))
            await self.library.open()
            self.exchange = ChunkExchange(host, self.endpoint, self.library)
            self.endpoint.handle("blob.chunk", self._count)
            await nursery.start(self.endpoint.run, "0.0.0.0", 4001)
            task_status.started(self)

    async def _count(self, call: Call) -> Answer:
        answer = await self.exchange.provider.serve_chunk(call)
        self.sent += isinstance(answer, Reply)
        return answer

    def peers(self) -> Sequence[PeerId]:
        return [link.peer for link in self.endpoint.links()]

    async def add(self, data: bytes) -> str:
        path = Path("/home/blob")
        await self.host.offload(self.host.files.write, path, data)
        return (await self.library.blobs.add(path)).root

    async def meet(self, others: Sequence["Node"]) -> None:
        for other in others:
            address = Address(other.computer.addresses()[0], 4001, other.identity.peer)
            await self.endpoint.dial(address, timeout=10)

    async def get(self, root: str) -> None:
        await self.exchange.fetch_blob(root, self.peers, terms=FetchTerms(PATIENCE_S))
        self.done = trio.current_time()


def spread(
    seed: int, size: int, holders: Sequence[LinkSpec], getters: Sequence[LinkSpec]
) -> dict[str, Any]:
    """Return the seconds until all getters have what all holders have, and how often the holders
    sent a chunk.
    """
    world = World(seed, latency=LATENCY_S)
    nodes = [
        Node(world.host(f"n{number}", link=link), 100 * seed + number + 1)
        for number, link in enumerate([*holders, *getters])
    ]
    giving, getting = nodes[: len(holders)], nodes[len(holders) :]
    data = seed.to_bytes(8) + world.streams.get("blob", "bytes").randbytes(size - 8)

    async def main() -> dict[str, Any]:
        for node in nodes:
            await node.computer.start(node)
        for node in giving:
            root = await node.computer.run(node.add, data)
        for number, node in enumerate(nodes):
            await node.computer.run(node.meet, nodes[:number])
        await trio.sleep(5)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for node in getting:
                nursery.start_soon(node.computer.run, node.get, root)
        chunks = -(-size // 2**20)
        return {
            "seconds": max(node.done for node in getting) - began,
            "sent": sum(node.sent for node in giving) / chunks,
        }

    found: dict[str, Any] = world.run(main)
    return found


def swarm(seed: int, size: int) -> dict[str, Any]:
    up, down = 20.0, 100.0
    found = spread(seed, size, [home(up, down)], [home(up, down)] * LEECHERS)
    together = LEECHERS * size / ((1 + LEECHERS) * up * MBIT)
    optimum = max(size / (up * MBIT), size / (down * MBIT), together)
    return found | {"ratio": found["seconds"] / optimum}


def unequal(seed: int, size: int) -> dict[str, Any]:
    found = spread(seed, size, [home(5.0 * part, 100.0) for part in PARTS], [home(20.0, 1000.0)])
    return found | {"ratio": found["seconds"] * 5.0 * sum(PARTS) * MBIT / size}


PART_OF: Final = {"swarm": swarm, "unequal": unequal}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, blobs half as large")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=sorted(GOALS), action="append")
    args = parser.parse_args()
    value, raw = {}, {}
    seeds = range(1, 2 if args.quick else 1 + args.seeds)
    for name in args.only or GOALS:
        size = SIZES[name] // (2 if args.quick else 1) * 2**20
        runs = [PART_OF[name](seed, size) for seed in seeds]
        value[name] = round(median(run["ratio"] for run in runs), 3)
        raw[f"{name}_worst"] = round(max(run["ratio"] for run in runs), 3)
        raw[f"{name}_sent_by_holders"] = round(median(run["sent"] for run in runs), 3)
    raw["seeds"] = len(seeds)
    ok = set(value) == set(GOALS) and all(value[name] <= GOALS[name] for name in value)
    print(json.dumps({"name": "blob_swarm", "value": value, "goal": GOALS, "ok": ok, **raw}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
