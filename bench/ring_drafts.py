"""One session with drafts through a chain of four machines, compared with llama.cpp's RPC backend.

The machines are network namespaces of this computer, with a round trip of 20 ms between any two.
Both sides compute the same random model of 125 M parameters in bfloat16, with one thread on each
machine, at the positions of recorded answers of a coding agent (SWE-agent). Our engines say these
answers (teacher forcing, worlds/forced); our drafter sees only delivered tokens.

llama.cpp verifies guesses in one step of several rows. Its time is computed from the measured
seconds of its steps of 1, 4, 8 and 16 rows, and from the guesses that our drafter would have for
the next step each time. The number of rows that is fastest over all texts counts, which
may be 1: no drafts.

`value` is our tokens per second divided by llama.cpp's; goal 4. `drafts` is ours divided by ours
without drafts, and `theirs` llama.cpp's divided by its own. `--quick` has a small model and two
texts. Traces: --traces FOLDER has `swe-agent/*.traj` (SWE-agent/SWE-agent, MIT).
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

from worlds import llamarpc
from worlds.chain import Chain
from worlds.randommodel import SHAPES, word
from worlds.recorded import Text, swe_agent
from worlds.traces import find_traces

from shoal.tasks.drafting.drafter import Drafter
from shoal.tasks.drafting.suffixes import History

MEASURES = ("tasks", "transport", "netsim", "cli", "node", "bench/worlds/chain.py")

GOAL: Final = 4.0
ROUND_TRIP: Final = 0.020
STAGES: Final = 4
ROWS: Final = (1, 4, 8, 16)
PROMPT: Final = 1500  # tokens of a prompt: the last ones of what was said before
HISTORY: Final = 1 << 16  # tokens of the texts before, for llama.cpp's guesses
TURNS: Final = 3


def texts_of(folder: Path, most: int) -> list[Text]:
    """Return recorded answers with the ends of their prompts."""
    return [
        Text(text.prompt[-PROMPT:], text.answer) for text in swe_agent(folder / "swe-agent", most)
    ]


@contextmanager
def forced(texts: Sequence[Text]) -> Iterator[None]:
    """Let the engines of daemons that are started in this block say these texts."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "texts.json"
        file.write_text(json.dumps([[len(each.prompt), each.answer] for each in texts]))
        site = str(Path(__file__).parent / "worlds" / "forced")
        before = {name: os.environ.get(name) for name in ("SHOAL_BENCH_TEXTS", "PYTHONPATH")}
        os.environ |= {"SHOAL_BENCH_TEXTS": str(file), "PYTHONPATH": site}
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def ours(chain: Chain, texts: Sequence[Text], user: int) -> float:
    """Return our tokens per second over all texts, without the first token of each.

    The user must be a new one, or its earlier texts would have the answers. Users with an even
    number get no drafts.
    """
    seconds = count = 0.0
    for number, text in enumerate(texts):
        prompt = " ".join(map(word, text.prompt))
        said = chain.say(prompt, tokens=len(text.answer), seed=user * len(texts) + number)
        wanted = " ".join(map(word, text.answer))
        assert said.text.split() == wanted.split(), f"text {number} was not said"
        count += said.tokens - 1
        seconds += (said.tokens - 1) / said.tokens_per_s
    return count / seconds


def steps(texts: Sequence[Text], rows: int) -> int:
    """Return how many steps of `rows` rows say all texts, by the guesses of our drafter."""
    history, found = History(HISTORY), 0
    for text in texts:
        drafter = Drafter(history)
        drafter.extend(text.prompt)
        at = 0
        while at < len(text.answer):
            guesses = drafter.draft((), rows - 1)
            right = 0
            for guess, token in zip(guesses, text.answer[at:], strict=False):
                if guess.token != token:
                    break
                right += 1
            new = text.answer[at : at + right + 1]
            drafter.extend(new)
            at += len(new)
            found += 1
        history.extend([*text.prompt, *text.answer])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small model, two texts")
    parser.add_argument("--traces", type=Path, default=find_traces(), help="recorded texts")
    args = parser.parse_args()
    llamarpc.build()
    texts = texts_of(args.traces, 2 if args.quick else 12)
    shape = SHAPES["tiny" if args.quick else "125M"]
    turns = 1 if args.quick else TURNS
    tokens = sum(len(text.answer) for text in texts)
    rates: dict[str, list[float]] = {}
    with forced(texts), Chain(shape, stages=STAGES) as chain:
        chain.start_daemons()
        chain.start_workers()
        chain.delay(ROUND_TRIP)
        ours(chain, texts, 0)  # which meets the links, and reads the weights once
        for turn in range(1, turns + 1):
            rates.setdefault("plain", []).append(ours(chain, texts, 2 * turn))
            rates.setdefault("ours", []).append(ours(chain, texts, 2 * turn + 1))
            for rows in ROWS:
                step = chain.llama_step(rows, depth=PROMPT)
                name = f"theirs_{rows}"
                rates.setdefault(name, []).append(tokens / (steps(texts, rows) * step))
            print({name: round(each[-1], 2) for name, each in rates.items()}, file=sys.stderr)
    found = {name: round(median(each), 2) for name, each in rates.items()}
    theirs = max(found[f"theirs_{rows}"] for rows in ROWS)
    value = found["ours"] / theirs
    result = {
        "name": "ring_drafts",
        "value": round(value, 2),
        "goal": GOAL,
        "ok": value >= GOAL,
        "unit": "tokens/s divided by those of llama.cpp RPC, 4 stages, 20 ms",
        "drafts": round(found["ours"] / found["plain"], 2),
        "theirs": round(theirs / found["theirs_1"], 2),
        "tokens_per_s": found,
        "texts": len(texts),
        "tokens": tokens,
    }
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
