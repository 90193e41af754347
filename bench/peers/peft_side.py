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


class Training:
    """A model with the initial adapter of a folder, and its optimiser."""

    def __init__(self, folder: Path) -> None:
        self.task = json.loads((folder / "task.json").read_text())
        torch.set_num_threads(self.task["threads"])
        base = AutoModelForCausalLM.from_pretrained(self.task["model"], dtype=torch.float32)
        self.model = PeftModel.from_pretrained(base, folder / "initial", is_trainable=True).train()
        self._trained = [each for each in self.model.parameters() if each.requires_grad]
        self._adamw = torch.optim.AdamW(
            self._trained, lr=1.0, betas=tuple(self.task["betas"]), weight_decay=0.0
        )
        self.batches = dict(np.load(folder / "batches.npz"))

    def step(self, number: int) -> float:
        """Do the step with this number, and return its mean loss."""
        tokens, targets = self.batches[f"tokens{number}"], self.batches[f"targets{number}"]
        loss = loss_of(self.model, tokens, targets) / int((targets != NOT_COUNTED).sum())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._trained, self.task["clip"])
        self._adamw.param_groups[0]["lr"] = self.task["rates"][number]
        self._adamw.step()
        self._adamw.zero_grad()
        return float(loss.detach())


def main() -> None:
    folder = Path(sys.argv[1])
    training = Training(folder)
    batches, began = training.batches, time.monotonic()
    losses = [training.step(number) for number in range(len(training.task["rates"]))]
    seconds = time.monotonic() - began
    held, counted = 0.0, 0
    with torch.no_grad():
        for number in range(training.task["held"]):
            tokens, targets = batches[f"held_tokens{number}"], batches[f"held_targets{number}"]
            held += float(loss_of(training.model.eval(), tokens, targets))
            counted += int((targets != NOT_COUNTED).sum())
    found = {"losses": losses, "held_out": held / counted, "seconds": seconds}
    (folder / "losses.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
