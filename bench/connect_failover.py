"""Calls and streams while a path fails: how many are lost or executed twice, and how late they are.

Each seed is a small world: two homes behind NATs of random kinds with lossy links, two to four
relays whose owners lend 1 MB/s each, calls of mixed sizes and a stream in both directions, and
one fault at a random moment. A
call is lost if it ends with an error or takes 15 s longer than the interruption. A call executed
twice counts as lost too. `delay` is measured for the calls that were in progress at the failure or
began within 5 s after it: from the failure (or the end of a longer one, such as a sleep) or from
their own start, whichever is later. Calls continue at their rate while a peer is quiet. Goals: no
call lost; done within 5 s if another path is ready or the same address can be dialled again,
otherwise within 15 s.

`--out FILE` keeps one line per seed, and resumes there after a stop. `--quick` is 27 seeds. `--only
NAME` runs one kind of fault, `--seed N -v` one world with its events.
"""

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio
from worlds.failover import (
    LASTS_S,
    MISFORTUNES,
    PUBLISH_S,
    READY_S,
    TIMEOUT_S,
    Town,
    build,
    work,
)

from shoal.netsim.faults import Faults
from shoal.netsim.seeds import Figures, measure
from shoal.netsim.world import World
from shoal.transport.bytestream import PathKind
from shoal.transport.errors import DialFailed
from shoal.transport.link.link import Link

MEASURES = ("transport", "netsim")

AFTER_S = 12.0
Tell = Callable[..., None]


async def live(town: Town) -> Figures:
    async with trio.open_nursery() as nursery:
        await build(town)
        nursery.start_soon(town.publish)
        found = await live_on(town)
        nursery.cancel_scope.cancel()
    return found


async def live_on(town: Town) -> Figures:
    watch(town)
    one, other = (home.node for home in town.homes)
    await trio.sleep(PUBLISH_S)
    try:
        await one.connect(other.peer)
    except DialFailed:  # a network that only lets out 443, and no relay at the other end
        await other.connect(one.peer)
    town.patience += LASTS_S.get(town.misfortune, 0.0)
    with trio.move_on_after(town.rng.uniform(6, 12)):
        while (link := town.link()) is None or link.path_kind is PathKind.RELAYED:  # noqa: ASYNC110
            await trio.sleep(0.1)
    async with trio.open_nursery() as nursery:
        await work(town, nursery)
        await trio.sleep(town.rng.uniform(2, 5))
        before = path_of(town)
        town.began = town.base = trio.current_time()
        town.say(f"{trio.current_time():.2f} {town.misfortune}: {before}")
        ready = await MISFORTUNES[town.misfortune](town)
        town.base = trio.current_time()
        town.say(f"{trio.current_time():.2f} recovery can begin")
        await trio.sleep(AFTER_S)
        town.stop = True
        await trio.sleep(TIMEOUT_S)
        nursery.cancel_scope.cancel()
    return figures(town, before, ready)


def path_of(town: Town) -> str:
    link = town.link()
    return (
        "none"
        if link is None
        else "+".join(
            f"{path.path_kind}/{path.medium}{'*' if path.used else ''}"
            for path in link.status.paths
        )
    )


def figures(town: Town, before: str, ready: bool) -> Figures:
    late = []
    for began, ended, code in town.calls:
        if not code and ended > town.began and began < town.base + READY_S:
            late.append(ended - max(began, town.base))
    codes = Counter(code for *_, code in town.calls if code)
    twice = sum(n > 1 for home in town.homes for n in home.node.calls.values())
    bound = READY_S if ready else TIMEOUT_S
    delays = sorted(round(max(0.0, each), 3) for each in (*late, *town.stalls))
    return {
        "misfortune": town.misfortune,
        "kinds": [home.kind for home in town.homes],
        "before": before,
        "after": path_of(town),
        "bound": bound,
        "calls": len(town.calls),
        "lost": dict(codes),
        "twice": twice,
        "unpaired": town.unpaired,
        "delays": delays,
        "late": sum(each > bound for each in delays),
        "virtual_s": round(town.world.events.now, 1),
    }


