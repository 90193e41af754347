"""Write the trained model as an ordinary Hugging Face Llama folder, with its model card.

Run ``python examples/tiny/export.py --work build/tiny --out shoal/models/tiny`` after
``train.py``. The weights are stored in bfloat16; the losses and samples of the card are
computed from the stored files, not from the training state.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sysconfig
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from card import Sample, card
from data import cut_rows, validation_sets
from dialogue import BEGIN, CHAT_TEMPLATE, END, SPECIAL_TOKENS
from model import Shape, TinyLlama, parameter_count
from safetensors.torch import save_file
from sample import chat_prompt, generate, load_model
from tokenizers import Tokenizer
from train import Plan, mean_loss

#: Most bytes that the folder may take, so that it can travel with the program.
SIZE_LIMIT = 10_000_000
SAMPLE_TOKENS = 160
SAMPLE_TEMPERATURE = 0.7
SAMPLE_SEED = 1
CHAT_SAMPLES = (
    "And the king rose up early in the morning,",
    "Tell me about the sea.",
    "What does Queue.get do?",
)


def config(shape: Shape) -> dict[str, Any]:
    """Return ``config.json``."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": SPECIAL_TOKENS.index(BEGIN),
        "eos_token_id": SPECIAL_TOKENS.index(END),
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": shape.context,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "pretraining_tp": 1,
        "rms_norm_eps": shape.norm_eps,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": shape.vocabulary,
    }


def tokenizer_config(shape: Shape) -> dict[str, Any]:
    """Return ``tokenizer_config.json``; the template is also in ``chat_template.jinja``."""
    added = {
        str(number): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for number, token in enumerate(SPECIAL_TOKENS)
    }
    return {
        "added_tokens_decoder": added,
        "bos_token": BEGIN,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": END,
        "model_max_length": shape.context,
        "pad_token": END,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def generation_config() -> dict[str, Any]:
    """Return ``generation_config.json``."""
    return {
        "bos_token_id": SPECIAL_TOKENS.index(BEGIN),
        "do_sample": True,
        "eos_token_id": SPECIAL_TOKENS.index(END),
        "pad_token_id": SPECIAL_TOKENS.index(END),
        "temperature": SAMPLE_TEMPERATURE,
    }


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write ``content`` in the layout that Hugging Face uses."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def write_weights(path: Path, model: TinyLlama) -> None:
    """Store all parameters in bfloat16, in a fixed order."""
    weights = {
        name: parameter.detach().to(torch.bfloat16).contiguous()
        for name, parameter in sorted(model.named_parameters())
    }
    save_file(weights, path, metadata={"format": "pt"})
    path.chmod(0o644)  # safetensors leaves it readable to its owner only


def python_licence() -> str:
    """Return the licence text of this Python, whose docstrings were trained on."""
    for folder in (Path(sysconfig.get_paths()["stdlib"]), Path("/usr/share/doc/python3.11")):
        for name in ("LICENSE.txt", "copyright"):
            if (folder / name).is_file():
                return (folder / name).read_text(encoding="utf-8")
    raise FileNotFoundError("this Python has no licence text next to it")


def write_folder(out: Path, model: TinyLlama, work: Path) -> None:
    """Write all files of the model but its card."""
    out.mkdir(parents=True, exist_ok=True)
    write_weights(out / "model.safetensors", model)
    write_json(out / "config.json", config(model.shape))
    write_json(out / "tokenizer_config.json", tokenizer_config(model.shape))
    write_json(out / "generation_config.json", generation_config())
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    (out / "tokenizer.json").write_bytes((work / "tokenizer.json").read_bytes())
    (out / "LICENSE-PSF.txt").write_text(python_licence(), encoding="utf-8")


def validation_losses(
    model: TinyLlama, tokenizer: Tokenizer, work: Path, plan: Plan
) -> dict[str, dict[str, float]]:
    """Return the losses over the whole held-out text, per part of it, for both row lengths."""
    losses: dict[str, dict[str, float]] = {}
    for name, (pieces, size) in validation_sets(work, tokenizer).items():
        tokens = sum(map(len, pieces))
        full = mean_loss(model, cut_rows(pieces, plan.long_row), plan.batch_tokens)
        short = mean_loss(model, cut_rows(pieces, plan.short_row), plan.batch_tokens)
        losses[name] = {
            "tokens": tokens,
            "bytes": size,
            "nats_per_token": full,
            "nats_per_token_short_rows": short,
            # The end token of a document is paid for, but counts no bytes.
            "bits_per_byte": full * tokens / size / math.log(2),
        }
    return losses


def samples(model: TinyLlama, tokenizer: Tokenizer) -> list[Sample]:
    """Return the samples of the card: the first draw of each, none chosen."""
    found = []
    for message in CHAT_SAMPLES:
        text, ended = generate(
            model,
            tokenizer,
            chat_prompt(message),
            SAMPLE_TOKENS,
            SAMPLE_TEMPERATURE,
            SAMPLE_SEED,
        )
        found.append(Sample(message, text, ended))
    return found


def write_card(out: Path, work: Path, steps: int) -> dict[str, Any]:
    """Measure the stored model, write ``README.md`` and return the figures in it."""
    model = load_model(out)
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    plan = Plan(**json.loads((work / "plan.json").read_text()))
    losses = validation_losses(model, tokenizer, work, plan)
    model.eval()
    text = card(
        plan=plan,
        steps=steps,
        parameters=parameter_count(model),
        corpus=json.loads((work / "corpus.json").read_text()),
        losses=losses,
        samples=samples(model, tokenizer),
    )
    (out / "README.md").write_text(text, encoding="utf-8")
    return {"steps": steps, "validation": losses}


def main() -> None:
    """Export the checkpoint in ``--work`` to ``--out``."""
    parser = argparse.ArgumentParser(description="Write the tiny model's folder.")
    parser.add_argument("--work", type=Path, default=Path("build/tiny"), help="working folder")
    parser.add_argument("--out", type=Path, default=Path("shoal/models/tiny"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    state = torch.load(arguments.work / "checkpoint.pt")
    model = TinyLlama(Shape())
    model.load_state_dict(state["model"])
    write_folder(arguments.out, model, arguments.work)
    figures = write_card(arguments.out, arguments.work, state["step"])
    size = sum(path.stat().st_size for path in arguments.out.iterdir())
    print(json.dumps(figures | {"bytes": size}, indent=2))
    if size > SIZE_LIMIT:
        raise SystemExit(f"the folder takes {size} bytes, more than {SIZE_LIMIT}")


if __name__ == "__main__":
    main()
