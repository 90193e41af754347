"""Steps of a fine-tuning by `peft` and torch for `tuning_speed.py`; run by a Python that has both.

Reads a folder: `task.json` (model folder, rates, clip, threads), `batches.npz` (tokens and targets
of each step), and the initial adapter as a folder of `peft`. Then, for each line with a number on
stdin, does that many steps and prints their losses, and the seconds and CPU seconds that they took.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from peft import PeftModel
from peft_side import NOT_COUNTED, loss_of  # type: ignore[import-not-found]
from transformers import AutoModelForCausalLM


def main() -> None:
    folder = Path(sys.argv[1])
    task = json.loads((folder / "task.json").read_text())
    torch.set_num_threads(task["threads"])
    base = AutoModelForCausalLM.from_pretrained(task["model"], dtype=torch.float32)
    model = PeftModel.from_pretrained(base, folder / "initial", is_trainable=True).train()
    trained = [each for each in model.parameters() if each.requires_grad]
    adamw = torch.optim.AdamW(trained, lr=1.0, betas=tuple(task["betas"]), weight_decay=0.0)
    batches = dict(np.load(folder / "batches.npz"))
    step = 0
    print("ready", flush=True)
    for line in sys.stdin:
        losses, began, cpu = [], time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            tokens, targets = batches[f"tokens{step}"], batches[f"targets{step}"]
            loss = loss_of(model, tokens, targets) / int((targets != NOT_COUNTED).sum())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, task["clip"])
            adamw.param_groups[0]["lr"] = task["rates"][step]
            adamw.step()
            adamw.zero_grad()
            losses.append(float(loss.detach()))
            step += 1
        took = time.perf_counter() - began, time.process_time() - cpu
        print(json.dumps({"losses": losses, "seconds": took[0], "cpu": took[1]}), flush=True)


if __name__ == "__main__":
    main()
