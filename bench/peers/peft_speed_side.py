"""Steps of a fine-tuning by `peft` and torch for `tuning_speed.py`; run by a Python that has both.

Reads a folder: `task.json` (model folder, rates, clip, threads), `batches.npz` (tokens and targets
of each step), and the initial adapter as a folder of `peft`. Then, for each line with a number on
stdin, does that many steps and prints their losses, and the seconds and CPU seconds that they took.
"""

import json
import sys
import time
from pathlib import Path

from peft_side import Training  # type: ignore[import-not-found]


def main() -> None:
    training = Training(Path(sys.argv[1]))
    step = 0
    print("ready", flush=True)
    for line in sys.stdin:
        count, began, cpu = int(line), time.perf_counter(), time.process_time()
        losses = [training.step(number) for number in range(step, step + count)]
        step += count
        took = time.perf_counter() - began, time.process_time() - cpu
        print(json.dumps({"losses": losses, "seconds": took[0], "cpu": took[1]}), flush=True)


if __name__ == "__main__":
    main()
