"""One session through a chain of four machines, compared with llama.cpp's RPC backend.

Both sides compute the same random model in bfloat16, with one thread on each machine, and have a
client without layers on a machine of its own. The machines are network namespaces of this computer.
Their links have no limit of their rate; the round trip is 0 or 20 ms. The sides run in turns. Of
each, a machine with the whole model is measured too. Our texts are drawn at temperature 1, where
drafts of a random model's text are never right.

`value` is our tokens per second divided by llama.cpp's at 20 ms, for 125 M parameters; goal: 1.6.
`at_0` is the ratio at 0 ms divided by the ratio of single machines, for each shape; goal: 0.95. The
stages share the cores of this computer, but with one session only one stage computes at a time.
`--quick` measures a small model. llama.cpp is built once, which takes a while.
"""

import argparse
import json
import os
import sys
from statistics import median
from typing import Any, Final

from worlds import llamarpc
from worlds.chain import Chain
from worlds.randommodel import SHAPES

MEASURES = ("tasks", "transport", "netsim", "cli", "node", "bench/worlds/chain.py")

GOALS: Final = {"value": 1.6, "at_0": 0.95}
ROUND_TRIP: Final = 0.020
STAGES: Final = 4
TURNS: Final = 3

Rates = dict[str, list[float]]


def measure(shape: str, round_trips: tuple[float, ...], tokens: int, turns: int) -> dict[str, Any]:
    """Measure one shape. Returns median rates, in tokens per second, and their ratios."""
    rates: Rates = {}

    def note(name: str, rate: float) -> None:
        rates.setdefault(name, []).append(rate)
        print(f"{shape} {name}: {rate:.2f}/s", file=sys.stderr, flush=True)

    with Chain(SHAPES[shape], stages=STAGES, whole=True) as chain:
        chain.start_daemons()
        chain.start_workers()
        for round_trip in round_trips:
            at = f"{1e3 * round_trip:.0f}"
            chain.delay(round_trip)
            chain.ask(tokens=4)  # which meets the links, and reads the weights once
            for _ in range(turns):
                note(f"ours_{at}", chain.ask(tokens=tokens).tokens_per_s)
                note(f"theirs_{at}", chain.ask_llama(tokens=tokens))
                if not round_trip:
                    note("ours_alone", chain.ask_whole(tokens=tokens).tokens_per_s)
                    note("theirs_alone", chain.ask_llama(tokens=tokens, alone=True))
    found = {name: round(median(values), 2) for name, values in rates.items()}
    alone = found["ours_alone"] / found["theirs_alone"]
    ratios = {"alone": alone}
    for round_trip in round_trips:
        at = f"{1e3 * round_trip:.0f}"
        ratios[f"ratio_{at}"] = found[f"ours_{at}"] / found[f"theirs_{at}"]
    ratios["at_0"] = ratios["ratio_0"] / alone
    return {name: round(ratio, 3) for name, ratio in ratios.items()} | {"per_s": found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small model, one turn")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), help="other shapes")
    parser.add_argument("--tokens", type=int, help="tokens of each answer")
    args = parser.parse_args()
    llamarpc.build()
    shapes = args.shapes or (["tiny"] if args.quick else ["125M", "1.1B"])
    found = {}
    for shape in shapes:
        large = shape == "1.1B"
        tokens = args.tokens or (16 if large or args.quick else 64)
        round_trips = (0.0,) if large else (0.0, ROUND_TRIP)
        found[shape] = measure(shape, round_trips, tokens, 1 if args.quick else TURNS)
    value = found[shapes[0]].get("ratio_20", 0.0)
    at_0 = {shape: figures["at_0"] for shape, figures in found.items()}
    print(
        json.dumps(
            {
                "name": "ring_plain",
                "value": value,
                "goal": GOALS["value"],
                "ok": value >= GOALS["value"] and min(at_0.values()) >= GOALS["at_0"],
                "unit": "tokens/s divided by those of llama.cpp RPC, 4 stages, 20 ms",
                "at_0": at_0,
                "shapes": found,
                "cores": os.cpu_count(),
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
