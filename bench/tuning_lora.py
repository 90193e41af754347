"""Fine-tuning through three daemons against `peft` and torch: the losses at equal steps.

Real, loopback, the embedded model, two layers on each daemon. The domain is Python's language
reference, of which the model was trained on nothing. `shoal finetune` does the one side, and
bench/peers/peft_side.py the other, with the same rows in the same order, the same initial adapter
(rank 8 on all projections), AdamW and rates. Both are in float32. `value` is the relative
difference of the loss on held-out rows after the last step; goal 0.01. `worst` is the largest
difference of the loss of one step, `gain` the loss that the tuning took from the held-out rows, and
`seconds` compares the times (the daemons and `peft` have one thread each).

`peft` gets an environment of its own below the cache folder, unless --peft or SHOAL_BENCH_PEFT
names a Python that has it.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pydoc_data.topics import topics  # the language reference, as texts
from typing import Any

import numpy as np
from worlds import others

sys.path.insert(0, str(Path(__file__).parents[1]))  # for tests/

from shoal.node.daemon.embedded import embedded_folder
from shoal.tasks.engine.adapters import module_shapes
from shoal.tasks.engine.families import architecture
from shoal.tasks.tuning.trainer import defaults, optimiser
from shoal.tasks.tuning.trainer.folder import write_peft
from shoal.tasks.tuning.trainer.order import RowSchedule
from shoal.tasks.tuning.trainer.plan import PlanFile, TuningPlan
from shoal.tasks.tuning.trainer.rows import RowFile
from shoal.transport.host.real import RealHost
from tests.cli.daemons import Daemon, daemons

MEASURES = (
    "tasks",
    "node",
    "cli",
    "state",
    "dht",
    "transport",
    "shoal/models",
    "bench/peers/peft_side.py",
)

GOAL = 0.01  # relative
RANK = 8
HELD_ROWS = 16  # of one batch of the held-out rows
SIDE = Path(__file__).parent / "peers" / "peft_side.py"


def texts() -> list[str]:
    """Paragraphs of prose of the language reference."""
    every = (part for _, text in sorted(topics.items()) for part in re.split(r"\n\s*\n", text))
    plain = (" ".join(part.split()) for part in every)
    return [text for text in plain if 80 < len(text) < 600 and text[0].isalpha()]


@contextmanager
def swarm(folder: Path) -> Iterator[Daemon]:
    """Three daemons with two layers each; yields the first."""
    with daemons() as start:
        found: list[Daemon] = []
        for number in range(3):
            words = ["--no-lan", "--model", "tiny", "--layers", f"{2 * number}:{2 * number + 2}"]
            if found:
                words += ["--bootstrap", found[0].address]
            found.append(start(folder / str(number), *words))
            found[-1].wait_until(lambda status: bool(status["addresses"]))
        for node in found:
            node.wait_until(
                lambda status: any(m["name"] == "tiny" and m["complete"] for m in status["models"])
            )
        yield found[0]


def ours(folder: Path, data: Path, steps: int) -> tuple[Path, dict[str, Any]]:
    """Tune through the swarm. Return the folder of the fine-tuning, and its last view."""
    with swarm(folder) as node:
        begun = node.ask(
            "tuning_begin", wait=True, model="tiny", path=str(data), rank=RANK, steps=steps, seed=1
        )["tuning"]
        done = node.ask("tuning_follow", wait=True, tuning=begun["id"])["tuning"]
        assert done["state"] == "done", done
    return Path(done["folder"]), done


def theirs(python: str, tuning: Path, folder: Path) -> dict[str, Any]:
    """Tune with `peft`, with what the fine-tuning in `tuning` began with."""
    files = RealHost().files
    plan = PlanFile(files, tuning).read()
    assert plan is not None
    settings, rows = plan.settings, RowFile(files, tuning / "rows", plan.data)
    model = embedded_folder()
    shapes = module_shapes(architecture(json.loads((model / "config.json").read_text())))
    begun = optimiser.begin(settings, shapes)
    write_peft(files, folder / "initial", settings.terms, begun.tensors, str(model))
    held = _batches(folder, plan, rows)
    task = {
        "model": str(model), "rates": [settings.rate_at(step) for step in range(settings.steps)],
        "clip": defaults.CLIP, "betas": defaults.BETAS, "threads": 1, "held": held,
    }  # fmt: skip
    (folder / "task.json").write_text(json.dumps(task))
    subprocess.run([python, str(SIDE), str(folder)], check=True, stderr=subprocess.DEVNULL)
    found: dict[str, Any] = json.loads((folder / "losses.json").read_text())
    return found


def _batches(folder: Path, plan: TuningPlan, rows: RowFile) -> int:
    """Write the batches of all steps and of the held-out rows. Return how many the latter are."""
    settings, found = plan.settings, dict[str, Any]()
    order = RowSchedule(rows.lengths, settings.batch, settings.seed, settings.held_out)
    for step in range(settings.steps):
        batch = rows.batch(order.rows(step))
        found[f"tokens{step}"], found[f"targets{step}"] = batch.tokens, batch.targets
    starts = range(0, len(order.held_out), HELD_ROWS)
    for number, at in enumerate(starts):
        batch = rows.batch(order.held_out[at : at + HELD_ROWS])
        found[f"held_tokens{number}"], found[f"held_targets{number}"] = batch.tokens, batch.targets
    np.savez(folder / "batches.npz", **found)
    return len(starts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="40 steps on 120 texts")
    others.option(parser, "peft")
    args = parser.parse_args()
    python = others.python("peft", args.peft)
    count, steps = (120, 40) if args.quick else (400, 150)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = folder / "data.jsonl"
        data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts()[:count]))
        tuning, done = ours(folder, data, steps)
        lines = [json.loads(x) for x in (tuning / "curve" / "loss.jsonl").read_text().splitlines()]
        (folder / "peft").mkdir()
        other = theirs(python, tuning, folder / "peft")
    held = [line["held_out"] for line in lines if "held_out" in line]
    pairs = zip([line["loss"] for line in lines], other["losses"], strict=True)
    value = abs(held[-1] / other["held_out"] - 1)
    result = {
        "name": "tuning_lora", "value": value, "goal": GOAL, "ok": value <= GOAL,
        "worst": max(abs(a / b - 1) for a, b in pairs), "held_out": held[-1],
        "held_out_peft": other["held_out"], "first_held_out": held[0], "gain": held[0] - held[-1],
        "steps": steps, "seconds": done["spent_s"], "seconds_peft": other["seconds"],
    }  # fmt: skip
    print(json.dumps(result))
    return 0 if value <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
