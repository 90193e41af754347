"""Train the tokenizer of the tiny model: byte-level BPE with 2,048 tokens.

Run ``python examples/tiny/tokenizer.py --work build/tiny`` after ``corpus.py``. It writes
``tokenizer.json`` from the training text alone; the validation text has no part in it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from corpus import read_documents
from dialogue import BEGIN, SPECIAL_TOKENS
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

VOCABULARY = 2048


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Return a tokenizer whose first ids are the special tokens and whose text is lossless."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # Like every Llama tokenizer: plain text is encoded with one begin token before it.
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A",
        pair=f"{BEGIN} $A $B:1",
        special_tokens=[(BEGIN, tokenizer.token_to_id(BEGIN))],
    )
    return tokenizer


def main() -> None:
    """Train on the corpus in the folder given by ``--work`` and report the compression."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("build/tiny"), help="working folder")
    work: Path = parser.parse_args().work
    texts = [document.text for document in read_documents(work / "train.jsonl")]
    tokenizer = train_tokenizer(texts)
    tokenizer.save(str(work / "tokenizer.json"))
    tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(texts))
    size = sum(len(text.encode()) for text in texts)
    print(
        f"{tokenizer.get_vocab_size()} tokens; {tokens} in the text, {size / tokens:.2f} bytes each"
    )


if __name__ == "__main__":
    main()
