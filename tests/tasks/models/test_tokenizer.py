"""Tokenizers of GGUF files give the ids of the tokenizers that they were made from."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from shoal.node.daemon.embedded import embedded_folder
from shoal.tasks.engine.families import architecture
from shoal.tasks.models.gguf.header import Header
from shoal.tasks.models.gguf.metadata import Metadata
from shoal.tasks.models.gguf.tokenizer import text_files
from shoal.tasks.text.frames import TextFiles
from shoal.tasks.text.tokens import Tokens

TEXTS = [
    "In the beginning God created the heaven and the earth.",
    "  two  spaces, don't\n\n\ttabs 12345 naïve 東京 🙂",
    "",
    "<|user|>hello<|assistant|>",
]


def files_of(metadata: dict[str, Any], count: int) -> dict[str, bytes]:
    header = Header({"general.architecture": "llama", **metadata}, {})
    return text_files(Metadata(header), count)


def embedded_metadata() -> dict[str, Any]:
    made = json.loads((embedded_folder() / "tokenizer.json").read_text())
    vocabulary = made["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = {each["id"] for each in made["added_tokens"]}
    import numpy as np

    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([3 if n in special else 1 for n in range(2048)]),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in made["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": (embedded_folder() / "chat_template.jinja").read_text(),
    }


def test_byte_level_ids_are_those_of_the_original() -> None:
    files = files_of(embedded_metadata(), 2048)
    theirs = Tokenizer.from_file(str(embedded_folder() / "tokenizer.json"))
    ours = Tokenizer.from_str(files["tokenizer.json"].decode())
    for text in TEXTS:
        ids = theirs.encode(text).ids
        assert ours.encode(text).ids == ids
        assert ours.decode(ids) == theirs.decode(ids)
    assert json.loads(files["generation_config.json"])["eos_token_id"] == [1]


def test_the_text_process_accepts_it_with_its_template() -> None:
    files = files_of(embedded_metadata(), 2048)
    tokens = Tokens(
        TextFiles(
            tokenizer=files["tokenizer.json"],
            tokenizer_config=files["tokenizer_config.json"],
            generation_config=files["generation_config.json"],
            chat_template=files["chat_template.jinja"],
        )
    )
    ids = tokens.encode_chat([{"role": "user", "content": "Tell me about David."}],
                             add_generation_prompt=True, now=0)  # fmt: skip
    theirs = Tokenizer.from_file(str(embedded_folder() / "tokenizer.json"))
    assert ids[0] == 0 and "Tell me about David." in theirs.decode(ids)


@pytest.mark.parametrize("key", ["bos", "eos"])
def test_a_file_may_have_one_of_the_two_special_tokens(key: str) -> None:
    metadata = embedded_metadata()
    for each in ("bos", "eos"):
        metadata.pop(f"tokenizer.ggml.{each}_token_id", None)
        metadata[f"tokenizer.ggml.add_{each}_token"] = each == key
    metadata[f"tokenizer.ggml.{key}_token_id"] = 1
    tokenizer = Tokenizer.from_str(files_of(metadata, 2048)["tokenizer.json"].decode())
    ids = tokenizer.encode("a text").ids
    assert (ids[0] == 1, ids[-1] == 1) == (key == "bos", key == "eos")


@pytest.mark.parametrize(("pre", "digits"), [("llama-bpe", [3, 2]), ("qwen2", [1, 1, 1, 1, 1])])
def test_words_and_digits_are_cut_as_the_family_does(pre: str, digits: list[int]) -> None:
    files = files_of({**embedded_metadata(), "tokenizer.ggml.pre": pre}, 2048)
    ours = Tokenizer.from_str(files["tokenizer.json"].decode())
    assert ours.pre_tokenizer is not None
    cut = [piece for piece, _ in ours.pre_tokenizer.pre_tokenize_str("I'll pay 12345")]
    assert cut[:4] == ["I", "'ll", "Ġpay", "Ġ"] or cut[:3] == ["I", "'ll", "Ġpay"]
    assert [len(piece) for piece in cut if piece.strip("Ġ").isdigit()] == digits


def sentence_piece_metadata() -> dict[str, Any]:
    """A vocabulary with scores: later merges have lower ones, as in the files of Llama 2."""
    import numpy as np

    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [2, 3, 3, *[6] * 256]
    pieces = ["he", "the", "\u2581the", "ll", "hell", "hello", "\u2581hello", "in", "ing", "\u2581"]
    letters = list("abcdefghijklmnopqrstuvwxyz.")
    scores = [0.0] * 259 + [-float(number) for number in range(len(pieces) + len(letters))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*tokens, *pieces, *letters],
        "tokenizer.ggml.token_type": np.array([*types, *[1] * (len(pieces) + len(letters))]),
        "tokenizer.ggml.scores": np.array(scores, np.float32),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def test_sentence_piece_merges_by_scores() -> None:
    metadata = sentence_piece_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    ours = Tokenizer.from_str(files_of(metadata, len(tokens))["tokenizer.json"].decode())
    encoded = ours.encode("hello the thing")
    assert encoded.tokens == ["<s>", "\u2581hello", "\u2581the", "\u2581", "t", "h", "ing"]
    assert ours.decode(encoded.ids) == "hello the thing"
    odd = ours.encode("é!")  # bytes
    assert odd.tokens[1:] == ["\u2581", "<0xC3>", "<0xA9>", "<0x21>"]
    assert ours.decode(odd.ids) == "é!"


def test_sentence_piece_merges_are_those_of_transformers() -> None:
    """The merges that transformers finds for the same vocabulary."""
    from transformers.convert_slow_tokenizer import generate_merges

    metadata = sentence_piece_metadata()
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    made = json.loads(files_of(metadata, len(tokens))["tokenizer.json"])
    vocabulary = {token: number for number, token in enumerate(tokens)}
    theirs = generate_merges(vocabulary, dict(zip(tokens, scores.tolist(), strict=True)))
    assert [tuple(merge) for merge in made["model"]["merges"]] == [tuple(each) for each in theirs]


def test_the_folder_of_a_file_is_a_model_of_the_engine(tmp_path: Path) -> None:
    from shoal.tasks.models.gguf.model import gguf_model
    from shoal.tasks.models.output import write_folder
    from tests.tasks.models.test_gguf import small

    model = gguf_model(small(["Q4_K", "Q6_K", "Q5_K"]).write(tmp_path / "x.gguf"))
    folder = tmp_path / "out"
    folder.mkdir()
    write_folder(folder, model, lambda *_: None)
    config = json.loads((folder / "config.json").read_text())
    assert architecture(config).layouts.precision == "int4+int8"
