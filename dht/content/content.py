"""Content: an ordered list of chunks under one root, fetched and served as a unit.

A model (described by its manifest) and a blob (described by its tree) are both contents; the
exchange needs to know nothing else about them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal


@dataclass(frozen=True)
class Content:
    """The chunks of a root in order, without duplicates, each with its size in bytes."""

    root: str
    kind: Literal["model", "blob"]
    chunks: Mapping[str, int]

    @cached_property
    def order(self) -> tuple[str, ...]:
        return tuple(self.chunks)

    @cached_property
    def size(self) -> int:
        """Bytes of all chunks, each counted once."""
        return sum(self.chunks.values())

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Position of each chunk in the order."""
        return {digest: number for number, digest in enumerate(self.chunks)}

    @property
    def name(self) -> str:
        """Short name for messages."""
        return f"{self.kind} {self.root[:16]}"
