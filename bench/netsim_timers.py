"""One virtual hour of NAT timers on idle pairs of hosts, and its cost.

Each pair has punched through two NATs and is silent except for a keep-alive, at an interval one
second shorter than the NATs' timer, or one second longer. The first kind has to be heard every time
for an hour, the second never without punching again. The cost is CPU time per run (all pairs) in
reference ms (`yardstick.py`), the median of several seeds, with the hour itself beside it. Goal:
200 reference ms.
"""

import argparse
import json
import socket
import sys
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import trio
from yardstick import Yardstick

from shoal.netsim.host import Host
from shoal.netsim.world import World

MEASURES = ("netsim",)

GOAL_MS = 200.0  # of the reference machine
HOUR_S = 3600.0
PORT = 4001
SETTLE_S = 3.0  # of traffic in both directions, so that conntrack counts it as a stream
TIMERS_S = {
    "linux-drop": 120.0,
    "linux-persistent": 120.0,
    "port-restricted": 120.0,
    "eim-apdf": 300.0,
    "cgn": 65.0,
}
EDGES_S = (-1.0, 1.0)


@dataclass
class Pair:
    """One pair: the keep-alive's interval, and how often it arrived or did not."""

    kind: str
    edge: float
    hosts: list[Host] = field(default_factory=list)
    heard: int = 0
    missed: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing arrives beyond the timer, and everything before it."""
        return self.missed == 0 < self.heard if self.edge < 0 else self.heard == 0 < self.missed


def build(world: World) -> list[Pair]:
    pairs = []
    for kind in TIMERS_S:
        # An endpoint-independent filter would admit the probe through other flows of the same port.
        knobs: dict[str, Any] = {"filtering": "apd", "ports": "preserve"} if kind == "cgn" else {}
        for edge in EDGES_S:
            pair = Pair(kind, edge)
            for side in "ab":
                name = f"{kind}{edge:+}{side}"
                gate = world.gateway(f"{name}/nat", kind, **knobs)
                pair.hosts.append(world.host(name, behind=gate))
            pairs.append(pair)
    return pairs


async def keep_alive(pair: Pair, gates: tuple[str, str]) -> None:
    """Run the pair's hour. These kinds preserve ports, so each peer knows the other's address."""
    a, b = [await pair.hosts[side].run(bound) for side in (0, 1)]
    to_a, to_b = (gates[0], PORT), (gates[1], PORT)
    await settle(a, b, to_a, to_b)
    interval = TIMERS_S[pair.kind] + pair.edge
    while trio.current_time() + interval < HOUR_S:
        await trio.sleep(interval)
        await a.sendto(b"keep", to_b)
        if await arrives(b):
            pair.heard += 1
            await b.sendto(b"kept", to_a)
            await arrives(a)
        else:
            pair.missed += 1
            await settle(a, b, to_a, to_b)


async def bound() -> trio.socket.SocketType:
    sock = trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    await sock.bind(("0.0.0.0", PORT))
    return sock


async def arrives(sock: trio.socket.SocketType) -> bool:
    with trio.move_on_after(0.5):
        await sock.recvfrom(16)
        return True
    return False


async def settle(
    a: trio.socket.SocketType,
    b: trio.socket.SocketType,
    to_a: tuple[str, int],
    to_b: tuple[str, int],
) -> None:
    """Punch, and exchange packets until the flow is an old one."""
    ends = trio.current_time() + SETTLE_S
    while trio.current_time() < ends:
        await a.sendto(b"!", to_b)
        await b.sendto(b"!", to_a)
        await arrives(a)
        await arrives(b)
        await trio.sleep(0.5)


def hour(seed: int) -> tuple[list[Pair], World]:
    world = World(seed=seed)
    pairs = build(world)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for pair in pairs:
                a, b = (world.gateways[f"{host.name}/nat"].address for host in pair.hosts)
                nursery.start_soon(keep_alive, pair, (a, b))
        await trio.sleep_until(HOUR_S)

    world.run(main)
    return pairs, world


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer runs")
    runs = 3 if parser.parse_args().quick else 15
    cpu, wrong = [], 0
    stick = Yardstick()
    for seed in range(runs + 1):
        began = time.process_time()
        pairs, world = hour(seed)
        if seed:  # the first run warms up
            cpu.append(time.process_time() - began)
            stick.sample(10)
        wrong += sum(not pair.ok for pair in pairs)
    for pair in pairs:
        every = TIMERS_S[pair.kind] + pair.edge
        print(f"{pair.kind:20} every {every:5.0f} s: heard {pair.heard:3}, missed {pair.missed:3}")
    value = round(stick.reference_ms(1e3 * median(cpu)), 2)
    result = {
        "name": "netsim_timers", "value": value, "goal": GOAL_MS,
        "ok": value <= GOAL_MS and not wrong, "unit": "reference ms", "reference_ms": stick.ms,
        "pairs": len(pairs),
        "wrong": wrong, "runs": runs, "cpu_s": [round(each, 4) for each in cpu],
        "virtual_s": world.events.now, "packets": world.network.sent,
        "times_real_time": round(HOUR_S / median(cpu)),
    }  # fmt: skip
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
