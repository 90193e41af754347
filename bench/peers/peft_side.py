"""Fine-tuning by `peft` and torch for `tuning_lora.py`; run by a Python that has both.

Reads a folder: `task.json` (model folder, rates, clip, threads), `batches.npz` (tokens and targets
of each step, and of the held-out rows), and the initial adapter as a folder of `peft`. Writes
`losses.json`: the mean loss of each step, of the held-out rows after the last one, and the seconds.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

NOT_COUNTED = -1


def loss_of(model: Any, tokens: Any, targets: Any) -> Any:
    """The sum over the counted positions in nats."""
    logits = model(input_ids=torch.tensor(tokens, dtype=torch.long)).logits
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(),
        torch.tensor(targets, dtype=torch.long).flatten(),
        ignore_index=NOT_COUNTED,
        reduction="sum",
    )


def main() -> None:
    folder = Path(sys.argv[1])
    task = json.loads((folder / "task.json").read_text())
    torch.set_num_threads(task["threads"])
    base = AutoModelForCausalLM.from_pretrained(task["model"], dtype=torch.float32)
    model = PeftModel.from_pretrained(base, folder / "initial", is_trainable=True).train()
    trained = [each for each in model.parameters() if each.requires_grad]
    adamw = torch.optim.AdamW(trained, lr=1.0, betas=tuple(task["betas"]), weight_decay=0.0)
    batches = np.load(folder / "batches.npz")
    losses, began = [], time.monotonic()
    for step, rate in enumerate(task["rates"]):
        tokens, targets = batches[f"tokens{step}"], batches[f"targets{step}"]
        count = int((targets != NOT_COUNTED).sum())
        loss = loss_of(model, tokens, targets) / count
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, task["clip"])
        adamw.param_groups[0]["lr"] = rate
        adamw.step()
        adamw.zero_grad()
        losses.append(float(loss.detach()))
    seconds = time.monotonic() - began
    held, counted = 0.0, 0
    with torch.no_grad():
        for number in range(task["held"]):
            tokens, targets = batches[f"held_tokens{number}"], batches[f"held_targets{number}"]
            held += float(loss_of(model.eval(), tokens, targets))
            counted += int((targets != NOT_COUNTED).sum())
    found = {"losses": losses, "held_out": held / counted, "seconds": seconds}
    (folder / "losses.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
