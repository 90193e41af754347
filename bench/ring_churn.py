"""A chain of four homes, of which one is lost every minute: tokens per second and texts, against
the same homes with open ports and no loss.

Eight simulated homes in Europe serve a chain of four stages, each twice, and a ninth home asks for
one answer after the other. In one world, the homes are behind the gateways of
`home-volunteers-2026`, and each minute one that computes for the answer loses its power for good. A
new home joins at that time, with the same layers and behind a line like the lost one's: with
another line, two fleets would be compared and not a loss. In the other world, the same homes have
open ports and stay.

`value` is the tokens per second of the first world divided by those of the second; goal 0.95. Each
answer must be complete and have the same text in both. `--quick` runs two minutes (20).
"""

import argparse
import json
import sys
from functools import partial
from random import Random
from typing import Any, Final

import trio
from worlds.homes import Answered, Homes

MEASURES = ("netsim", "node", "tasks", "state", "dht", "transport")

SPLITS: Final = ((0, 1), (1, 3), (3, 5), (5, 6))
TOKENS: Final = 300
EVERY_S: Final = 60.0
GOALS: Final = {"value": 0.95}


async def run(homes: Homes, minutes: int, *, churn: bool, seed: int) -> list[Answered]:
    """Ask for answers during some minutes, while homes are lost if `churn`."""
    await homes.start(SPLITS, 2)
    random, answers = Random(seed), list[Answered]()

    async def lose() -> None:
        while True:
            await trio.sleep(EVERY_S / 2)
            used = homes.in_use() or list(homes.homes)
            part = await homes.lose(random.choice(used))
            nursery.start_soon(homes.add, part)
            await trio.sleep(EVERY_S / 2)

    async with trio.open_nursery() as nursery:
        if churn:
            nursery.start_soon(lose)
        with trio.move_on_after(60 * minutes):
            while True:
                answers.append(await homes.ask(TOKENS, seed=len(answers)))
        nursery.cancel_scope.cancel()
    return answers


def rate(answers: list[Answered]) -> float:
    """Return the tokens per second of answers that followed each other."""
    return sum(each.tokens for each in answers) / sum(each.seconds for each in answers)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two minutes")
    parser.add_argument("--minutes", type=int, help="virtual minutes (20)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    minutes, found = args.minutes or (2 if args.quick else 20), dict[str, list[Answered]]()
    for name, churn in (("homes", True), ("open", False)):
        homes = Homes(args.seed, open_ports=not churn)
        body = partial(run, homes, minutes, churn=churn, seed=args.seed)
        found[name] = homes.world.run(body)
        print(f"{name}: {rate(found[name]):.2f} tokens/s", file=sys.stderr)
    pairs = list(zip(found["homes"], found["open"], strict=False))
    same = sum(a.text == b.text for a, b in pairs)
    value = rate(found["homes"]) / rate(found["open"])
    ok = value >= GOALS["value"] and same == len(pairs)
    result: dict[str, Any] = {
        "name": "ring_churn", "value": round(value, 3), "goal": GOALS["value"], "ok": ok,
        "goals": GOALS, "same": same, "answers": len(pairs), "minutes": minutes,
        "tokens_per_s": {name: round(rate(each), 2) for name, each in found.items()},
        "longest_s": {name: round(max(a.seconds for a in each), 2) for name, each in found.items()},
        "failed": [a.failed for a in found["homes"] if a.failed], "seeds": [args.seed],
    }  # fmt: skip
    print(json.dumps(result))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
