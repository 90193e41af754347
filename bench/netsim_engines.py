"""CPU time of a simulated swarm whose engines compute many sessions at once, compared with commit
1daa4647.

That commit is the last one before engines computed in steps over many sessions. The swarm is of 500
daemons (`--quick`: 16) with their files, links and state. One in ten serves a small model, and the
others have no engine. Once the model is served, one in five of the others asks for answers, all at
the same time: three each, one after the other.

A swarm takes most of its time to start, so each start serves two measurements: once the model is
served, the process forks, and its copies ask one after the other, each from the same state. That
commit starts once and today's code twice, all at the same time and with the same seed. Both starts
of today's code must send the same packets.

`value` is that commit's CPU time from the first request to the last answer, divided by today's:
the speed of the same work. Goal: at least 0.9. `start` is the same of the time until the model is
served, which has no goal here. `ok` also asks that all of today's runs sent the same packets.
"""

import argparse
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any, Final

import trio
from worlds.earlier import TODAY, answer, checkout, measured

from shoal.netsim.daemons.daemon import Daemon, DaemonHandle
from shoal.netsim.host import Host
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.trace.trace import Trace
from shoal.netsim.world import World

MEASURES = ("netsim", "node", "tasks", "state", "dht", "transport")

BASE: Final = "1daa4647"
GOAL: Final = 0.9
ANSWERS: Final = 3  # of each daemon that asks
TOKENS: Final = 32
SERVERS: Final = 10  # one daemon in this many has an engine
CLIENTS: Final = 5  # one of the others in this many asks
TRIES: Final = 10
ASKS: Final = 2  # measurements of each start
HOME: Final = LinkSpec(
    PipeSpec(0.008, jitter=0.004, rate=2.5e6, loss=0.0005),
    PipeSpec(0.002, rate=12.5e6, loss=0.0005),
)


class Swarm:
    """Daemons of which some serve a model and some ask it."""

    def __init__(self, count: int) -> None:
        self.trace = Trace()
        self.world = World(1, trace=self.trace)
        self.world.patience = 0  # the process waits for its copies as long as they take
        self.hosts = [self.world.host(f"n{number}", link=HOME) for number in range(count)]
        self.servers: list[DaemonHandle] = []
        self.others: list[DaemonHandle] = []
        self.answered = 0
        self.refused = 0

    async def start(self) -> None:
        """Start a daemon with the model, then the others within five seconds. Wait until all that
        shall serve the model do."""
        random = Random(1)
        self.servers.append(await self.hosts[0].start(Daemon()))
        await self.servers[0].serving()
        async with trio.open_nursery() as nursery:
            for number, host in enumerate(self.hosts[1:], 1):
                known = {0, random.randrange(number), random.randrange(number)}
                addresses = tuple(f"{self.hosts[each].addresses()[0]}:4001" for each in known)
                serves = number % SERVERS == 0
                after = random.uniform(0, 5)
                nursery.start_soon(self._start, host, addresses, serves, after)
        with trio.fail_after(300):
            for server in self.servers:
                await server.serving()
        await trio.sleep(30)  # until the news of it has spread

    async def tell(self) -> None:
        """Print every ten virtual seconds how far the swarm is, since its start takes long."""
        began = trio.current_time()
        while True:
            await trio.sleep(10)
            print(
                f"{len(self.hosts)} daemons: {trio.current_time() - began:.0f} virtual s, "
                f"{time.process_time():.0f} s of CPU, {self.world.network.sent} packets",
                file=sys.stderr,
            )

    async def _start(
        self, host: Host, bootstrap: tuple[str, ...], serves: bool, after: float
    ) -> None:
        await trio.sleep(after)
        model = "tiny" if serves else None
        daemon = await host.start(Daemon(bootstrap=bootstrap, engine=serves, model=model))
        (self.servers if serves else self.others).append(daemon)

    async def ask(self) -> None:
        """Have all clients ask at once, and wait for their answers."""
        async with trio.open_nursery() as nursery:
            for daemon in self.others[::CLIENTS]:
                nursery.start_soon(self._ask, daemon)

    async def _ask(self, daemon: DaemonHandle) -> None:
        for number in range(ANSWERS):
            for _ in range(TRIES):
                prompt = f"{daemon.host.name} asks question {number}"
                took = await daemon.answer_time(prompt, model="tiny", max_tokens=TOKENS)
                if took is not None:
                    self.answered += 1
                    break
                self.refused += 1  # the servers have too many sessions
                await trio.sleep(1)


