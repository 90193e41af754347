"""Second request with the same beginning, on the engine's real worker with a 1.1 B model.

Two requests share 2,000 tokens (`--quick`: 500) and have 64 own ones. `value` is the first one's
time to the first token divided by the second one's; goal 15. The prefix was named by the gateway's
code, and the rest of the second prompt is computed. A third request with another prefix shows that
the worker is not merely warm.
"""

import argparse
import json
import sys
from statistics import mean
from typing import Final

import trio
from worlds.engines import Worker, prompt, worker

from shoal.tasks.engine.interface import SessionTerms
from shoal.tasks.inference.names import PrefixNames

MEASURES = ("tasks/engine", "tasks/inference/names.py", "transport/host")

GOAL: Final = 15.0
OWN: Final = 64
NAMES: Final = PrefixNames(b"secret")


async def ask(engine: Worker, tokens: tuple[int, ...]) -> tuple[float, int]:
    """Return (seconds to the first token, cached positions) of one request."""
    names = NAMES.of("ab" * 32, tokens)
    answer = await engine.generate(tokens, 1, terms=SessionTerms("gateway", False, names))
    return answer.first_s, answer.cached


async def measure(shared: int, threads: int, rounds: int) -> dict[str, object]:
    first, second, other = [], [], []
    async with worker("1.1B", threads=threads) as engine:
        await engine.generate(prompt(64, 0), 8)
        for number in range(rounds):
            prefix = prompt(shared, 10 + number)
            cold, cached = await ask(engine, prefix + prompt(OWN, 20 + number))
            assert cached == 0
            warm, cached = await ask(engine, prefix + prompt(OWN, 30 + number))
            assert cached == shared // 16 * 16
            first.append(cold)
            second.append(warm)
            other.append((await ask(engine, prompt(shared + OWN, 40 + number)))[0])
    return {
        "value": round(mean(first) / mean(second), 1),
        "first_s": [round(each, 2) for each in first],
        "second_s": [round(each, 2) for each in second],
        "other_prefix_s": [round(each, 2) for each in other],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a prefix of 500 tokens, one round")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    shared, rounds = (500, 1) if args.quick else (2000, 3)
    found = trio.run(measure, shared, args.threads, rounds)
    ok = isinstance(found["value"], float) and found["value"] >= GOAL
    print(json.dumps({"name": "engine_prefix", "goal": GOAL, "ok": ok, "shared": shared} | found))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
