"""Hidden states on a link: exact, or as int8 in blocks. Spec: docs/spec/engine.md, packed states.

A packed row has one int8 for each hidden value, followed by one float16 scale for each block of
BLOCK_VALUES values. The last block may be shorter. A value is its int8 times the block's scale.
"""

from typing import Final, Literal

Activations = Literal["exact", "int8"]
"""How the stages of a session send hidden states to each other."""

BLOCK_VALUES: Final = 64
"""Hidden values that share a scale."""


def packed_bytes(hidden: int) -> int:
    """Return the size in bytes of a packed row of `hidden` values."""
    return hidden + 2 * -(-hidden // BLOCK_VALUES)


PACKED_FAMILIES: Final = frozenset({
    "gemma2", "gemma3", "gpt_oss", "llama", "mistral", "mixtral", "phi3", "qwen2", "qwen3",
    "qwen3_moe", "qwen3_next",
})  # fmt: skip
"""The families that have passed the check, by `Architecture.family`.

Packing at all boundaries of layers changes their distributions and their routing less than
computing in bfloat16 instead of float32 does (`tests/tasks/engine/test_packed_families.py`). A new
family is added here after its check.
"""
