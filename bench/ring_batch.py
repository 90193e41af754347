"""Sixteen sessions at once through a chain of four stages, compared with one session.

The machines are 20 ms apart. In the simulator, each is an old laptop, scaled so that a stage of the
embedded model takes as long as one of 1.1 billion parameters in bfloat16. A step of that laptop
takes longer with more than four rows, so it matters that groups of sessions keep all stages busy.
The negative control has the sessions visit the chain in groups of four one after another: dividing
them without overlap is slower than one group. A stage that computes nothing while work waits in its
queue wastes time; `idle` is the largest such part of the time of any stage.

Real daemons in network namespaces of this machine are measured too, which needs root. All stages
share its cores, so with two of them four stages cannot all compute at once.

`value` is the tokens per second of sixteen sessions divided by those of one; goal: 10 simulated and
5 real. `idle` has the goal 0.15.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import trio
from worlds.chain import Chain
from worlds.randommodel import SHAPES

from shoal.netsim.daemons.daemon import Daemon, DaemonHandle
from shoal.netsim.daemons.engine import SimulatedWorker
from shoal.netsim.daemons.profile import PROFILES
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World
from shoal.tasks.engine.core import Core
from shoal.tasks.engine.grouping import Groups

MEASURES = ("netsim", "tasks", "transport", "cli", "node", "bench/worlds/chain.py")

ROUND_TRIP: Final = 0.020
SESSIONS: Final = 16
GROUPS: Final = 4
GOALS: Final = {"simulated": 10.0, "real": 5.0}
IDLE_GOAL: Final = 0.15
LAYERS: Final = ((0, 2), (2, 4), (4, 5), (5, 6))  # the last stage also has the head
SCALE: Final = 0.7e6 * 22 / 1.03e9 * 0.364  # a layer of the embedded model, of 1.1 B: 5.5 layers


@dataclass
class Watch:
    """Use of the time of a stage's worker: seconds of computing, and seconds in which it was idle
    although a span waited for it."""

    busy: float = 0.0
    wasted: float = 0.0
    waiting: float | None = None  # since when a span waits
    ended: float = 0.0  # when the last step ended


class Ring:
    """The daemons of a simulated chain and a client, which computes nothing."""

    def __init__(self) -> None:
        self.world = World(1)
        pipe = PipeSpec(delay=ROUND_TRIP / 4)
        names = "client", *(f"stage{number}" for number in range(len(LAYERS)))
        self.hosts = [self.world.host(name, link=LinkSpec(pipe, pipe)) for name in names]
        self.client: DaemonHandle | None = None

    async def start(self) -> DaemonHandle:
        """Start all daemons, and return that of the client."""
        laptop = PROFILES["old-laptop"]
        rates = {
            name: getattr(laptop.speed, name) * SCALE
            for name in ("bandwidth", "float32", "bfloat16")
        }
        profile = replace(laptop, speed=replace(laptop.speed, **rates))
        first: DaemonHandle | None = None
        for host, layers in zip(self.hosts[1:], LAYERS, strict=True):
            known = () if first is None else (first,)
            daemon = await host.start(
                Daemon(
                    bootstrap=known, profile=profile, model="tiny", layers=layers, dtype="bfloat16"
                )
            )
            await daemon.serving()
            first = first or daemon
        assert first is not None
        self.client = await self.hosts[0].start(Daemon(bootstrap=(first,), engine=False))
        await self.client.until(lambda status: status["peers"] == len(LAYERS))
        await trio.sleep(30)  # until it knows what all serve
        return self.client


async def rate(client: DaemonHandle, sessions: int, tokens: int) -> float:
    """Return the tokens per second of several answers that begin at once."""
    made = 0

    async def ask(number: int) -> None:
        nonlocal made
        more = {"raw": True, "max_tokens": tokens, "temperature": 1.0}  # no text to draft from
        answer = await client.ask("run", model="tiny", prompt=f"question {number}", **more)
        made += answer["tokens"]

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(sessions):
            nursery.start_soon(ask, number)
    return made / (trio.current_time() - began)


@contextmanager
def watched() -> Iterator[dict[Core, Watch]]:
    """Watch all workers of the simulation in the block."""
    found: dict[Core, Watch] = {}
    flush, step = SimulatedWorker.flush, Core.step

    def watching_flush(self: SimulatedWorker) -> bool:
        watch = found.setdefault(self._core, Watch())
        if watch.waiting is None and any(frame[0][0] == "span" for frame in self._queued):
            watch.waiting = self._core.clock()
        return flush(self)

    def watching_step(self: Core) -> None:
        watch, began = found.setdefault(self, Watch()), self.clock()
        if watch.waiting is not None:
            watch.wasted += max(0.0, began - max(watch.waiting, watch.ended))
        step(self)
        watch.ended = self.clock()
        watch.busy += watch.ended - began
        watch.waiting = watch.ended if self.busy else None

    SimulatedWorker.flush, Core.step = watching_flush, watching_step  # type: ignore[method-assign]
    try:
        yield found
    finally:
        SimulatedWorker.flush, Core.step = flush, step  # type: ignore[method-assign]


@contextmanager
def without_groups() -> Iterator[None]:
    """Have each step take all rows that wait, as before there were groups."""
    before = Groups.most
    Groups.most = lambda self: 10**9  # type: ignore[method-assign]
    try:
        yield
    finally:
        Groups.most = before  # type: ignore[method-assign]


def simulated(quick: bool) -> dict[str, Any]:
    """Measure the simulated chain."""
    tokens = 48 if quick else 128
    ring = Ring()

    async def main() -> dict[str, Any]:
        client = await ring.start()
        one = await rate(client, 1, tokens)
        with watched() as watches:
            began = trio.current_time()
            many = await rate(client, SESSIONS, tokens)
            took = trio.current_time() - began
        with without_groups():
            together = await rate(client, SESSIONS, tokens)
        # Without overlap, a group of four has the chain for itself, and then waits for the others.
        serial = await rate(client, SESSIONS // GROUPS, tokens)
        return {
            "value": many / one,
            "idle": max(watch.wasted for watch in watches.values()) / took,
            "busy": [round(watch.busy / took, 2) for watch in watches.values()],
            "one_per_s": one,
            "all_per_s": many,
            "one_group": together / one,
            "groups_without_overlap": serial / one,
        }

    return ring.world.run(main)


def real(quick: bool) -> dict[str, Any]:
    """Measure daemons in namespaces. Rates are those of whole answers, after the first tokens."""
    tokens = 32 if quick else 96
    with Chain(SHAPES["tiny" if quick else "125M"], stages=4) as chain:
        chain.start_daemons()
        chain.delay(ROUND_TRIP)
        ones, alls = list[float](), list[float]()
        for _ in range(1 if quick else 3):
            ones.append(chain.ask(tokens=tokens).tokens_per_s)
            began = time.monotonic()
            answers = chain.ask_many(SESSIONS, tokens=tokens)
            alls.append(sum(each.tokens for each in answers) / (time.monotonic() - began))
    one, many = sorted(ones)[len(ones) // 2], sorted(alls)[len(alls) // 2]
    return {
        "value": many / one, "one_per_s": one, "all_per_s": many, "cores": os.cpu_count()
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter answers, a smaller model")
    parser.add_argument("--only", choices=list(GOALS), help="in one of the two places only")
    args = parser.parse_args()
    found, value = dict[str, dict[str, Any]](), dict[str, float]()
    for kind, measure in (("simulated", simulated), ("real", real)):
        if args.only in (kind, None):
            figures = measure(args.quick)
            value[kind] = round(figures.pop("value"), 2)
            found[kind] = figures
    ok = all(value[kind] >= GOALS[kind] for kind in value)
    if "simulated" in found:
        figures = found["simulated"]
        overlap = figures["one_group"] > figures["groups_without_overlap"]
        ok = ok and figures["idle"] <= IDLE_GOAL and overlap
    print(
        json.dumps(
            {
                "name": "ring_batch",
                "value": value,
                "goal": GOALS,
                "ok": ok,
                "unit": f"tokens/s of {SESSIONS} sessions, divided by those of one",
                "figures": {
                    kind: {
                        name: round(figure, 3) if isinstance(figure, float) else figure
                        for name, figure in figures.items()
                    }
                    for kind, figures in found.items()
                },
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
