"""Answers over homes behind NATs while 30 % of the nodes are replaced each hour: how many complete?

Simulated homes of `home-volunteers-2026` in Europe serve the four parts of a model, each part the
same number of times. A home that asks has several answers generated at once. At random times, 30 %
of the homes an hour lose their power for good, and a new home with the same layers joins a minute
later.

`value` is the percentage of answers with all their tokens and the text that the same seed gave in a
swarm at rest; goal 99.9. `--quick` has 60 answers with 12 homes, and replaces 100 times as many.
"""

import argparse
import json
import sys
from functools import partial
from random import Random
from typing import Final

import trio
from worlds.homes import Answered, Homes, Part

MEASURES = ("netsim", "node", "tasks", "state", "dht", "transport")

SPLITS: Final = ((0, 1), (1, 3), (3, 5), (5, 6))
REPLACED: Final = 0.3  # of the nodes, each hour
AT_ONCE: Final = 4
TOKENS: Final = 60
SEEDS: Final = 8  # different texts
NEW_AFTER_S: Final = 60.0
GOALS: Final = {"value": 99.9}


async def run(homes: Homes, answers: int, copies: int, hurry: float, seed: int) -> list[Answered]:
    """Have `answers` generated while homes are replaced `hurry` times as often. The first SEEDS
    ones come before."""
    await homes.start(SPLITS, copies)
    random, found = Random(seed), list[Answered]()
    pause = 3600 / (REPLACED * len(SPLITS) * copies * hurry)
    left = iter(range(answers))

    async def replace_one(lost: Part) -> None:
        await trio.sleep(NEW_AFTER_S / max(1.0, hurry / 10))
        await homes.add(Part(lost.layers, homes.draw()))

    async def churn() -> None:
        while True:
            await trio.sleep(random.expovariate(1 / pause))
            parts = [part.layers for part in homes.parts.values()]
            names = [n for n, part in homes.parts.items() if parts.count(part.layers) > 1]
            if names:  # the last replica of a part stays
                nursery.start_soon(replace_one, await homes.lose(random.choice(names)))

    async def ask() -> None:
        for number in left:
            found.append(await homes.ask(TOKENS, seed=number % SEEDS))
            if found[-1].failed:
                print(f"answer {number}: {found[-1].text}", file=sys.stderr)

    found += [await homes.ask(TOKENS, seed=number) for number in range(SEEDS)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(churn)
        async with trio.open_nursery() as asking:
            for _ in range(AT_ONCE):
                asking.start_soon(ask)
        nursery.cancel_scope.cancel()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="60 answers")
    parser.add_argument("--answers", type=int, help="number of answers (10,000)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    answers = args.answers or (60 if args.quick else 10_000)
    copies, hurry = (3, 100.0) if args.quick else (5, 1.0)
    homes = Homes(args.seed, open_ports=False)
    found = homes.world.run(partial(run, homes, answers, copies, hurry, args.seed))
    first, rest = found[:SEEDS], found[SEEDS:]
    texts = {each.text for each in first}
    assert all(each.tokens == TOKENS for each in first), first
    complete = sum(each.tokens == TOKENS for each in rest)
    right = sum(each.tokens == TOKENS and each.text in texts for each in rest)
    value = 100 * right / answers
    ok = value >= GOALS["value"]
    print(json.dumps({
        "name": "ring_replaced", "value": round(value, 3), "goal": GOALS["value"], "ok": ok,
        "goals": GOALS, "answers": answers, "complete": complete,
        "lost": homes.lost, "hours": round(homes.world.events.now / 3600, 2),
        "longest_s": round(max(each.seconds for each in rest), 1),
        "failed": sorted({each.failed for each in rest if each.failed}), "seeds": [args.seed],
    }))  # fmt: skip
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
