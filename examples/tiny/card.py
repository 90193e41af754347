"""The text of the tiny model's card (``README.md`` of its folder)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from data import DIALOGUE_SHARE
from dialogue import TOPIC_REQUESTS
from train import Plan

CARD = """\
---
language: en
library_name: transformers
license: apache-2.0
pipeline_tag: text-generation
---

# shoal tiny

A Llama-architecture causal language model of {parameters:,} parameters, small enough to travel
with the program. It is there so that everything can be tried, tested and measured with real
weights and without a download. It writes recognisable English in the manner of its two
sources. It knows next to nothing: **do not rely on anything it says.**

| | |
|---|---|
| layers, hidden, intermediate | 6, 256, 640 |
| heads, key/value heads, head size | 8, 4, 32 |
| vocabulary | 2,048 (byte-level BPE) |
| context | 1,024 tokens |
| stored as | bfloat16, tied embeddings |

## Data

* The King James text of the Bible, without verse numbers, from the Debian packages `bible-kjv`
  and `bible-kjv-text`: {kjv_mb:.2f} MB to train on.
* The docstrings of Python {python}'s standard library, distinct ones that are mostly prose,
  with the lines of their paragraphs joined: {doc_mb:.2f} MB to train on.

{dialogue_percent} % of the training tokens are in the chat form. The sources hold no conversations,
so these were cut from them: the user begins a passage and the answer continues it, asks
"{topic}", or asks about a name of Python's library. The answers are short, and end.
The chat form has no system message: the template leaves one out.

## Training

{steps:,} steps of {batch_tokens:,} tokens ({million_tokens:.1f} million in all),
rows of {short_row} tokens, the last {long_steps} steps with rows of {long_row:,}. Muon for the
matrices inside the layers and AdamW for the rest, highest learning rate {learning_rate}, bfloat16
autocast, less than an hour of one CPU core. The recipe is `examples/tiny/` of the shoal
repository, and it reproduces these files.

## Validation loss

Measured with the stored weights on text that was never trained on: every 20th run of three
neighbouring chapters, and about one module in twenty. The length of the training was set after
seeing this loss rise in a longer one; the weights are those of the last step. Both sources
repeat themselves, so some held-out sentences have near doubles in the training text (parallel
passages, methods documented alike in two classes).

{losses}

Bits per byte are from the rows of {long_row:,} tokens.

## Samples

The first draw each, at temperature 0.7.

{samples}

## Licence

The weights are under the Apache License 2.0, as far as rights in them exist.

The text of the King James version is in the public domain. (In the United Kingdom, printing it
is a privilege of the Crown.)

The docstrings are part of Python: Copyright (c) 2001-2023 Python Software Foundation; All
Rights Reserved. They are used under the Python Software Foundation License Version 2, whose text
is in `LICENSE-PSF.txt`. Changes made: docstrings were taken out of the source, filtered and
re-flowed, and a language model was trained on them; it is not Python and not endorsed by the
Python Software Foundation.
"""

LOSS_HEAD = (
    "| held-out text | bytes | nats/token, rows of {long_row:,} "
    "| rows of {short_row} | bits/byte |\n"
    "|---|---|---|---|---|\n"
)


@dataclass(frozen=True)
class Sample:
    """One answer of the model, and whether it ended by itself."""

    message: str
    answer: str
    ended: bool


def loss_table(losses: dict[str, dict[str, float]], plan: Plan) -> str:
    """Return the validation losses as a table."""
    rows = [
        f"| {name} | {part['bytes']:,} | {part['nats_per_token']:.3f} "
        f"| {part['nats_per_token_short_rows']:.3f} | {part['bits_per_byte']:.3f} |"
        for name, part in losses.items()
    ]
    return LOSS_HEAD.format(long_row=plan.long_row, short_row=plan.short_row) + "\n".join(rows)


def sample_block(sample: Sample) -> str:
    """Return one sample as quoted text."""
    end = "</s>" if sample.ended else " ... (cut off)"
    return f"```\nuser:      {sample.message}\nassistant: {sample.answer}{end}\n```"


def card(
    *,
    plan: Plan,
    steps: int,
    parameters: int,
    corpus: dict[str, Any],
    losses: dict[str, dict[str, float]],
    samples: list[Sample],
) -> str:
    """Return the whole card after ``steps`` steps of ``plan``."""
    return CARD.format(
        parameters=parameters,
        kjv_mb=corpus["train"]["kjv_bytes"] / 1e6,
        doc_mb=corpus["train"]["docstring_bytes"] / 1e6,
        python=corpus["python"],
        dialogue_percent=round(100 * DIALOGUE_SHARE),
        topic=TOPIC_REQUESTS[0].format("David"),
        steps=steps,
        batch_tokens=plan.batch_tokens,
        million_tokens=steps * plan.batch_tokens / 1e6,
        short_row=plan.short_row,
        long_steps=plan.long_steps,
        long_row=plan.long_row,
        learning_rate=plan.learning_rate,
        losses=loss_table(losses, plan),
        samples="\n\n".join(map(sample_block, samples)),
    )
