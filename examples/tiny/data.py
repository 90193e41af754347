"""Token rows for training and validation.

Every epoch holds all training documents once, in a new order, and among them new dialogues
(see ``dialogue.py``) that make up a fixed share of the tokens. The stream is cut into rows of
equal length, and the rows are shuffled. Everything follows from the seed and the epoch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

import torch
from corpus import Document, read_documents
from dialogue import BEGIN, END, DialogueMaker
from tokenizers import Tokenizer
from torch import Tensor

#: Share of dialogues among the tokens of an epoch.
DIALOGUE_SHARE = 0.3
#: Dialogues tokenised at a time.
DIALOGUE_BATCH = 512


def encode(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Return the token ids of ``texts``, with only those special tokens that they spell out."""
    return [item.ids for item in tokenizer.encode_batch(texts, add_special_tokens=False)]


def encode_documents(tokenizer: Tokenizer, documents: list[Document]) -> list[list[int]]:
    """Return the ids of each document between a begin and an end token."""
    return encode(tokenizer, [f"{BEGIN}{document.text}{END}" for document in documents])


def cut_rows(pieces: list[list[int]], length: int) -> Tensor:
    """Join ``pieces`` and cut them into rows of ``length`` + 1 tokens.

    The last token of a row is the first of the next, so that each token is predicted once;
    an incomplete last row is dropped.
    """
    stream = torch.tensor([token for piece in pieces for token in piece])
    return stream.unfold(0, length + 1, length).clone()


class TrainingRows:
    """The training rows of any epoch."""

    def __init__(self, work: Path, tokenizer: Tokenizer, seed: int) -> None:
        """Read and tokenise the training documents of ``work``."""
        self._tokenizer = tokenizer
        self._seed = seed
        self._documents = read_documents(work / "train.jsonl")
        self._plain = encode_documents(tokenizer, self._documents)

    def epoch(self, number: int, length: int) -> Tensor:
        """Return the shuffled rows of epoch ``number``, each of ``length`` + 1 tokens."""
        rng = random.Random(f"{self._seed}/{number}")
        pieces = self._plain + self._dialogues(rng.getrandbits(32))
        rng.shuffle(pieces)
        rows = cut_rows(pieces, length)
        order = list(range(len(rows)))
        rng.shuffle(order)
        return rows[order]

    def batches(self, start: int, length: int, tokens: int) -> Iterator[Tensor]:
        """Yield batches of ``tokens`` tokens without end, from epoch ``start`` on."""
        rows_each = tokens // length
        epoch = start
        while True:
            rows = self.epoch(epoch, length)
            for first in range(0, len(rows) - rows_each + 1, rows_each):
                yield rows[first : first + rows_each]
            epoch += 1

    def _dialogues(self, seed: int) -> list[list[int]]:
        """Return as many tokenised dialogues as the wanted share takes."""
        plain = sum(map(len, self._plain))
        missing = math.ceil(plain * DIALOGUE_SHARE / (1 - DIALOGUE_SHARE))
        maker = DialogueMaker(self._documents, seed)
        pieces: list[list[int]] = []
        while missing > 0:
            drawn = encode(self._tokenizer, [maker.draw() for _ in range(DIALOGUE_BATCH)])
            pieces += drawn
            missing -= sum(map(len, drawn))
        return pieces


def is_chapter(document: Document) -> bool:
    """Whether ``document`` is from the King James text."""
    return bool(document.kind == "chapter")


def validation_sets(work: Path, tokenizer: Tokenizer) -> dict[str, tuple[list[list[int]], int]]:
    """Return, by name, the tokenised validation documents and their length in bytes."""
    documents = read_documents(work / "validation.jsonl")
    parts = {
        "all": documents,
        "kjv": [document for document in documents if is_chapter(document)],
        "docstrings": [document for document in documents if not is_chapter(document)],
    }
    return {
        name: (
            encode_documents(tokenizer, chosen),
            sum(len(document.text.encode()) for document in chosen),
        )
        for name, chosen in parts.items()
    }
