"""Sixteen sessions at once on one engine worker, with a 1.1 B model in bfloat16.

`value` is their tokens per second in all, divided by those of one session alone; goal 4.
`over_prefill` divides them by the worker's own rate of prompt tokens, which is what the hardware
computes if nothing is read twice; goal 0.7. llama.cpp's `llama-batched-bench` computes the same
shape with the same number of sequences, threads, prompt and new tokens, between two measurements of
ours; `over_llama` has the goal 1. It is built once, in 10 to 20 minutes; `--quick` leaves it out.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import mean
from typing import Final

import trio
from worlds.engines import Answer, Worker, prompt, worker
from worlds.kernels import Theirs

MEASURES = ("tasks/engine", "transport/host")

GOALS: Final = {"value": 4.0, "over_prefill": 0.7, "over_llama": 1.0}
SESSIONS: Final = 16
PROMPT: Final = 64


async def one(engine: Worker, tokens: int) -> float:
    """Return the tokens per second of a single session."""
    answer = await engine.generate(prompt(PROMPT, 1), tokens)
    return (tokens - 1) / (answer.times[-1] - answer.times[0])


async def many(engine: Worker, tokens: int) -> float:
    """Return the tokens per second of all sessions, while all of them generate."""
    answers: list[Answer] = []
    async with trio.open_nursery() as nursery:

        async def talk(number: int) -> None:
            answers.append(await engine.generate(prompt(PROMPT, 100 + number), tokens))

        for number in range(SESSIONS):
            nursery.start_soon(talk, number)
    since = max(answer.times[0] for answer in answers)
    until = min(answer.times[-1] for answer in answers)
    made = sum(since < at <= until for answer in answers for at in answer.times)
    return made / (until - since)


async def prefill(engine: Worker, size: int) -> float:
    """Return the prompt tokens per second of a long prompt."""
    return size / (await engine.generate(prompt(size, 2), 1)).first_s


async def measure(
    args: argparse.Namespace, tokens: int, theirs: Theirs | None
) -> dict[str, object]:
    rounds = 1 if args.quick else 3
    ones, manys, prefills, llamas = [], [], [], []
    async with worker("1.1B", threads=args.threads) as engine:
        await engine.generate(prompt(PROMPT, 0), 8)
        for _ in range(rounds):
            ones.append(await one(engine, tokens))
            manys.append(await many(engine, tokens))
            prefills.append(await prefill(engine, 512))
            if theirs is not None:
                llamas.append(
                    await trio.to_thread.run_sync(
                        theirs.rate, PROMPT, tokens, SESSIONS, args.threads
                    )
                )
                manys.append(await many(engine, tokens))
    found: dict[str, object] = {
        "value": round(mean(manys) / mean(ones), 2),
        "over_prefill": round(mean(manys) / mean(prefills), 2),
        "tokens_per_s": [round(each, 2) for each in manys],
        "one_per_s": [round(each, 2) for each in ones],
        "prefill_per_s": [round(each, 1) for each in prefills],
    }
    if llamas:
        found["over_llama"] = round(mean(manys) / mean(llamas), 2)
        found["llama_per_s"] = [round(each, 2) for each in llamas]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        theirs = None if args.quick else Theirs("bf16", Path(name))
        found = trio.run(measure, args, 96, theirs)
    numbers = {name: each for name, each in found.items() if isinstance(each, float)}
    ok = all(each >= GOALS[name] for name, each in numbers.items())
    head = {"name": "engine_batch", "goal": GOALS["value"], "ok": ok, "goals": GOALS}
    print(json.dumps(head | found | {"sessions": SESSIONS, "threads": args.threads}))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