def watch(town: Town) -> None:
    """Check the links of the homes: a link that becomes quiet comes back or is lost."""
    for home in town.homes:
        name, endpoint = home.node.computer.name, home.node.endpoint

        def tell(what: str, link: Link, *rest: object, name: str = name) -> None:
            words = " ".join(map(str, (what, link.peer[-4:], *rest)))
            town.say(f"{trio.current_time():.2f} {name}: {words}")

        def quiet(link: Link, tell: Tell = tell) -> None:
            tell("quiet", link)
            town.unpaired += link in town.quiet
            town.quiet.add(link)

        def back(link: Link, tell: Tell = tell) -> None:
            tell("back", link)
            town.unpaired += link not in town.quiet
            town.quiet.discard(link)

        def lost(link: Link, code: str, tell: Tell = tell) -> None:
            tell("lost", link, code)
            town.quiet.discard(link)

        endpoint.on_link_quiet(quiet)
        endpoint.on_link_back(back)
        endpoint.on_link_lost(lost)
        endpoint.on_path(partial(tell, "path"))


def one_seed(seed: int, only: str = "", *, verbose: bool = False) -> Figures:
    """Return the result of one world."""
    began = time.process_time()
    names = list(MISFORTUNES)
    rng = random.Random(seed)
    world = World(seed=seed, latency=rng.uniform(0.005, 0.06))
    town = Town(world, Faults(world), rng, only or names[seed % len(names)])
    if verbose:
        town.say = print

    async def main() -> Figures:
        return await live(town)

    found: Figures = world.run(main)
    return found | {"cpu_s": round(time.process_time() - began, 2)}


# The table.


def table(found: list[Figures]) -> list[str]:
    head = f"{'misfortune':20}{'seeds':>6}{'calls':>8}{'lost':>6}{'twice':>6}{'late':>6}{'>5 s':>6}"
    lines = [head + f"{'p50':>8}{'p95':>8}{'max':>8}  s"]
    for name in MISFORTUNES:
        items = [item for item in found if item["misfortune"] == name]
        if not items:
            continue
        delays = sorted(each for item in items for each in item["delays"]) or [0.0]
        lines.append(
            f"{name:20}{len(items):6}{sum(item['calls'] for item in items):8}"
            f"{sum(map(lost, items)):6}{sum(item['twice'] for item in items):6}"
            f"{sum(item['late'] for item in items):6}{sum(each > READY_S for each in delays):6}"
            + "".join(f"{share(delays, part):8.2f}" for part in (0.5, 0.95, 1.0))
        )
    return lines


def lost(item: Figures) -> int:
    return sum(item["lost"].values())


def is_bad(item: Figures) -> bool:
    return bool(lost(item) or item["twice"] or item["late"] or item["unpaired"])


def share(values: list[float], part: float) -> float:
    return values[min(len(values) - 1, int(part * len(values)))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="27 seeds")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", choices=list(MISFORTUNES), default="")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("-v", "--verbose", action="store_true")
    parser.add_argument("--out", type=Path, help="keep one line per seed here, and resume")
    args = parser.parse_args()
    seeds = range(args.first, args.first + (27 if args.quick else args.seeds))
    if args.seed is not None:
        seeds = range(args.seed, args.seed + 1)
    found = measure(
        lambda seed: one_seed(seed, args.only, verbose=args.verbose),
        seeds,
        settings={"bench": "connect_failover", "only": args.only, "thinned": False},
        path=args.out,
        say=print if args.verbose else lambda line: None,
    )
    print("\n".join(table(found)))
    value = sum(lost(item) + item["twice"] for item in found)
    late = sum(item["late"] for item in found)
    unpaired = sum(item["unpaired"] for item in found)
    bad = [seed for seed, item in zip(seeds, found, strict=True) if is_bad(item)]
    result = {
        "name": "connect_failover",
        "value": value,
        "goal": 0,
        "ok": not value and not late and not unpaired,
        "unit": "calls lost or executed twice",
        "calls": sum(item["calls"] for item in found),
        "late": late,
        "unpaired": unpaired,
        "seeds": len(found),
        "bad_seeds": bad[:50],
        "cpu_s_per_seed": round(sum(item["cpu_s"] for item in found) / len(found), 2),
    }
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
