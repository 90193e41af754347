"""Load a folder of the tiny model and let it write.

``python examples/tiny/sample.py --model shoal/models/tiny "Tell me about the sea."`` answers
in the chat form; with ``--plain`` the text is simply continued. This reads nothing but the
folder, so it also shows that the folder is complete.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from dialogue import ASSISTANT, BEGIN, END, USER
from model import Shape, TinyLlama
from safetensors.torch import load_file
from tokenizers import Tokenizer


def shape_of(config: dict[str, Any]) -> Shape:
    """Return the sizes that a ``config.json`` of the Llama kind gives."""
    return Shape(
        vocabulary=config["vocab_size"],
        hidden=config["hidden_size"],
        intermediate=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        context=config["max_position_embeddings"],
        rope_theta=config["rope_theta"],
        norm_eps=config["rms_norm_eps"],
    )


def load_model(folder: Path) -> TinyLlama:
    """Return the model in ``folder``, computing in float32."""
    model = TinyLlama(shape_of(json.loads((folder / "config.json").read_text())))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.float().eval()


def chat_prompt(message: str) -> str:
    """Return the chat form of one user message, up to where the answer begins."""
    return f"{BEGIN}{USER}\n{message.strip()}{END}\n{ASSISTANT}\n"


@torch.no_grad()
def generate(
    model: TinyLlama, tokenizer: Tokenizer, prompt: str, tokens: int, temperature: float, seed: int
) -> tuple[str, bool]:
    """Return up to ``tokens`` tokens after ``prompt``, and whether the model ended by itself.

    The prompt spells out its special tokens. A temperature of zero takes the likeliest token.
    """
    generator = torch.Generator().manual_seed(seed)
    ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    start, end = len(ids), tokenizer.token_to_id(END)
    for _ in range(min(tokens, model.shape.context - start)):
        logits = model(torch.tensor([ids]))[0, -1]
        if temperature > 0:
            chances = torch.softmax(logits / temperature, dim=-1)
            token = int(torch.multinomial(chances, 1, generator=generator))
        else:
            token = int(logits.argmax())
        if token == end:
            return tokenizer.decode(ids[start:]), True
        ids.append(token)
    return tokenizer.decode(ids[start:]), False


def main() -> None:
    """Answer, or continue, the text of the command line."""
    parser = argparse.ArgumentParser(description="Let the tiny model write.")
    parser.add_argument("text", help="what the user says")
    parser.add_argument("--model", type=Path, default=Path("shoal/models/tiny"))
    parser.add_argument("--plain", action="store_true", help="continue the text, no chat form")
    parser.add_argument("--tokens", type=int, default=200, help="most tokens to write")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    prompt = BEGIN + arguments.text if arguments.plain else chat_prompt(arguments.text)
    text, ended = generate(
        load_model(arguments.model),
        tokenizer,
        prompt,
        arguments.tokens,
        arguments.temperature,
        arguments.seed,
    )
    print(text if ended else text + " ...")


if __name__ == "__main__":
    main()
