"""The model of `routed.py` against whole simulated daemons: the same requests on both.

Four daemons serve the embedded model on slow machines, and two without an engine are the gateways.
Prompts have nothing in common, so that what is compared is loads, waits and choices.
"""

import json
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, Final

import trio

from shoal.netsim.daemons.daemon import Daemon, DaemonHandle
from shoal.netsim.daemons.profile import PROFILES, Profile
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.world import World as Internet
from shoal.tasks.costs.rates import DeviceRates
from shoal.tasks.costs.steps import shard_costs
from shoal.tasks.costs.work import ModelWork
from shoal.tasks.engine.families import architecture
from shoal.tasks.engine.interface import Parts
from shoal.tasks.engine.scheduling.costs import StepCosts

from .routed import Fleet, Request, World

SERVERS: Final = 4
GATEWAYS: Final = 2
REQUESTS: Final = 120
RATE: Final = 1.5  # requests per second
TOKENS: Final = 20
DELAY_S: Final = 0.01  # of a packet on each host's link
SLOW: Final = Profile(
    "slow", PROFILES["desktop"].machine, DeviceRates(1e9, 5e9, 5e9), offered=2 << 30, step_s=1e-3
)
LINK: Final = LinkSpec(PipeSpec(DELAY_S, rate=12.5e6), PipeSpec(DELAY_S, rate=12.5e6))


def costs() -> StepCosts:
    """Return the costs of a step on a server, as the simulated engine predicts them."""
    config = json.loads((Path(__file__).parents[2] / "shoal/models/tiny/config.json").read_text())
    arch = architecture(config)
    work = ModelWork(arch, "float32").of(Parts(True, 0, arch.layers, True))
    return StepCosts(*shard_costs(SLOW.rates, work))


def prompts(seed: int) -> list[tuple[float, str]]:
    """Return the time and the text of each request."""
    random, now, found = Random(seed), 0.0, []
    for number in range(REQUESTS):
        now += random.expovariate(RATE)
        words = " ".join(str(random.randrange(10)) for _ in range(random.randrange(20, 300)))
        found.append((now, f"{number}: {words}"))
    return found


async def _ask(
    gateway: DaemonHandle, number: int, text: str, found: dict[int, tuple[int, float]]
) -> None:
    reply = await gateway.generate(text, max_tokens=TOKENS, raw=True)
    found[number] = reply["prompt_tokens"], reply["ttft_ms"] / 1e3


def daemons(seed: int) -> dict[int, tuple[int, float]]:
    """Return the prompt's positions and the seconds to the first token, by request."""
    internet = Internet(seed=seed)
    found: dict[int, tuple[int, float]] = {}

    async def main() -> None:
        hosts = [internet.host(f"n{n}", link=LINK) for n in range(SERVERS + GATEWAYS)]
        started: list[DaemonHandle] = []
        for number, host in enumerate(hosts):
            serves = number < SERVERS
            started.append(
                await host.start(
                    Daemon(
                        bootstrap=started[:1],
                        profile=SLOW,
                        engine=serves,
                        layers=(0, 6) if serves else None,
                        model="tiny" if serves else None,
                    )
                )
            )
            if serves:
                await started[-1].serving()
        for each in started:
            await each.until(lambda status: status["peers"] == SERVERS + GATEWAYS - 1)
        await trio.sleep(10)
        random, began = Random(seed), trio.current_time()
        async with trio.open_nursery() as nursery:
            for number, (at, text) in enumerate(prompts(seed)):
                await trio.sleep_until(began + at)
                gateway = random.choice(started[SERVERS:])
                nursery.start_soon(_ask, gateway, number, text, found)

    internet.run(partial(main))
    return found


def compare(seed: int = 1) -> dict[str, Any]:
    """Return the seconds to the first token in daemons and in the model."""
    real = daemons(seed)
    requests = [
        Request(at, real[number][0], TOKENS, (number,))
        for number, (at, _) in enumerate(prompts(seed))
    ]
    fleet = Fleet(costs(), SERVERS, GATEWAYS, round_trip=4 * DELAY_S, shared=False)
    model = World(fleet, requests, "shoal", seed).run().first
    seconds = [real[number][1] for number in range(REQUESTS)]
    return {
        "daemons": _figures(seconds),
        "model": _figures(model),
        "ratio_of_means": round(fmean(model) / fmean(seconds), 3),
    }


def _figures(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        "mean_s": round(fmean(ordered), 3),
        "median_s": round(ordered[len(ordered) // 2], 3),
        "p90_s": round(ordered[int(0.9 * len(ordered))], 3),
    }
