"""Fixtures with tokenizers and model files."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from shoal.tasks.text.process import ModelFiles

TEXTS = [
    "In the beginning God created the heaven and the earth.",
    "def push(self, token): return the text that it completes.",
    "naïve café, 日本語のテキスト, emoji 🙂🙃👩‍🚀 and the end",
] * 20
SPECIALS = ["<s>", "</s>", "<|user|>", "<|assistant|>"]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}\n"
    "    {% if message['role'] == 'user' %}\n<|user|>{{ message['content'] }}{{ eos_token }}"
    "{% else %}<|assistant|>{{ message.content }}{{ eos_token }}{% endif %}\n"
    "{% endfor %}\n{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_level() -> Tokenizer:
    """Like GPT-2's and Llama 3's: every byte is a character of the vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B:1", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Like Llama 2's: words with `▁`, and `<0xE2>` tokens for characters it does not know."""
    words = ["▁the", "▁beginning", "▁a", "he", "▁", "é", "n", "d", "▁God", "日", ".", "i", "t"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocabulary = {name: number for number, name in enumerate(names)}
    merges = [("h", "e")]
    vocabulary |= {name: len(names) + i for i, name in enumerate("he")}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<unk>", "<s>", "</s>")])
    return tokenizer


@pytest.fixture(scope="session")
def bytes_tokenizer() -> Tokenizer:
    return byte_level()


@pytest.fixture(scope="session")
def fallback_tokenizer() -> Tokenizer:
    return byte_fallback()


@pytest.fixture(scope="session")
def files(bytes_tokenizer: Tokenizer) -> Callable[..., ModelFiles]:
    """Model files with the byte-level tokenizer; keywords replace."""

    def build(**changes: Any) -> ModelFiles:
        configured = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}
        known: dict[str, Any] = {
            "name": "tiny",
            "tokenizer": bytes_tokenizer.to_str().encode(),
            "config": {"eos_token_id": 1},
            "tokenizer_config": json.dumps(configured).encode(),
            "chat_template": TEMPLATE.encode(),
        }
        return ModelFiles(**{**known, **changes})

    return build
