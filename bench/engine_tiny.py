"""A model of the embedded one's size on the engine's worker, with the native kernels and without.

Without them (`SHOAL_KERNELS=off`) the worker computes as it did before they existed. `value` is the
ratio of tokens per second of one session; goal 3. Both workers run in turns.
"""

import argparse
import json
import os
import sys
from statistics import median
from typing import Final

import trio
from worlds.engines import prompt, worker

MEASURES = ("tasks/engine", "transport/host")

GOAL: Final = 3.0


async def rate(kernels: str, tokens: int, rounds: int) -> list[float]:
    """Return the tokens per second of some answers of one worker."""
    os.environ["SHOAL_KERNELS"] = kernels
    rates = []
    async with worker("tiny", threads=1, kv_bytes=1 << 27) as engine:
        await engine.generate(prompt(32, 0, "tiny"), 16)
        for seed in range(rounds):
            answer = await engine.generate(prompt(32, seed, "tiny"), tokens)
            # Tokens arrive in pieces, so the first piece is the beginning.
            rates.append((tokens - 1) / (answer.times[-1] - answer.times[0]))
    return rates


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="256 tokens, one round")
    args = parser.parse_args()
    tokens, rounds = (256, 1) if args.quick else (512, 3)
    after, before = list[float](), list[float]()
    for _ in range(rounds):
        before += trio.run(rate, "off", tokens, 3)
        after += trio.run(rate, "", tokens, 3)
    value = median(after) / median(before)
    head = {"name": "engine_tiny", "goal": GOAL, "value": round(value, 2), "ok": value >= GOAL}
    rates = {"per_s": [round(median(after), 1), round(median(before), 1)]}
    print(json.dumps(head | rates))
    return 0 if value >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
