"""CPU time of a simulated swarm whose engines compute many sessions at once, compared with commit
1daa4647.

That commit is the last one before engines computed in steps over many sessions. The swarm is of 500
daemons (`--quick`: 16) with their files, links and state. One in ten serves a small model, and the
others have no engine. Once the model is served, one in five of the others asks for answers, all at
the same time: three each, one after the other. Both sides run in turns, twice each, with the same
seed.

`value` is that commit's CPU time from the first request to the last answer, divided by today's:
the speed of the same work. Goal: at least 0.9. `start` is the same of the time until the model is
served, which has no goal here. `ok` also asks that both of today's runs sent the same packets.
"""

import argparse
import json
import sys
import time
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
RUNS: Final = 2
HOME: Final = LinkSpec(
    PipeSpec(0.008, jitter=0.004, rate=2.5e6, loss=0.0005),
    PipeSpec(0.002, rate=12.5e6, loss=0.0005),
)


class Swarm:
    """Daemons of which some serve a model and some ask it."""

    def __init__(self, count: int) -> None:
        self.trace = Trace()
        self.world = World(1, trace=self.trace)
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
    """Measure one run."""
    swarm = Swarm(count)

    async def main() -> dict[str, Any]:
        began, before = time.process_time(), trio.current_time()
        await swarm.start()
        started, served = time.process_time(), trio.current_time()
        await swarm.ask()
        return {
            "start_cpu_s": started - began,
            "start_virtual_s": served - before,
            "ask_cpu_s": time.process_time() - started,
            "ask_virtual_s": trio.current_time() - served,
        }

    found: dict[str, Any] = swarm.world.run(main)
    figures = {name: round(figure, 3) for name, figure in found.items()}
    return figures | {
        "packets": swarm.world.network.sent,
        "digest": swarm.trace.digest,
        "answers": swarm.answered,
        "refused": swarm.refused,
    }


def compare(count: int) -> dict[str, Any]:
    """Measure that commit and today's code in turns."""
    base, ours = [], []
    with checkout(BASE) as folder:
        for _ in range(RUNS):
            base.append(measured(folder, __file__, "--run", count))
            ours.append(measured(TODAY, __file__, "--run", count))
    ratio = {
        name: round(min(each[name] for each in base) / min(each[name] for each in ours), 3)
        for name in ("ask_cpu_s", "start_cpu_s")
    }
    same = len({each["digest"] for each in ours}) == 1
    all_answered = {each["answers"] for each in base + ours} == {ours[0]["answers"]}
    value = ratio["ask_cpu_s"]
    return {
        "name": "netsim_engines",
        "value": value,
        "goal": GOAL,
        "ok": value >= GOAL and same and all_answered,
        "unit": f"speed of the same answers, divided by that of {BASE}",
        "same_packets": same,
        "start": ratio["start_cpu_s"],
        "ours": _shown(ours),
        "base": _shown(base),
        "hosts": count,
    }


def _shown(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    hidden = ("shoal", "digest")
    return [{name: each[name] for name in each if name not in hidden} for each in runs]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="16 daemons")
    parser.add_argument("--run", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        answer(run(args.run))
        return 0
    result = compare(16 if args.quick else 500)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
