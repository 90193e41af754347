"""Several windows of drafts in flight against one, over four stages with round trips of 40 ms.

Whole daemons in netsim, with the step times of a model of 8 billion parameters on gaming machines,
say recorded answers of a coding agent (worlds/recorded.py). `value` is the tokens/s with the
controller's windows divided by those of the best single window in flight (4, 8, 16 or 32
positions); goal 2.5. `depth` is the controller's tokens/s divided by those of the best fixed
number of windows; goal 0.9. `least` is the worst ratio to no drafts, of any text kind; goal 0.97.

`bound` is the most that `value` can be with these texts and this drafter, by arithmetic
(worlds/bounds.py), and `perfect` with a drafter that is always right. `right` is the part of the
tokens that the drafter guesses right, and `needed` the part that 2.5 needs in an endless text.

Traces: --traces FOLDER has `swe-agent/*.traj` (SWE-agent/SWE-agent, MIT) and `gsm8k/test.jsonl`
(openai/grade-school-math, MIT).
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from worlds.bounds import Steps, gain, needed, runs
from worlds.longcontext import lengthen
from worlds.recorded import (
    CARD,
    CONTEXT,
    LAPTOP,
    Machine,
    Text,
    acceptance,
    build,
    gsm8k,
    measure,
    swe_agent,
)
from worlds.traces import find_traces

from shoal.tasks.drafting.sessions import Drafting

MEASURES = ("tasks/drafting", "tasks/inference", "tasks/engine", "netsim", "transport")

GOAL: Final = 2.5
DEPTH: Final = 0.9
LEAST: Final = 0.97
APART_S: Final = 0.04


def sides(quick: bool) -> dict[str, Drafting]:
    single = (8, 16) if quick else (4, 8, 16, 32)
    depths = ((4, 2), (4, 6), (4, 12)) if quick else ((4, 2), (4, 4), (4, 8), (4, 16), (8, 8))
    found = {"none": Drafting(on=False), "chosen": Drafting()}
    for length, depth in (*((each, 1) for each in single), *depths):
        found[f"{length}x{depth}"] = Drafting(fixed=(length, depth))
    return found


def ran(texts: list[Text], machine: Machine, those: dict[str, Drafting]) -> dict[str, float]:
    """Return the tokens/s of each side."""
    found = measure(*build(texts, 4, APART_S, machine), those)
    for name, (rate, summaries) in found.items():
        windows = max(each.drafts.most for each in summaries)
        right = acceptance(summaries)
        print(f"{name:8} {rate:7.2f} tokens/s, accepted {right:.2f}, windows {windows}", flush=True)
    return {name: rate for name, (rate, _) in found.items()}


def bounds(texts: list[Text], machine: Machine) -> dict[str, float]:
    """Return the most that several windows can gain, and the part of right guesses."""
    steps, found = Steps.of(machine, 4, APART_S), runs(texts)
    lengths = [len(text.answer) - 1 for text in texts]
    figures = {
        "bound": gain(steps, found),
        "perfect": gain(steps, lengths),
        "right": sum(found) / sum(lengths),
        "needed": needed(steps, GOAL),
    }
    return {name: round(each, 3) for name, each in figures.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few texts and sides")
    parser.add_argument("--traces", type=Path, default=find_traces(), help="recorded texts")
    args = parser.parse_args()
    lengthen(CONTEXT)
    agent = swe_agent(args.traces / "swe-agent", 3 if args.quick else 12)
    maths = gsm8k(args.traces / "gsm8k" / "test.jsonl", 3 if args.quick else 12)
    rates = ran(agent, CARD, sides(args.quick))
    one = max(rate for name, rate in rates.items() if name.endswith("x1"))
    best = max(rate for name, rate in rates.items() if "x" in name)
    least = [rates["chosen"] / rates["none"]]
    for texts, machine in ((maths, CARD), (maths, LAPTOP), (agent, LAPTOP)):
        # A new drafter each time: it would remember the answers that the same texts had before.
        others = ran(texts, machine, {"none": Drafting(on=False), "chosen": Drafting()})
        least.append(others["chosen"] / others["none"])
    value, depth = rates["chosen"] / one, rates["chosen"] / best
    ok = value >= GOAL and depth >= DEPTH and min(least) >= LEAST
    found = {"value": round(value, 2), "depth": round(depth, 3), "least": round(min(least), 3)}
    found |= bounds(agent, CARD)
    some = {name: round(rate, 2) for name, rate in rates.items()}
    against = [round(each, 2) for each in least]
    print(json.dumps({"name": "ring_windows", "goal": GOAL, "ok": ok} | found
                     | {"tokens_per_s": some, "against_none": against}))  # fmt: skip
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