def run(count: int) -> dict[str, Any]:
    """Start a swarm, and measure its answers several times."""
    swarm = Swarm(count)

    async def main() -> dict[str, Any]:
        began, before = time.process_time(), trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(swarm.tell)
            await swarm.start()
            nursery.cancel_scope.cancel()
        figures = {
            "start_cpu_s": time.process_time() - began,
            "start_virtual_s": trio.current_time() - before,
        }
        figures = {name: round(figure, 3) for name, figure in figures.items()}
        return figures | {"asks": [await in_copy(swarm) for _ in range(ASKS)]}

    return swarm.world.run(main)


async def in_copy(swarm: Swarm) -> dict[str, Any]:
    """Measure the answers of a swarm in a copy of this process."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.write(writing, json.dumps(await measure(swarm)).encode())
            code = 0
        finally:
            os._exit(code)  # the copy must not return to its caller
    os.close(writing)
    return received(reading, child)


def received(reading: int, child: int) -> dict[str, Any]:
    """Wait for the figures of a copy."""
    with open(reading, "rb") as pipe:
        packed = pipe.read()
    if os.waitpid(child, 0)[1]:
        raise SystemExit("error: a copy of the swarm failed")
    found: dict[str, Any] = json.loads(packed)
    return found


async def measure(swarm: Swarm) -> dict[str, Any]:
    """Have all clients ask."""
    began, before, packets = time.process_time(), trio.current_time(), swarm.world.network.sent
    await swarm.ask()
    return {
        "cpu_s": round(time.process_time() - began, 3),
        "virtual_s": round(trio.current_time() - before, 3),
        "packets": swarm.world.network.sent - packets,
        "digest": swarm.trace.digest,
        "answers": swarm.answered,
        "refused": swarm.refused,
    }


def compare(count: int) -> dict[str, Any]:
    """Measure that commit and today's code at the same time."""
    with checkout(BASE) as folder, ThreadPoolExecutor(3) as lanes:
        base = lanes.submit(measured, folder, __file__, "--run", count)
        today = [lanes.submit(measured, TODAY, __file__, "--run", count) for _ in range(2)]
        sides = {"base": [base.result()], "ours": [each.result() for each in today]}
    asks = {side: [ask for each in runs for ask in each["asks"]] for side, runs in sides.items()}
    value = round(_least(asks["base"]) / _least(asks["ours"]), 3)
    same = len({each["digest"] for each in asks["ours"]}) == 1
    all_answered = len({each["answers"] for runs in asks.values() for each in runs}) == 1
    return {
        "name": "netsim_engines",
        "value": value,
        "goal": GOAL,
        "ok": value >= GOAL and same and all_answered,
        "unit": f"speed of the same answers, divided by that of {BASE}",
        "same_packets": same,
        "start": round(sides["base"][0]["start_cpu_s"] / sides["ours"][0]["start_cpu_s"], 3),
        "hosts": count,
    } | {side: _shown(runs) for side, runs in sides.items()}


def _least(asks: list[dict[str, Any]]) -> float:
    return min(float(each["cpu_s"]) for each in asks)


def _shown(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the runs without their digests."""
    asks = [
        [{name: ask[name] for name in ask if name != "digest"} for ask in each["asks"]]
        for each in runs
    ]
    return [
        {
            "start_cpu_s": each["start_cpu_s"],
            "start_virtual_s": each["start_virtual_s"],
            "asks": ask,
        }
        for each, ask in zip(runs, asks, strict=True)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="16 daemons")
    parser.add_argument("--hosts", type=int, default=500, help="daemons, instead of 500")
    parser.add_argument("--run", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        answer(run(args.run))
        return 0
    result = compare(16 if args.quick else args.hosts)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
