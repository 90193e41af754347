"""Content: an ordered list of chunks under one root, which is fetched and served as a unit.

Models (described by a manifest) and blobs (described by a tree) are both content. The exchange does
not need to know more about them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal


@dataclass(frozen=True)
class Content:
    """Description of a content. `chunks` maps each chunk's digest to its size in bytes.

    The chunks are in order and without duplicates.
    """

    root: str
    kind: Literal["model", "blob"]
    chunks: Mapping[str, int]

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Digests of the chunks in order."""
        return tuple(self.chunks)

    @cached_property
    def size(self) -> int:
        """Bytes of all chunks. A chunk that occurs several times counts once."""
        return sum(self.chunks.values())

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Position of each chunk in `order`."""
        return {digest: number for number, digest in enumerate(self.chunks)}

    @property
    def name(self) -> str:
        """Kind and first 16 digits of the root, for messages."""
        return f"{self.kind} {self.root[:16]}"
