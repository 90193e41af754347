"""A tuning beside inference on the same workers, at 25, 50 and 75 % load.

Simulated: three daemons on a network of 2 ms serve a model whose step takes 17 ms on each of them,
and requests arrive at random. Real: one worker process with a model of 125 M parameters and one
thread. The load is the part of the devices' time that requests take without a tuning. The same
requests come with and without a tuning, in the simulator with the same seed, and on the real worker
in turns.

`used` is the tuning's throughput, divided by that without requests and by the part of the time that
requests leave. `device` is the part of the time left by requests in which the tuning computes. The
goal is 0.76 for both, because the tuning alone may wait too. `rise` is how much longer the time
between tokens is with the tuning: its 99th percentile in the simulator, goal 10 %, and its 95th on
the real worker, goal 25 %.
"""

import argparse
import json
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import trio
from worlds import cotuning, engines
from worlds.cotuning import Figures

from shoal.netsim.world import World

MEASURES = ("tasks", "netsim", "node", "state", "dht", "transport", "shoal/models")

USED: Final = 0.76
RISES: Final = {"netsim": 0.10, "real": 0.25}
PARTS: Final = {"netsim": 0.99, "real": 0.95}
LOADS: Final = (0.25, 0.5, 0.75)
RATE: Final = 0.25  # simulated requests per second that are tried first
SHAPE: Final = "125M"
NEAR: Final = 0.04  # the largest difference between the load and the intended one
TRIES: Final = 4
LEAST: Final = 6  # requests in a run


def figures(kind: str, load: float, idle: Figures, alone: Figures, both: Figures) -> dict[str, Any]:
    """Return what a run with some load shows. `idle` had a tuning alone."""
    devices = len(cotuning.LAYERS) if kind == "netsim" else 1
    busy = alone.inference_s / (alone.seconds * devices)
    speed, most = both.positions / both.seconds, idle.positions / idle.seconds
    taken = both.inference_s / (both.seconds * devices)
    before, after = alone.gap(PARTS[kind]), both.gap(PARTS[kind])
    used, rise = speed / (most * (1 - taken)), after / before - 1
    device = both.tuning_s / (both.seconds * devices - both.inference_s)
    return {
        "load": round(busy, 3),
        "used": round(used, 3),
        "rise": round(rise, 3),
        "device": round(device, 3),
        "gap_ms": [round(1e3 * before, 1), round(1e3 * after, 1)],
        "median_ms": [round(1e3 * alone.gap(0.5), 1), round(1e3 * both.gap(0.5), 1)],
        "kept": round(speed / most, 3),
        "gaps": len(both.gaps),
        "ok": min(used, device) >= USED and rise <= RISES[kind] and abs(busy - load) <= 2 * NEAR,
    }


async def fitted(
    load: float, rate: float, devices: int, run: Callable[[float], Awaitable[Figures]]
) -> tuple[float, Figures]:
    """Return the requests per second that take about the part `load` of the devices' time, and what
    their run has shown. `rate` is tried first."""
    for number in range(TRIES):
        found = await run(rate)
        busy = found.inference_s / (found.seconds * devices)
        if abs(busy - load) <= NEAR or number + 1 == TRIES:
            break
        rate *= load / busy
    return rate, found


async def simulated(loads: tuple[float, ...], seconds: float, world: World) -> list[dict[str, Any]]:
    """Return the figures of the simulated daemons."""
    found, rate = [], RATE
    async with cotuning.swarm(world) as swarm:
        idle = await swarm.run(0.0, seconds / 4, tune=True)
        run = partial(swarm.run, seconds=seconds, tune=False)
        for load in loads:
            rate, alone = await fitted(load, rate, len(cotuning.LAYERS), run)
            both = await swarm.run(rate, seconds, tune=True)
            found.append(figures("netsim", load, idle, alone, both))
            rate *= 2
            print(json.dumps(found[-1]), file=sys.stderr)
    return found


async def real(loads: tuple[float, ...], seconds: float, turns: int) -> list[dict[str, Any]]:
    """Return the figures of a real worker."""
    found = []
    async with engines.worker(SHAPE, threads=1) as worker:
        tuning = cotuning.RealTuning(worker, SHAPE)
        await tuning.open()
        answer = await worker.generate(engines.prompt(cotuning.PROMPT, 1, SHAPE), cotuning.ANSWER)
        rate = loads[0] / (answer.times[-1] - answer.began)

        async def plain(rate: float) -> Figures:
            return await cotuning.real(worker, SHAPE, rate, max(seconds, LEAST / rate), None)

        for load in loads:
            rate, _ = await fitted(load, rate, 1, plain)
            idle, alone, both = Figures(), Figures(), Figures()
            for _ in range(turns):
                long = max(seconds, LEAST / rate)
                idle.add(await cotuning.real(worker, SHAPE, 0.0, 2 * seconds, tuning))
                alone.add(await cotuning.real(worker, SHAPE, rate, long, None))
                both.add(await cotuning.real(worker, SHAPE, rate, long, tuning))
            found.append(figures("real", load, idle, alone, both))
            print(json.dumps(found[-1]), file=sys.stderr)
            rate *= 2
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer requests")
    parser.add_argument("--only", choices=RISES, help="one of the two parts")
    args = parser.parse_args()
    found: dict[str, Any] = {}
    if args.only != "real":
        world = World(seed=1)
        seconds = 40.0 if args.quick else 300.0
        found["netsim"] = world.run(lambda: simulated(LOADS, seconds, world))
    if args.only != "netsim":
        found["real"] = trio.run(real, LOADS, *((10.0, 1) if args.quick else (20.0, 3)))
    rows = [row for rows in found.values() for row in rows]
    head = {"name": "tuning_beside", "value": min(min(row["used"], row["device"]) for row in rows)}
    head |= {"goal": {"used": USED, "rise": RISES}, "ok": all(row["ok"] for row in rows)}
    print(json.dumps(head | found))
    return 0 if head["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
