"""Plausible counts of tokens. An engine, or a sharer, may count wrongly or lie. No I/O.

No token stands for less than one byte of a prompt, except those that a chat template adds, and none
for more than TOKEN_BYTES bytes of an answer. Counts outside these bounds are cut to them.
"""

from . import defaults


def most_bytes(tokens: int) -> int:
    """Return the limit on the bytes of an answer with `tokens` tokens."""
    return min(tokens * defaults.TOKEN_BYTES, defaults.ANSWER_BYTES)


def prompt_tokens(claimed: int | None, size: int, turns: int) -> int:
    """Return the tokens of a prompt with `size` bytes of text in `turns` messages.

    `claimed` is the count of the other side, or None if it gave none.
    """
    most = size + turns * defaults.TURN_TOKENS + defaults.EXTRA_TOKENS
    if claimed is None:
        claimed = -(-size // defaults.BYTES_PER_TOKEN)
    return min(max(claimed, 1), most)


def answer_tokens(claimed: int | None, size: int, pieces: int, most: int) -> int:
    """Return the tokens of an answer with `size` bytes of text, which arrived in `pieces`.

    `most` is the number of tokens that was asked for.
    """
    least = -(-size // defaults.TOKEN_BYTES)
    return min(max(pieces if claimed is None else claimed, least), most)
