"""Calls beside bulk, in the simulator: on a home line with a deep buffer, and between continents.

Two nodes, one link. `home`: 20 Mbit/s up, 40 ms round trip, a modem that buffers 250 ms. The figure
is the 99th percentile of a control call, every 50 ms, while a bulk stream fills the line, divided
by the same with the line idle. Goal: 2. `line` is the part of the rate that bulk gets meanwhile,
TLS and headers counted against it. `far`: 1 Gbit/s, 200 ms, as in Lattica's row of calls between
continents: 110 calls/s of 256 KiB and 1,200 calls/s of 128 bytes, 64 and 512 in flight, over 10 s.
A TCP connection of a simulated host, like one of Linux, has at most 3 MB in flight.
"""

import argparse
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from shoal.netsim.daemons.host import SimulatedHost
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.host import Host
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.transport.address import Address
from shoal.transport.dial.endpoint import Endpoint
from shoal.transport.handshake.hello import OpenSwarm
from shoal.transport.identity import Identity
from shoal.transport.lane.frame import Priority
from shoal.transport.link.calls import Call, Reply
from shoal.transport.link.link import Link
from shoal.transport.link.serving import IncomingStream
from shoal.transport.strategies.dialer import Dialer, Strategies

MEASURES = ("transport", "netsim")

GOALS = {"p99_ratio": 2.0, "large_per_s": 110.0, "small_per_s": 1200.0}
PORT = 7000
HOME_RATE = 2.5e6  # bytes/s
HOME = LinkSpec(
    PipeSpec(delay=0.01, rate=HOME_RATE, queue=0.25),
    PipeSpec(delay=0.01, rate=HOME_RATE, queue=0.25),
)
FAR = LinkSpec(
    PipeSpec(delay=0.05, rate=125e6, queue=0.05), PipeSpec(delay=0.05, rate=125e6, queue=0.05)
)
CHUNK = bytes(64 * 1024)
SETTLE_S = 5.0
EVERY_S = 0.05
SMALL, LARGE = bytes(128), bytes(256 * 1024)


def endpoint(host: Any, seed: int) -> Endpoint:
    made = Endpoint(host, Identity.from_seed(bytes([seed]) * 32), admission=OpenSwarm())
    made.handle("echo", lambda call: Reply(payload=call.payload))
    made.handle("count", _count)
    made.handle_stream("sink", _sink)
    return made


def _count(call: Call) -> Reply:
    return Reply({"n": len(call.payload)})


async def _sink(incoming: IncomingStream) -> None:
    while await incoming.stream.receive(256 * 1024):
        pass


class Node:
    """Program of a simulated host: an endpoint with its dialer, and its work once it listens."""

    def __init__(self, seed: int, work: Callable[[Endpoint], Awaitable[None]] | None = None):
        self.seed = seed
        self.work = work

    async def run(self, host: Host, *, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            made_host = SimulatedHost(host, PROFILES["desktop"], nursery)
            made = endpoint(made_host, self.seed)
            dialer = Dialer(
                made_host,
                made,
                strategies=Strategies(lan=False, mapping=False, relay=False, libp2p=False),
            )
            await nursery.start(dialer.run, host.addresses()[0], PORT)
            task_status.started()
            if self.work is not None:
                await self.work(made)
                nursery.cancel_scope.cancel()


def simulate(spec: LinkSpec, latency: float, work: Callable[[Link], Awaitable[Any]]) -> Any:
    """Return the result of `work` on a link of the host whose line is `spec`, in a fresh world."""
    world = World(seed=7, latency=latency)
    near, far = world.host("near", link=spec), world.host("far")
    found: list[Any] = []

    async def ask(made: Endpoint) -> None:
        link = await made.dial(Address(far.addresses()[0], PORT), timeout=10)
        found.append(await work(link))

    async def main() -> None:
        await far.start(Node(2))
        await near.start(Node(1, ask))
        await near.ended()

    world.run(main)
    return found[0]


# Calls on a home line.


class Home:
    """Calls for some seconds, with or without bulk: their times, and the bytes per second
    of bulk.
    """

    def __init__(self, seconds: float, *, bulk: bool) -> None:
        self._seconds = seconds
        self._bulk = bulk
        self._sent = 0

    async def __call__(self, link: Link) -> tuple[list[float], float]:
        took: list[float] = []
        async with trio.open_nursery() as nursery:
            if self._bulk:
                nursery.start_soon(self._fill, link)
            await trio.sleep(SETTLE_S)
            before, began = link.status.bytes_out, trio.current_time()
            async with trio.open_nursery() as calls:
                while trio.current_time() < began + self._seconds:
                    calls.start_soon(self._call, link, took)
                    await trio.sleep(EVERY_S)
                rate = (link.status.bytes_out - before) / (trio.current_time() - began)
            nursery.cancel_scope.cancel()
        return sorted(took), rate

    async def _fill(self, link: Link) -> None:
        stream = await link.open_stream("sink")
        while True:
            await stream.send(CHUNK)

    async def _call(self, link: Link, took: list[float]) -> None:
        began = trio.current_time()
        await link.call("echo", payload=SMALL, timeout=30, priority=Priority.CONTROL)
        took.append(trio.current_time() - began)


def home(seconds: float) -> dict[str, float]:
    idle, _ = simulate(HOME, 0.01, Home(seconds, bulk=False))
    beside, rate = simulate(HOME, 0.01, Home(seconds, bulk=True))
    p50, p99 = (beside[int(part * len(beside))] for part in (0.5, 0.99))
    idle99 = idle[int(0.99 * len(idle))]
    return {
        "p99_ratio": round(p99 / idle99, 2),
        "idle_p99_ms": round(1e3 * idle99, 1),
        "beside_p50_ms": round(1e3 * p50, 1),
        "beside_p99_ms": round(1e3 * p99, 1),
        "line": round(rate / HOME_RATE, 3),
    }


# Calls between continents.


class Far:
    """Calls per second with a given number in flight."""

    def __init__(self, seconds: float, payload: bytes, in_flight: int) -> None:
        self._seconds = seconds
        self._payload = payload
        self._in_flight = in_flight
        self._done = 0

    async def __call__(self, link: Link) -> float:
        async with trio.open_nursery() as nursery:
            for _ in range(self._in_flight):
                nursery.start_soon(self._caller, link)
            await trio.sleep(SETTLE_S)
            before = self._done
            await trio.sleep(self._seconds)
            rate = (self._done - before) / self._seconds
            nursery.cancel_scope.cancel()
        return rate

    async def _caller(self, link: Link) -> None:
        while True:
            await link.call("count", payload=self._payload, timeout=30)
            self._done += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter, under 50 s")
    args = parser.parse_args()
    found = home(20 if args.quick else 60)
    seconds = 3 if args.quick else 10
    found["large_per_s"] = simulate(FAR, 0.05, Far(seconds, LARGE, 64))
    found["small_per_s"] = simulate(FAR, 0.05, Far(seconds, SMALL, 512))
    value = {name: found[name] for name in GOALS}
    ok = value["p99_ratio"] <= GOALS["p99_ratio"] and all(
        value[name] >= GOALS[name] for name in ("large_per_s", "small_per_s")
    )
    result = {"name": "bulk_priority", "value": value, "goal": GOALS, "ok": ok, **found}
    print(json.dumps(result))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
