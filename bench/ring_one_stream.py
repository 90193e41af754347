"""One stream over four homes behind NATs, 40 ms apart, against one of these machines with the whole
model and the same drafter.

Whole daemons in netsim, with the step times of a model of 8 billion parameters on laptops, say
recorded texts (worlds/recorded.py). `value` is the chain's tokens/s divided by the one machine's on
answers of a coding agent; goal 1.0. `maths` is the same on solutions of school mathematics; goal
0.6. The asking daemon is that of the first home, or of the one machine.

`maths_said` are the tokens/s of the four homes if the first one also serves a smaller model, which
guesses what the larger one says. There is no pair of models here: the smaller one is right in 70 %
of the places, which are drawn at random, and takes 20 ms for a token. It has no goal.

Traces: --traces FOLDER has `swe-agent/*.traj` (SWE-agent/SWE-agent, MIT) and `gsm8k/test.jsonl`
(openai/grade-school-math, MIT).
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from worlds.longcontext import lengthen
from worlds.recorded import (
    CONTEXT,
    LAPTOP,
    Smaller,
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

GOAL: Final = 1.0
MATHS: Final = 0.6
APART_S: Final = 0.04
SMALLER: Final = Smaller(0.7, 0.02)


def rates(texts: list[Text], stages: int) -> tuple[float, float]:
    """Return the tokens/s without and with drafts."""
    sides = {"none": Drafting(on=False), "chosen": Drafting()}
    found = measure(*build(texts, stages, APART_S, LAPTOP, nat=True), sides)
    rate, summaries = found["chosen"]
    print(
        f"{stages} stages: {rate:.2f} tokens/s, without drafts {found['none'][0]:.2f}, "
        f"accepted {acceptance(summaries):.2f}",
        flush=True,
    )
    return found["none"][0], rate


def with_smaller(texts: list[Text]) -> float:
    """Return the tokens/s of four homes of which the first has a smaller model that guesses."""
    chain, hosts, public = build(texts, 4, APART_S, LAPTOP, nat=True)
    chain.smaller = SMALLER
    rate, summaries = measure(chain, hosts, public, {"said": Drafting()})["said"]
    print(f"with a smaller model: {rate:.2f} tokens/s, accepted {acceptance(summaries):.2f}")
    return rate


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few texts")
    parser.add_argument("--traces", type=Path, default=find_traces(), help="recorded texts")
    args = parser.parse_args()
    lengthen(CONTEXT)
    agent = swe_agent(args.traces / "swe-agent", 3 if args.quick else 24)
    maths = gsm8k(args.traces / "gsm8k" / "test.jsonl", 4 if args.quick else 24)
    found = {
        f"{name}_{stages}": rates(texts, stages)
        for name, texts in (("agent", agent), ("maths", maths))
        for stages in (4, 1)
    }
    value = found["agent_4"][1] / found["agent_1"][1]
    ratio = found["maths_4"][1] / found["maths_1"][1]
    said = round(with_smaller(maths), 2)
    ok = value >= GOAL and ratio >= MATHS
    some = {name: [round(rate, 2) for rate in pair] for name, pair in found.items()}
    print(json.dumps({"name": "ring_one_stream", "goal": GOAL, "ok": ok, "value": round(value, 2),
                      "maths": round(ratio, 2), "maths_said": said,
                      "tokens_per_s": some}))  # fmt: skip
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
