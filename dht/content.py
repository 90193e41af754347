"""What is got and given as one: an ordered list of chunks with their bytes, under a root.

A model (its manifest) and a blob (its tree) are both that; the exchange knows nothing more.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal


@dataclass(frozen=True)
class Content:
    """The chunks of a root in order, each once, with their bytes."""

    root: str
    kind: Literal["model", "blob"]
    chunks: Mapping[str, int]

    @cached_property
    def order(self) -> tuple[str, ...]:
        return tuple(self.chunks)

    @cached_property
    def size(self) -> int:
        """Bytes of all its chunks, each once."""
        return sum(self.chunks.values())

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Where each chunk stands in the order."""
        return {digest: number for number, digest in enumerate(self.chunks)}

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.kind} {self.root[:16]}"
